// SPDX-License-Identifier: Apache-2.0
// What a whole checkpoint's config.json has to say beyond its experts.
#pragma once

#include "moxie/json.hpp"
#include "synth/recipe.hpp"

namespace moxie::synth {

// Sets recipe.whole, the rest of the recipe being set. Errors: Error(unsupported) MOXIE-P010 for a
// model that is not written whole, or a config that lacks sizes.
void make_whole(Recipe& recipe, const SynthOptions& options);

// Restricts what a text model's config says of drafts, caches and engrams to what is written.
void fit_whole_model(Json& config, const Recipe& recipe);

}  // namespace moxie::synth

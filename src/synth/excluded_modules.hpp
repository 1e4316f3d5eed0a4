// SPDX-License-Identifier: Apache-2.0
// What ModelOpt's lists exclude from quantisation in the published checkpoints.
#pragma once

#include "moxie/json.hpp"
#include "synth/recipe.hpp"

namespace moxie::synth {

// Names and wildcards, those of layers for each layer of the recipe.
Json excluded_modules(const Recipe& recipe);

}  // namespace moxie::synth

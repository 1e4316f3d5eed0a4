// SPDX-License-Identifier: Apache-2.0
// The config files beside synthetic tensors: the model's own, adjusted to what is written.
#pragma once

#include "moxie/json.hpp"
#include "synth/recipe.hpp"

namespace moxie::synth {

// config.json: sizes, layer lists and quantization_config agree with the tensors of the recipe.
Json written_config(const Json& source, const Recipe& recipe);

// hf_quant_config.json; null where the dialect has none.
Json written_quant_config(const Recipe& recipe);

}  // namespace moxie::synth

// SPDX-License-Identifier: Apache-2.0
// The tensors of one gpt-oss layer: all experts in one tensor per projection pair.
#pragma once

#include <cstdint>
#include <vector>

#include "synth/names.hpp"

namespace moxie::synth {

// As tensors_of_layer.
std::vector<Tensor> gpt_oss_layer(const Recipe& recipe, std::uint64_t layer,
                                  std::uint64_t first_number);

}  // namespace moxie::synth

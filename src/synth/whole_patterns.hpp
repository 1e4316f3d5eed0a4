// SPDX-License-Identifier: Apache-2.0
// The bytes of what a whole model has around its experts, weights aside.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "synth/names.hpp"
#include "synth/recipe.hpp"

namespace moxie::synth {

// As fill(), of the contents of a whole model.
void fill_whole(const Recipe& recipe, const Tensor& tensor, std::uint64_t begin,
                std::span<std::byte> out);

}  // namespace moxie::synth

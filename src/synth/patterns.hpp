// SPDX-License-Identifier: Apache-2.0
// The bytes of a synthetic tensor, as a function of position.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "synth/names.hpp"
#include "synth/recipe.hpp"

namespace moxie::synth {

// Writes the bytes [begin, begin + out.size()) of `tensor`. Any cut of a tensor into ranges gives
// the same bytes. They depend on the recipe's seed, pattern, format and router sizes and on the
// tensor's layer, expert and projection; the number only enters the monotonic pattern.
void fill(const Recipe& recipe, const Tensor& tensor, std::uint64_t begin,
          std::span<std::byte> out);

}  // namespace moxie::synth

// SPDX-License-Identifier: Apache-2.0
// A tensor's bytes made at once and in pieces.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "synth/patterns.hpp"

namespace moxie::test {

// Cuts at 0, 1, 3, 6, 10, …: every remainder of eight, shorter and longer than a word.
inline void expect_same_in_pieces(const synth::Recipe& recipe, const synth::Tensor& tensor) {
  std::vector<std::byte> whole(tensor.entry.bytes());
  synth::fill(recipe, tensor, 0, whole);
  std::vector<std::byte> pieces(whole.size());
  std::uint64_t begin = 0;
  for (std::uint64_t step = 1; begin < pieces.size(); begin += step++) {
    const auto bytes = std::min<std::uint64_t>(step, pieces.size() - begin);
    synth::fill(recipe, tensor, begin, std::span(pieces).subspan(begin, bytes));
  }
  ASSERT_EQ(whole, pieces) << tensor.entry.name;
}

}  // namespace moxie::test

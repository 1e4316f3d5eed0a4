// SPDX-License-Identifier: Apache-2.0
// Copies a part of a tensor where every byte that is not written shows.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "pack/tensor_part.hpp"
#include "support/packed_model.hpp"

namespace moxie::test {

// A part in pieces of `rows` rows, into a destination whose every byte was 0xFF, between guards.
inline std::vector<std::byte> poisoned_copy(const TensorPart& part,
                                            std::span<const std::byte> source, std::uint64_t rows) {
  constexpr std::size_t kGuard = 64;
  std::vector<std::byte> all;
  for (std::uint64_t row = 0; row < part.rows; row += rows) {
    const std::uint64_t bytes = std::min(rows, part.rows - row) * part.row_bytes;
    std::vector<std::byte> to(bytes + 2 * kGuard, std::byte{0xFF});
    const TensorRange from = source_of(part, row, bytes / part.row_bytes);
    copy_rows(part, source.subspan(from.offset, from.bytes), row,
              std::span(to).subspan(kGuard, bytes));
    EXPECT_TRUE(all_are(std::span(to).first(kGuard), std::byte{0xFF}));
    EXPECT_TRUE(all_are(std::span(to).last(kGuard), std::byte{0xFF}));
    all.insert(all.end(), to.begin() + kGuard, to.end() - kGuard);
  }
  return all;
}

}  // namespace moxie::test

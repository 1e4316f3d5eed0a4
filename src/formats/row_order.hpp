// SPDX-License-Identifier: Apache-2.0
// How the rows of a fused gate/up matrix are arranged, as an index map with its inverse.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>

#include "base/host_device.hpp"

namespace moxie {

enum class RowOrder : std::uint8_t {
  gate_first,      // g0..g(I-1), u0..u(I-1)
  up_first,        // u0..u(I-1), g0..g(I-1)
  interleaved_1,   // g0, u0, g1, u1, ...
  interleaved_8,   // 8 gate rows, 8 up rows, ...
  interleaved_64,  // 64 up rows, 64 gate rows, ...: the up block comes first
};

enum class FusedHalf : std::uint8_t { gate, up };

// A logical row: number `row` of gate or of up.
struct FusedRow {
  FusedHalf half = FusedHalf::gate;
  std::uint64_t row = 0;

  friend constexpr bool operator==(const FusedRow&, const FusedRow&) = default;
};

// One arrangement of 2 * inter rows. Every arrangement is blocks of `block_rows` rows that
// alternate between the halves; the concatenations have one block of `inter` rows each. The same
// object maps weight rows, scale rows and bias entries: they differ in row width only, and a matrix
// whose scales follow another arrangement than its codes decodes to other weights.
class RowArrangement {
 public:
  // Throws std::invalid_argument unless inter is a whole number of interleaved blocks.
  constexpr RowArrangement(RowOrder order, std::uint64_t inter)
      : order_(order), inter_(inter), block_rows_(block_rows_of(order, inter)) {
    if (inter % block_rows_ != 0) {
      throw std::invalid_argument("the rows of gate and up do not fill whole interleaved blocks");
    }
  }

  MOXIE_HD constexpr RowOrder order() const { return order_; }
  MOXIE_HD constexpr std::uint64_t inter() const { return inter_; }
  MOXIE_HD constexpr std::uint64_t rows() const { return 2 * inter_; }

  // Position of a logical row in the fused matrix, 0..rows()-1.
  MOXIE_HD constexpr std::uint64_t position(FusedHalf half, std::uint64_t row) const {
    const std::uint64_t pair = row / block_rows_ * (2 * block_rows_);
    return pair + (half == leading_half() ? 0 : block_rows_) + row % block_rows_;
  }

  // The inverse of position().
  MOXIE_HD constexpr FusedRow logical(std::uint64_t position) const {
    const std::uint64_t block = position / block_rows_;
    const FusedHalf trailing = leading_half() == FusedHalf::gate ? FusedHalf::up : FusedHalf::gate;
    return {block % 2 == 0 ? leading_half() : trailing,
            block / 2 * block_rows_ + position % block_rows_};
  }

 private:
  // 1 for an empty concatenation, so that no division is by zero.
  static constexpr std::uint64_t block_rows_of(RowOrder order, std::uint64_t inter) {
    switch (order) {
      case RowOrder::interleaved_1:
        return 1;
      case RowOrder::interleaved_8:
        return 8;
      case RowOrder::interleaved_64:
        return 64;
      case RowOrder::gate_first:
      case RowOrder::up_first:
        break;
    }
    return inter == 0 ? 1 : inter;
  }

  MOXIE_HD constexpr FusedHalf leading_half() const {
    return order_ == RowOrder::up_first || order_ == RowOrder::interleaved_64 ? FusedHalf::up
                                                                              : FusedHalf::gate;
  }

  RowOrder order_;
  std::uint64_t inter_;
  std::uint64_t block_rows_;
};

// Copies a fused matrix from one arrangement to another. `row_bytes` is the width of a packed
// weight row, of a linear scale row, or of one bias entry; tiled scales are permuted before tiling.
// Both arrangements have the same `inter`; `src` and `dst` must not overlap.
inline void rearrange_rows(const RowArrangement& from, const RowArrangement& to,
                           const void* src,  // [2 * inter, row_bytes]
                           void* dst,        // [2 * inter, row_bytes]
                           std::size_t row_bytes) {
  const auto* const source = static_cast<const unsigned char*>(src);
  auto* const target = static_cast<unsigned char*>(dst);
  for (std::uint64_t at = 0; at < to.rows(); ++at) {
    const FusedRow row = to.logical(at);
    std::memcpy(target + at * row_bytes, source + from.position(row.half, row.row) * row_bytes,
                row_bytes);
  }
}

}  // namespace moxie

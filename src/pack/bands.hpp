// SPDX-License-Identifier: Apache-2.0
// Rows of a packed segment in the order that the layout gives them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "moxie/plan.hpp"

namespace moxie {

// Rows of this segment that a layout mixes: parts of it are multiples of so many.
std::uint64_t band_rows(LayoutKind kind, const PackedSegment& segment);

// Whole bands of a segment, in place: from rows one after another to the layout's order, and back.
void arrange_rows(LayoutKind kind, const PackedSegment& segment, std::span<std::byte> rows);
void restore_rows(LayoutKind kind, const PackedSegment& segment, std::span<std::byte> rows);

// Writes `rows`, whole bands of a segment, from rows that lie `stride` bytes apart elsewhere.
void place_rows(LayoutKind kind, const PackedSegment& segment, const std::byte* from,
                std::uint64_t stride, std::span<std::byte> rows);

// Row of the segment and byte in it of the byte that lies `at` bytes from its begin. Of scales;
// a byte of codes may hold those of two places in a row.
struct RowByte {
  std::uint64_t row = 0;
  std::uint64_t byte = 0;
};
RowByte row_byte_of(LayoutKind kind, const PackedSegment& segment, std::uint64_t at);

}  // namespace moxie

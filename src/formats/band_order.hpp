// SPDX-License-Identifier: Apache-2.0
// The order in which CPU kernels read a weight matrix: bands of 16 rows, in tiles of 32 columns.
//
// Codes: a tile is four lines of 64 bytes, line j holds columns 8j .. 8j + 7 of all rows, four
// bytes (a dword lane of a 512-bit register) a row. A dword is two words; nibble s of the low word
// is column 8j + 2s, nibble s of the high word the column behind it: shifting a line by 0, 4, 8 and
// 12 bits leaves pairs of neighbouring columns in the low nibbles of each word, and shifting by 0
// and 4 leaves columns 0, 4, 1, 5 and 2, 6, 3, 7 in the low nibbles of each byte.
//
// Scales: those of a band lie group by group, 16 rows each.
//
// A band has the bytes of its 16 rows, in another order: offsets of matrices inside an expert are
// the same as with rows one after another.
#pragma once

#include <cstddef>
#include <cstdint>

namespace moxie {

inline constexpr std::uint64_t kBandRows = 16;
inline constexpr std::uint64_t kTileColumns = 32;
inline constexpr std::uint64_t kTileBytes = kBandRows * kTileColumns / 2;

// Codes of one band: 16 rows of `row_bytes` (a multiple of 16) each, `stride` bytes apart, to
// tiles, and back to rows one after another. The two do not overlap.
void codes_to_band(const std::byte* rows, std::uint64_t stride, std::uint64_t row_bytes,
                   std::byte* band);
void codes_from_band(const std::byte* band, std::uint64_t row_bytes, std::byte* rows);
// Scales of one band: 16 rows of `groups` bytes.
void scales_to_band(const std::byte* rows, std::uint64_t stride, std::uint64_t groups,
                    std::byte* band);
void scales_from_band(const std::byte* band, std::uint64_t groups, std::byte* rows);

}  // namespace moxie

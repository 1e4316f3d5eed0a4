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
#include <cstring>

namespace moxie {

inline constexpr std::uint64_t kBandRows = 16;
inline constexpr std::uint64_t kTileColumns = 32;
inline constexpr std::uint64_t kTileBytes = kBandRows * kTileColumns / 2;
inline constexpr std::uint64_t kDwordColumns = 8;  // of one row

// The nibbles of eight columns from their order in a row, column 0 in the lowest, to a tile's, and
// back. Dword: 32 bits without sign, or a vector of them.
template <class Dword>
constexpr Dword to_tile_dword(Dword row) {
  const auto gathered = [](Dword x) {  // the low nibble of each byte, side by side
    x &= 0x0F0F0F0FU;
    x = (x | x >> 4) & 0x00FF00FFU;
    return (x | x >> 8) & 0xFFFFU;
  };
  return gathered(row) | gathered(row >> 4) << 16;
}
template <class Dword>
constexpr Dword to_row_dword(Dword tile) {
  const auto spread = [](Dword x) {
    x = (x | x << 8) & 0x00FF00FFU;
    return (x | x << 4) & 0x0F0F0F0FU;
  };
  return spread(tile & 0xFFFFU) | spread(tile >> 16) << 4;
}

// Codes of one band: 16 rows of `row_bytes` (a multiple of 16) to tiles. The two do not overlap.
void codes_to_band(const std::byte* rows, std::uint64_t row_bytes, std::byte* band);
void codes_from_band(const std::byte* band, std::uint64_t row_bytes, std::byte* rows);
// Scales of one band: 16 rows of `groups` bytes.
void scales_to_band(const std::byte* rows, std::uint64_t groups, std::byte* band);
void scales_from_band(const std::byte* band, std::uint64_t groups, std::byte* rows);

}  // namespace moxie

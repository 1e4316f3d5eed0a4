// SPDX-License-Identifier: Apache-2.0
// Activations as the tile kernels read them: one record for every 32 columns of a row.
#pragma once

#include <cstddef>
#include <cstdint>

#include "formats/band_order.hpp"

namespace moxie::cpu::tiles {

inline constexpr std::uint64_t kHalves = 2;  // of 16 columns: NVFP4 has a scale for each

// In the order of the columns.
struct Bf16Record {
  std::uint16_t values[kTileColumns];
};
struct F32Record {
  float values[kTileColumns];
};

// Where column c of a record lies among its bytes: columns 0, 4, 1, 5 and 2, 6, 3, 7 of every
// eight, as the low and the high nibbles of a tile's line come out.
constexpr std::uint64_t byte_of_column(std::uint64_t column) {
  constexpr std::uint8_t kPlaces[8] = {0, 2, 4, 6, 1, 3, 5, 7};
  return column / 8 * 8 + kPlaces[column % 8];
}
static_assert(byte_of_column(4) == 1 && byte_of_column(1) == 2 && byte_of_column(2) == 4 &&
              byte_of_column(7) == 7);

// Codes q with the value q * mul. The kernels multiply them with weights that are 12 too large, so
// that none is negative; `start` is what the sums begin with instead of 0, an instruction set's own
// form of -12 times the sum of the codes of each half.
struct Int8Record {
  std::int8_t codes[kTileColumns];
  std::int32_t start[kHalves];
  float mul;
};

// Codes (254 * high + low) with the value code * mul.
struct Int8x2Record {
  std::int8_t high[kTileColumns];
  std::int8_t low[kTileColumns];
  std::int32_t start_high[kHalves];
  std::int32_t start_low[kHalves];
  float mul;
};

}  // namespace moxie::cpu::tiles

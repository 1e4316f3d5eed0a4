// SPDX-License-Identifier: Apache-2.0
// Bands of rows to tiles and back, in vectors of the baseline instruction set: four rows at once.
#include "formats/band_order.hpp"

namespace moxie {

namespace {

using Four = std::uint32_t __attribute__((vector_size(16)));

Four load(const std::byte* from) {
  Four value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
void store(Four value, std::byte* to) { std::memcpy(to, &value, sizeof value); }

// One dword of four rows each becomes four dwords of one row each, and back.
struct Square {
  Four rows[4];

  void transpose() {
    const Four low01 = __builtin_shufflevector(rows[0], rows[1], 0, 4, 1, 5);
    const Four high01 = __builtin_shufflevector(rows[0], rows[1], 2, 6, 3, 7);
    const Four low23 = __builtin_shufflevector(rows[2], rows[3], 0, 4, 1, 5);
    const Four high23 = __builtin_shufflevector(rows[2], rows[3], 2, 6, 3, 7);
    rows[0] = __builtin_shufflevector(low01, low23, 0, 1, 4, 5);
    rows[1] = __builtin_shufflevector(low01, low23, 2, 3, 6, 7);
    rows[2] = __builtin_shufflevector(high01, high23, 0, 1, 4, 5);
    rows[3] = __builtin_shufflevector(high01, high23, 2, 3, 6, 7);
  }
};

constexpr std::uint64_t kLineBytes = kBandRows * sizeof(std::uint32_t);

}  // namespace

void codes_to_band(const std::byte* rows, std::uint64_t row_bytes, std::byte* band) {
  for (std::uint64_t at = 0; at < row_bytes; at += sizeof(Four)) {
    for (std::uint64_t row = 0; row < kBandRows; row += 4) {
      Square square;
      for (std::uint64_t r = 0; r < 4; ++r)
        square.rows[r] = load(rows + (row + r) * row_bytes + at);
      square.transpose();
      for (std::uint64_t line = 0; line < 4; ++line) {
        store(to_tile_dword(square.rows[line]),
              band + at * kBandRows + line * kLineBytes + row * sizeof(std::uint32_t));
      }
    }
  }
}

void codes_from_band(const std::byte* band, std::uint64_t row_bytes, std::byte* rows) {
  for (std::uint64_t at = 0; at < row_bytes; at += sizeof(Four)) {
    for (std::uint64_t row = 0; row < kBandRows; row += 4) {
      Square square;
      for (std::uint64_t line = 0; line < 4; ++line) {
        square.rows[line] = to_row_dword(
            load(band + at * kBandRows + line * kLineBytes + row * sizeof(std::uint32_t)));
      }
      square.transpose();
      for (std::uint64_t r = 0; r < 4; ++r)
        store(square.rows[r], rows + (row + r) * row_bytes + at);
    }
  }
}

void scales_to_band(const std::byte* rows, std::uint64_t groups, std::byte* band) {
  for (std::uint64_t group = 0; group < groups; ++group) {
    for (std::uint64_t row = 0; row < kBandRows; ++row)
      band[group * kBandRows + row] = rows[row * groups + group];
  }
}

void scales_from_band(const std::byte* band, std::uint64_t groups, std::byte* rows) {
  for (std::uint64_t row = 0; row < kBandRows; ++row) {
    for (std::uint64_t group = 0; group < groups; ++group)
      rows[row * groups + group] = band[group * kBandRows + row];
  }
}

}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// Bands of rows to tiles and back, in vectors of the baseline instruction set.
#include "formats/band_order.hpp"

#include <cstring>

namespace moxie {

namespace {

using Dwords = std::uint32_t __attribute__((vector_size(16)));
using Octets = std::uint8_t __attribute__((vector_size(16)));
constexpr std::uint64_t kVector = sizeof(Dwords);

template <class Vector>
Vector load(const std::byte* from) {
  Vector value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
template <class Vector>
void store(Vector value, std::byte* to) {
  std::memcpy(to, &value, sizeof value);
}

// One dword of four rows each becomes four dwords of one row each, and back.
struct Square {
  Dwords rows[4];

  void transpose() {
    const Dwords low01 = __builtin_shufflevector(rows[0], rows[1], 0, 4, 1, 5);
    const Dwords high01 = __builtin_shufflevector(rows[0], rows[1], 2, 6, 3, 7);
    const Dwords low23 = __builtin_shufflevector(rows[2], rows[3], 0, 4, 1, 5);
    const Dwords high23 = __builtin_shufflevector(rows[2], rows[3], 2, 6, 3, 7);
    rows[0] = __builtin_shufflevector(low01, low23, 0, 1, 4, 5);
    rows[1] = __builtin_shufflevector(low01, low23, 2, 3, 6, 7);
    rows[2] = __builtin_shufflevector(high01, high23, 0, 1, 4, 5);
    rows[3] = __builtin_shufflevector(high01, high23, 2, 3, 6, 7);
  }
};

// Exchanges the bits under `mask` with those `shift` places above them.
Dwords exchange(Dwords x, std::uint32_t mask, int shift) {
  const Dwords differ = (x ^ (x >> shift)) & mask;
  return x ^ differ ^ (differ << shift);
}
// Eight columns of a row, column 0 in the lowest nibble, to the order of a tile's dword, and back.
Dwords to_tile(Dwords row) { return exchange(exchange(row, 0x00F000F0U, 4), 0x0000FF00U, 8); }
Dwords to_row(Dwords tile) { return exchange(exchange(tile, 0x0000FF00U, 8), 0x00F000F0U, 4); }

// 16 rows of 16 bytes become 16 columns, and back.
void transpose_octets(Octets (&rows)[kBandRows]) {
  Octets other[kBandRows];
  for (int step = 0; step < 4; ++step) {
    for (std::uint64_t i = 0; i < kBandRows / 2; ++i) {
      const Octets a = rows[i];
      const Octets b = rows[i + kBandRows / 2];
      other[2 * i] =
          __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
      other[2 * i + 1] = __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29,
                                                 14, 30, 15, 31);
    }
    for (std::uint64_t i = 0; i < kBandRows; ++i) rows[i] = other[i];
  }
}

constexpr std::uint64_t kLineBytes = kBandRows * sizeof(std::uint32_t);

}  // namespace

void codes_to_band(const std::byte* rows, std::uint64_t stride, std::uint64_t row_bytes,
                   std::byte* band) {
  for (std::uint64_t at = 0; at < row_bytes; at += kVector) {
    for (std::uint64_t row = 0; row < kBandRows; row += 4) {
      Square square;
      for (std::uint64_t r = 0; r < 4; ++r)
        square.rows[r] = load<Dwords>(rows + (row + r) * stride + at);
      square.transpose();
      for (std::uint64_t line = 0; line < 4; ++line) {
        store(to_tile(square.rows[line]),
              band + at * kBandRows + line * kLineBytes + row * sizeof(std::uint32_t));
      }
    }
  }
}

void codes_from_band(const std::byte* band, std::uint64_t row_bytes, std::byte* rows) {
  for (std::uint64_t at = 0; at < row_bytes; at += kVector) {
    for (std::uint64_t row = 0; row < kBandRows; row += 4) {
      Square square;
      for (std::uint64_t line = 0; line < 4; ++line) {
        square.rows[line] = to_row(
            load<Dwords>(band + at * kBandRows + line * kLineBytes + row * sizeof(std::uint32_t)));
      }
      square.transpose();
      for (std::uint64_t r = 0; r < 4; ++r)
        store(square.rows[r], rows + (row + r) * row_bytes + at);
    }
  }
}

void scales_to_band(const std::byte* rows, std::uint64_t stride, std::uint64_t groups,
                    std::byte* band) {
  std::uint64_t group = 0;
  for (; group + kVector <= groups; group += kVector) {
    Octets square[kBandRows];
    for (std::uint64_t row = 0; row < kBandRows; ++row)
      square[row] = load<Octets>(rows + row * stride + group);
    transpose_octets(square);
    for (std::uint64_t i = 0; i < kVector; ++i) store(square[i], band + (group + i) * kBandRows);
  }
  for (; group < groups; ++group) {
    for (std::uint64_t row = 0; row < kBandRows; ++row)
      band[group * kBandRows + row] = rows[row * stride + group];
  }
}

void scales_from_band(const std::byte* band, std::uint64_t groups, std::byte* rows) {
  for (std::uint64_t row = 0; row < kBandRows; ++row) {
    for (std::uint64_t group = 0; group < groups; ++group)
      rows[row * groups + group] = band[group * kBandRows + row];
  }
}

}  // namespace moxie

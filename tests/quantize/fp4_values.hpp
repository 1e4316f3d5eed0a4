// SPDX-License-Identifier: Apache-2.0
// What the quantiser's tests share: sources, values back, and the formats' definitions once more in
// double.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "formats/bf16.hpp"
#include "moxie/quantize.hpp"

namespace moxie::test {

inline MatrixRef ref_of(const std::vector<float>& values, std::uint64_t rows, std::uint64_t cols) {
  return {
      .data = values.data(), .dtype = DType::f32, .rows = rows, .cols = cols, .row_stride = cols};
}

inline std::vector<float> gaussian(std::uint64_t count, unsigned seed, double sigma = 1) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal(0, sigma);
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(normal(random));
  return values;
}

inline unsigned fresh_seed() { return std::random_device{}(); }

// The definitions of docs/formats.md, written without the code under test.
inline double e2m1_by_definition(unsigned code) {
  constexpr double kGrid[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  return (code & 8) != 0 ? -kGrid[code & 7] : kGrid[code & 7];
}
inline double e4m3_by_definition(unsigned code) {
  const int exponent = static_cast<int>(code >> 3);
  const double mantissa = code & 7;
  return exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(1 + mantissa / 8, exponent - 7);
}
inline double scale_by_definition(BlockFormat format, unsigned code) {
  return format == BlockFormat::mxfp4 ? std::ldexp(1.0, static_cast<int>(code) - 127)
                                      : e4m3_by_definition(code);
}

// Nearest E2M1 code by distance; of two at the same distance the one whose low bit is 0.
inline unsigned nearest_e2m1(double scaled) {
  unsigned best = 0;
  double least = HUGE_VAL;
  for (unsigned code = 0; code < 8; ++code) {
    const double distance = std::abs(std::abs(scaled) - e2m1_by_definition(code));
    if (distance < least || (distance == least && code % 2 == 0)) {
      least = distance;
      best = code;
    }
  }
  return best | (std::signbit(scaled) ? 8U : 0U);
}

// Nearest UE4M3 code, 1 to 126, by distance; of two the even one.
inline unsigned nearest_scale(double value) {
  unsigned best = 1;
  double least = HUGE_VAL;
  for (unsigned code = 1; code <= 0x7E; ++code) {
    const double distance = std::abs(value - e4m3_by_definition(code));
    if (distance < least || (distance == least && code % 2 == 0)) {
      least = distance;
      best = code;
    }
  }
  return best;
}

inline unsigned code_at(const Fp4Matrix& matrix, std::uint64_t row, std::uint64_t col) {
  const unsigned byte = matrix.codes[row * (matrix.cols / 2) + col / 2];
  return col % 2 == 0 ? byte & 0xF : byte >> 4;
}
inline std::uint64_t group_of(const Fp4Matrix& matrix) {
  return matrix.format == BlockFormat::mxfp4 ? 32 : 16;
}
inline double value_at(const Fp4Matrix& matrix, std::uint64_t row, std::uint64_t col) {
  const std::uint64_t group = group_of(matrix);
  return e2m1_by_definition(code_at(matrix, row, col)) *
         scale_by_definition(matrix.format,
                             matrix.scales[row * (matrix.cols / group) + col / group]) *
         static_cast<double>(matrix.dequant_mul);
}
inline std::vector<double> values_of(const Fp4Matrix& matrix) {
  std::vector<double> values;
  for (std::uint64_t row = 0; row < matrix.rows; ++row)
    for (std::uint64_t col = 0; col < matrix.cols; ++col)
      values.push_back(value_at(matrix, row, col));
  return values;
}

}  // namespace moxie::test

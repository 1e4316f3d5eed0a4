// SPDX-License-Identifier: Apache-2.0
// FP8 matrices with their memory, from values or from a seed, and the parts that ranks take of
// them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <span>
#include <stdexcept>
#include <vector>

#include "base/checked.hpp"
#include "formats/e4m3.hpp"
#include "formats/ue8m0.hpp"
#include "kernels/ref/fp8_matrix.hpp"

namespace moxie::test {

// Values `first`, `first` + 1, ... of one axis, `real` of them; the rest of `local` is zeros.
struct Part {
  std::uint64_t first = 0;
  std::uint64_t real = 0;
  std::uint64_t local = 0;
};

// The part of a rank that owns `local` elements of an axis of `full`.
inline Part part_of(std::uint64_t full, std::uint64_t local, std::uint64_t rank) {
  const std::uint64_t first = std::min(rank * local, full);
  return {.first = first, .real = std::min(local, full - first), .local = local};
}

struct Fp8Weights {
  Fp8Weights(std::uint64_t row_count, std::uint64_t col_count, std::uint64_t tile_width)
      : rows(row_count),
        cols(col_count),
        tile(tile_width),
        codes(rows * cols),
        scales(divide_up(rows, tile) * divide_up(cols, tile)) {}

  // Values on the E4M3 grid under scales of 1.
  Fp8Weights(std::uint64_t col_count, const std::vector<double>& values)
      : Fp8Weights(values.size() / col_count, col_count, 128) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      codes[i] = encode_e4m3_sat(static_cast<float>(values[i]));
      if (decode_e4m3(codes[i]) != values[i]) throw std::invalid_argument("no E4M3 value");
    }
    std::ranges::fill(scales, kE8m0One);
  }

  [[nodiscard]] ref::Fp8Matrix view() const {
    return {.rows = rows, .cols = cols, .tile = tile, .codes = codes, .scales = scales};
  }

  [[nodiscard]] std::uint8_t& code(std::uint64_t row, std::uint64_t col) {
    return codes[row * cols + col];
  }
  [[nodiscard]] std::uint64_t scale_cols() const { return divide_up(cols, tile); }

  // Tails have codes and scales of 0x00, as in a packed set.
  [[nodiscard]] Fp8Weights row_part(const Part& part) const {
    Fp8Weights own(part.local, cols, tile);
    const auto from = static_cast<std::ptrdiff_t>(part.first);
    const auto count = static_cast<std::ptrdiff_t>(part.real);
    const auto width = static_cast<std::ptrdiff_t>(cols);
    const auto side = static_cast<std::ptrdiff_t>(tile);
    const auto scale_width = static_cast<std::ptrdiff_t>(scale_cols());
    std::copy_n(codes.begin() + from * width, count * width, own.codes.begin());
    std::copy_n(scales.begin() + from / side * scale_width, count / side * scale_width,
                own.scales.begin());
    return own;
  }
  [[nodiscard]] Fp8Weights column_part(const Part& part) const {
    Fp8Weights own(rows, part.local, tile);
    for (std::uint64_t row = 0; row < rows; ++row) {
      for (std::uint64_t i = 0; i < part.real; ++i)
        own.code(row, i) = codes[row * cols + part.first + i];
    }
    for (std::uint64_t row = 0; row < divide_up(rows, tile); ++row) {
      for (std::uint64_t i = 0; i < part.real / tile; ++i)
        own.scales[row * own.scale_cols() + i] = scales[row * scale_cols() + part.first / tile + i];
    }
    return own;
  }

  std::uint64_t rows;
  std::uint64_t cols;
  std::uint64_t tile;
  std::vector<std::uint8_t> codes;
  std::vector<std::uint8_t> scales;
};

// Every finite code, scales a factor 16 apart.
inline Fp8Weights random_fp8(std::uint64_t rows, std::uint64_t cols, std::uint64_t tile,
                             std::mt19937_64& random) {
  Fp8Weights weights(rows, cols, tile);
  for (auto& code : weights.codes) {
    do code = static_cast<std::uint8_t>(random());
    while (is_nan_e4m3(code));
  }
  for (auto& scale : weights.scales) scale = static_cast<std::uint8_t>(116 + random() % 5);
  return weights;
}

inline std::vector<double> random_values(std::uint64_t count, std::mt19937_64& random) {
  std::normal_distribution<double> normal;
  std::vector<double> values(count);
  for (double& value : values) value = normal(random);
  return values;
}

// Half of the last digit of golden values that are printed with six.
inline constexpr double kPrinted = 0.5e-6 + 1e-9;

inline void expect_near(std::span<const double> got, std::span<const double> expected,
                        double error) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], error) << i;
}

// Sums of the same terms in another order: 1e-12 of their magnitude is above 4000 roundings.
inline void expect_same_sum(std::span<const double> got, std::span<const double> expected,
                            std::span<const double> magnitude) {
  ASSERT_EQ(got.size(), expected.size());
  ASSERT_EQ(got.size(), magnitude.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(std::abs(got[i] - expected[i]) <= 1e-12 * magnitude[i])
        << i << ": " << got[i] << " for " << expected[i];
  }
}

inline void add_to(std::vector<double>& sum, std::span<const double> part) {
  if (sum.empty()) sum.resize(part.size());
  ASSERT_EQ(sum.size(), part.size());
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
}

inline bool all_zero(std::span<const double> values) {
  return std::ranges::all_of(values, [](double value) { return value == 0; });
}

}  // namespace moxie::test

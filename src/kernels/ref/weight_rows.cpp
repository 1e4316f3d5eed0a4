// SPDX-License-Identifier: Apache-2.0
// Table look-up per byte; products in pairs of columns with four independent sums.
#include "kernels/ref/weight_rows.hpp"

#include <array>
#include <cstring>
#include <limits>

#include "formats/block_format.hpp"

namespace moxie::ref {

namespace {

// The two values of every byte, even column first.
constexpr auto kValuesOfByte = [] {
  std::array<std::array<double, 2>, 256> pairs{};
  for (unsigned byte = 0; byte < 256; ++byte) {
    const auto packed = static_cast<std::uint8_t>(byte);
    for (std::uint64_t k = 0; k < 2; ++k)
      pairs[byte][k] = decode_e2m1(read_nibble(&packed, k, NibbleOrder::even_low, 2));
  }
  return pairs;
}();

// Two neighbouring columns: the vector that every x86-64 has. Loops over plain arrays do not
// vectorise well without reordering sums.
using Pair = double __attribute__((vector_size(16)));
using PairBits = std::int64_t __attribute__((vector_size(16)));

constexpr std::uint64_t kPairs = 4;  // sums that do not wait for each other
constexpr std::uint64_t kStep = 2 * kPairs;
using Sums = std::array<Pair, kPairs>;

Pair load(const double* values) {
  Pair pair;
  std::memcpy(&pair, values, sizeof pair);
  return pair;
}

Pair magnitude_of(Pair pair) {
  constexpr std::int64_t kAllButSign = std::numeric_limits<std::int64_t>::max();
  return bits_as<Pair>(bits_as<PairBits>(pair) & PairBits{kAllButSign, kAllButSign});
}

double total(const Sums& sums) {
  const Pair pair = (sums[0] + sums[2]) + (sums[1] + sums[3]);
  return pair[0] + pair[1];
}

}  // namespace

void decode_row(const Matrix& matrix, BlockFormat format, std::uint64_t row, std::uint64_t cols,
                double* weights) {
  const std::uint64_t group = scale_group(format);
  const std::uint8_t* codes = matrix.codes + row * matrix.codes_stride;
  const std::uint8_t* scales = matrix.scales + row * matrix.scales_stride;
  for (std::uint64_t first = 0; first < cols; first += group) {
    const double scale = decode_scale(format, *scales++);
    for (std::uint64_t k = first; k < first + group; k += 2) {
      const std::array<double, 2>& pair = kValuesOfByte[*codes++];
      weights[k] = pair[0] * scale;
      weights[k + 1] = pair[1] * scale;
    }
  }
}

Product product(const double* weights, const double* values, std::uint64_t count) {
  Sums sum{};
  Sums magnitude{};
  for (std::uint64_t k = 0; k < count; k += kStep) {
    for (std::uint64_t i = 0; i < kPairs; ++i) {
      const Pair term = load(weights + k + 2 * i) * load(values + k + 2 * i);
      sum[i] += term;
      magnitude[i] += magnitude_of(term);
    }
  }
  return {.sum = total(sum), .magnitude = total(magnitude)};
}

double product_sum(const double* weights, const double* values, std::uint64_t count) {
  Sums sum{};
  for (std::uint64_t k = 0; k < count; k += kStep) {
    for (std::uint64_t i = 0; i < kPairs; ++i)
      sum[i] += load(weights + k + 2 * i) * load(values + k + 2 * i);
  }
  return total(sum);
}

double product_magnitude(const double* weights, const double* values, std::uint64_t count) {
  Sums magnitude{};
  for (std::uint64_t k = 0; k < count; k += kStep) {
    for (std::uint64_t i = 0; i < kPairs; ++i)
      magnitude[i] += magnitude_of(load(weights + k + 2 * i) * load(values + k + 2 * i));
  }
  return total(magnitude);
}

}  // namespace moxie::ref

// SPDX-License-Identifier: Apache-2.0
// Table look-up per byte; eight independent sums, so that the loops vectorise without reordering.
#include "kernels/ref/weight_rows.hpp"

#include <array>
#include <cmath>

#include "formats/block_format.hpp"

namespace moxie::ref {

namespace {

// The two values of every byte, even column first.
constexpr auto kPairs = [] {
  std::array<std::array<double, 2>, 256> pairs{};
  for (unsigned byte = 0; byte < 256; ++byte) {
    const auto packed = static_cast<std::uint8_t>(byte);
    for (std::uint64_t k = 0; k < 2; ++k)
      pairs[byte][k] = decode_e2m1(read_nibble(&packed, k, NibbleOrder::even_low, 2));
  }
  return pairs;
}();

constexpr std::uint64_t kLanes = 8;
using Lanes = std::array<double, kLanes>;

double total(const Lanes& lanes) {
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
         ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
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
      const std::array<double, 2>& pair = kPairs[*codes++];
      weights[k] = pair[0] * scale;
      weights[k + 1] = pair[1] * scale;
    }
  }
}

Product product(const double* weights, const double* values, std::uint64_t count) {
  Lanes sum{};
  Lanes magnitude{};
  for (std::uint64_t k = 0; k < count; k += kLanes) {
    for (std::uint64_t lane = 0; lane < kLanes; ++lane) {
      const double term = weights[k + lane] * values[k + lane];
      sum[lane] += term;
      magnitude[lane] += std::abs(term);
    }
  }
  return {.sum = total(sum), .magnitude = total(magnitude)};
}

double product_sum(const double* weights, const double* values, std::uint64_t count) {
  Lanes sum{};
  for (std::uint64_t k = 0; k < count; k += kLanes) {
    for (std::uint64_t lane = 0; lane < kLanes; ++lane)
      sum[lane] += weights[k + lane] * values[k + lane];
  }
  return total(sum);
}

double product_magnitude(const double* weights, const double* values, std::uint64_t count) {
  Lanes magnitude{};
  for (std::uint64_t k = 0; k < count; k += kLanes) {
    for (std::uint64_t lane = 0; lane < kLanes; ++lane)
      magnitude[lane] += std::abs(weights[k + lane] * values[k + lane]);
  }
  return total(magnitude);
}

}  // namespace moxie::ref

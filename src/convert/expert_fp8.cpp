// SPDX-License-Identifier: Apache-2.0
// MXFP4 as E4M3: a tile's largest scale becomes 2^6, under which 6 is 384, and the others follow.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/checked.hpp"
#include "convert/expert.hpp"
#include "formats/e2m1.hpp"
#include "formats/e4m3.hpp"
#include "formats/nibble_order.hpp"

namespace moxie::convert {

namespace {

constexpr std::uint64_t kGroup = 32;
constexpr int kBias = 127;
constexpr int kMostExponent = 6;
constexpr int kLeastFactorExponent = -126;  // the multiplier stays a normal number

[[noreturn]] void refuse_lossy(std::string place, std::string got) {
  throw Error(
      ErrorCode::unsupported,
      {.code = "MOXIE-Q007",
       .message = "FP8 can not hold the MXFP4 values of a 128 x 128 block; the worst is at " +
                  std::move(place),
       .expected = "scales that differ by no more than 2^14 within a block",
       .got = std::move(got),
       .hint = "keep MXFP4, or use --format nvfp4"});
}

std::string place_of(std::uint64_t row, std::uint64_t group) {
  return "row " + std::to_string(row) + ", group " + std::to_string(group);
}

}  // namespace

ConvertedProjection exact_fp8(const Fp4MatrixRef& matrix) {
  const std::uint64_t groups = matrix.cols / kGroup;
  const LosslessReport report =
      check_lossless(matrix.scales, matrix.rows, groups, Granule::block, ExactWindow::e4m3_exact);
  if (report.outside > 0) {
    refuse_lossy(place_of(report.worst_row, report.worst_group),
                 std::to_string(report.outside) + " of " + std::to_string(report.groups) +
                     " groups outside, the worst by 2^" + std::to_string(report.worst_distance));
  }
  const std::uint64_t tile_cols = divide_up(matrix.cols, kFp8Tile);
  std::vector<float> factors(divide_up(matrix.rows, kFp8Tile) * tile_cols, 1.0F);
  std::vector<int> most(factors.size(), -1);
  const auto tile_of = [&](std::uint64_t row, std::uint64_t col) {
    return row / kFp8Tile * tile_cols + col / kFp8Tile;
  };
  for (std::uint64_t row = 0; row < matrix.rows; ++row) {
    for (std::uint64_t group = 0; group < groups; ++group) {
      int& largest = most[tile_of(row, group * kGroup)];
      largest = std::max<int>(largest, matrix.scales[row * groups + group]);
    }
  }
  for (std::size_t tile = 0; tile < factors.size(); ++tile) {
    const int exponent = std::max(most[tile] - kBias - kMostExponent, kLeastFactorExponent);
    factors[tile] = std::ldexp(1.0F, exponent);
  }
  ConvertedProjection result;
  result.rows = matrix.rows;
  result.codes.resize(matrix.rows * matrix.cols);
  for (std::uint64_t row = 0; row < matrix.rows; ++row) {
    for (std::uint64_t col = 0; col < matrix.cols; ++col) {
      const std::uint8_t byte = matrix.codes[(row * matrix.cols + col) / 2];
      const std::uint8_t code = col % 2 == 0 ? low_nibble(byte) : high_nibble(byte);
      const int exponent = matrix.scales[row * groups + col / kGroup] - kBias;
      const double value = std::ldexp(static_cast<double>(decode_e2m1(code)), exponent);
      const auto factor = static_cast<double>(factors[tile_of(row, col)]);
      const std::uint8_t element = encode_e4m3_sat(static_cast<float>(value / factor));
      // Scale byte 0x00 marks groups of zeros; one with other codes may be out of reach.
      if (static_cast<double>(decode_e4m3(element)) * factor != value)
        refuse_lossy(place_of(row, col / kGroup), "a value that is rounded");
      result.codes[row * matrix.cols + col] = element;
      result.stats.signal += value * value;
    }
  }
  result.scales.resize(factors.size() * sizeof(float));
  std::memcpy(result.scales.data(), factors.data(), result.scales.size());
  result.stats.elems = matrix.rows * matrix.cols;
  result.stats.blocks = factors.size();
  result.changed = 0;
  return result;
}

}  // namespace moxie::convert

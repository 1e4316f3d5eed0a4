// SPDX-License-Identifier: Apache-2.0
// MXFP4: the exponent of the scale from the exponent and mantissa bits of the group's maximum.
// Division by a power of two is exact in double, where every fp32 number and scale is normal.
#include <algorithm>
#include <array>
#include <bit>

#include "formats/ue8m0.hpp"
#include "moxie/quantize.hpp"
#include "quantize/block.hpp"
#include "quantize/quantise_rows.hpp"
#include "quantize/source_rows.hpp"

namespace moxie {

namespace {

constexpr unsigned kGroup = 32;
constexpr std::uint8_t kScaleOfZeros = 0x00;
constexpr int kBias = 127;

// amax > 0 as 2^exponent * (1 + fraction / 2^52).
struct Binary {
  int exponent = 0;
  std::uint64_t fraction = 0;
};
constexpr std::uint64_t kHalf = std::uint64_t{1} << 51;
constexpr std::uint64_t kThreeQuarters = kHalf | (std::uint64_t{1} << 50);

Binary binary_of(float amax) {
  const auto bits = std::bit_cast<std::uint64_t>(static_cast<double>(amax));
  return {static_cast<int>(bits >> 52) - 1023, bits & ((std::uint64_t{1} << 52) - 1)};
}

// 6 = 2^2 * 1.5. No logarithm and no reciprocal of 6: at 6 * 2^k they may land on the wrong side.
int scale_exponent(float amax, Mxfp4Recipe recipe) {
  const auto [exponent, fraction] = binary_of(amax);
  switch (recipe) {
    case Mxfp4Recipe::ceil:
    case Mxfp4Recipe::mse:
      return fraction > kHalf ? exponent - 1 : exponent - 2;
    case Mxfp4Recipe::even:
      return fraction >= kThreeQuarters ? exponent - 1 : exponent - 2;
    case Mxfp4Recipe::floor:
      break;
  }
  return exponent - 2;
}

std::uint8_t scale_code(float amax, Mxfp4Recipe recipe) {
  return static_cast<std::uint8_t>(
      std::clamp<int>(scale_exponent(amax, recipe) + kBias, 0, kE8m0MaxCode));
}

ScaledBlock<kGroup> scale_block(const float* values, std::uint8_t scale) {
  ScaledBlock<kGroup> block;
  block.multiplier = decode_e8m0_double(scale);
  const double inverse = 1.0 / block.multiplier;
  for (unsigned i = 0; i < kGroup; ++i)
    block.scaled[i] = static_cast<float>(static_cast<double>(values[i]) * inverse);
  return block;
}

}  // namespace

std::string_view name_of(Mxfp4Recipe recipe) {
  switch (recipe) {
    case Mxfp4Recipe::ceil:
      return "ceil";
    case Mxfp4Recipe::floor:
      return "floor";
    case Mxfp4Recipe::even:
      return "even";
    case Mxfp4Recipe::mse:
      return "mse";
  }
  return "unknown";
}

Quantised quantise_mxfp4(const MatrixRef& matrix, Mxfp4Recipe recipe) {
  require_whole_groups(matrix, BlockFormat::mxfp4);
  finite_amax(matrix);
  return quantise_rows(
      matrix, BlockFormat::mxfp4, 1.0F,
      [&](const float* values, std::uint8_t* packed, std::uint8_t& scale, QuantStats& stats) {
        const float amax = group_amax(values, kGroup);
        const auto scaled = [&](std::uint8_t byte) { return scale_block(values, byte); };
        scale = amax > 0 ? scale_code(amax, recipe) : kScaleOfZeros;
        if (recipe == Mxfp4Recipe::mse && scale > 0) {
          // Twice the scale has no value up to the maximum that this one lacks. A quarter of it
          // takes more from the maximum, at least half of it, than 31 roundings can give back.
          const std::array<std::uint8_t, 2> candidates = {scale,
                                                          static_cast<std::uint8_t>(scale - 1)};
          scale = best_scale<kGroup>(values, candidates.data(), 2, scaled);
        }
        const ScaledBlock<kGroup> block = scaled(scale);
        encode_block<kGroup>(values, block, static_cast<double>(kE2m1Max) * block.multiplier,
                             packed, stats);
      });
}

}  // namespace moxie

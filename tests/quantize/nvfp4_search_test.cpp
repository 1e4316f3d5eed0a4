// SPDX-License-Identifier: Apache-2.0
// NVFP4 scales that are searched for: which are tried, which wins, and a slow search in double.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <set>
#include <vector>

#include "moxie/quantize.hpp"
#include "quantize/fp4_values.hpp"
#include "quantize/fp8_closed.hpp"
#include "quantize/row_scalars.hpp"

namespace moxie {
namespace {

using test::code_at;
using test::e2m1_by_definition;
using test::e4m3_by_definition;
using test::gaussian;
using test::ref_of;

constexpr Nvfp4Recipe kRecipes[] = {Nvfp4Recipe::amax, Nvfp4Recipe::mse, Nvfp4Recipe::four_over_six,
                                    Nvfp4Recipe::fp8_closed};

Quantised quantise(const std::vector<float>& values, Nvfp4Options options = {},
                   std::uint64_t rows = 1) {
  return quantise_nvfp4(ref_of(values, rows, values.size() / rows), options);
}

// All products with the E2M1 codes are E4M3 numbers under exactly the scales of the closed set.
TEST(Nvfp4Search, ClosedScalesAreExactlyThoseWhoseProductsAreE4m3Numbers) {
  std::set<double> numbers;
  for (unsigned code = 0; code < 0x7F; ++code) numbers.insert(e4m3_by_definition(code));
  unsigned closed = 0;
  for (unsigned scale = 0; scale < 0x7F; ++scale) {
    bool all = scale != 0;
    for (unsigned code = 0; code < 8; ++code)
      all = all && numbers.contains(e2m1_by_definition(code) * e4m3_by_definition(scale));
    EXPECT_EQ(is_fp8_closed(static_cast<std::uint8_t>(scale)), all) << scale;
    closed += all ? 1 : 0;
    if (all && scale >= 8) {
      const double mantissa = 1 + (scale & 7) / 8.0;
      EXPECT_TRUE(mantissa == 1 || mantissa == 1.25 || mantissa == 1.5) << scale;
    }
  }
  EXPECT_EQ(closed, 3U + 12 * 3 + 1);  // subnormal; 2^-6..2^5 in threes; 64
}

TEST(Nvfp4Search, TheFastRoundingOfTheSearchIsTheEncodersRounding) {
  for (std::uint32_t bits = 0; bits < 0x42000000; bits += 997) {
    const auto value = bits_as<float>(bits);
    ASSERT_EQ(nearest_e2m1_magnitude(value), decode_e2m1(encode_e2m1(value))) << value;
  }
  for (const float middle : {.25F, .75F, 1.25F, 1.75F, 2.5F, 3.5F, 5.0F}) {
    for (const float value : {std::nextafter(middle, 0.0F), middle, std::nextafter(middle, 9.0F)})
      EXPECT_EQ(nearest_e2m1_magnitude(value), decode_e2m1(encode_e2m1(value))) << value;
  }
}

// Squared error of one block under a scale, by the definitions.
double slow_error(const float* values, unsigned scale, float global) {
  double sum = 0;
  const double unit = e4m3_by_definition(scale) * static_cast<double>(global);
  const float divisor = static_cast<float>(e4m3_by_definition(scale)) * global;
  for (unsigned i = 0; i < 16; ++i) {
    const double back = e2m1_by_definition(test::nearest_e2m1(values[i] / divisor)) * unit;
    sum += (values[i] - back) * (values[i] - back);
  }
  return sum;
}

std::vector<unsigned> slow_candidates(Nvfp4Recipe recipe, float amax, float global) {
  const bool closed = recipe == Nvfp4Recipe::fp8_closed;
  const auto limited = [&](float raw) {
    return test::nearest_scale(
        std::min(std::max(raw, closed ? 0x1p-8F : 0x1p-9F), closed ? 64.0F : 448.0F));
  };
  const unsigned centre = limited(amax / (6 * global));
  if (recipe == Nvfp4Recipe::amax) return {centre};
  if (recipe == Nvfp4Recipe::four_over_six) return {centre, limited(amax / (4 * global))};
  std::vector<unsigned> found;
  for (unsigned code = 1; code < 0x7F; ++code) {
    const double ratio = e4m3_by_definition(code) / e4m3_by_definition(centre);
    if (ratio < 0.75 || ratio > 1.75) continue;
    if (closed && !is_fp8_closed(static_cast<std::uint8_t>(code))) continue;
    found.push_back(code);
  }
  return found;
}

TEST(Nvfp4Search, EveryRecipeAgreesWithASlowOneOnRandomBlocks) {
  const unsigned seed = test::fresh_seed();
  SCOPED_TRACE(seed);
  constexpr unsigned kBlocks = 400;
  std::vector<float> values = gaussian(kBlocks * 16, seed, 0.02);
  std::mt19937 random(seed);
  // Blocks of very different size: scales over the whole range, subnormal ones among them.
  for (unsigned block = 0; block < kBlocks; ++block) {
    const float factor = std::ldexp(1.0F, -static_cast<int>(random() % 24));
    for (unsigned i = 0; i < 16; ++i) values[block * 16 + i] *= factor;
  }
  for (const Nvfp4Recipe recipe : kRecipes) {
    const Fp4Matrix matrix = quantise(values, {.recipe = recipe}, kBlocks / 4).matrix;
    std::set<unsigned> scales;
    for (unsigned block = 0; block < kBlocks; ++block) {
      const float* from = values.data() + block * 16;
      const unsigned scale = matrix.scales[block];
      scales.insert(scale);
      float amax = 0;
      for (unsigned i = 0; i < 16; ++i) amax = std::max(amax, std::abs(from[i]));
      const auto candidates = slow_candidates(recipe, amax, matrix.dequant_mul);
      double least = HUGE_VAL;
      for (const unsigned candidate : candidates)
        least = std::min(least, slow_error(from, candidate, matrix.dequant_mul));
      ASSERT_NE(std::find(candidates.begin(), candidates.end(), scale), candidates.end())
          << name_of(recipe) << block;
      ASSERT_LE(slow_error(from, scale, matrix.dequant_mul), least * (1 + 1e-12)) << block;
      const float divisor = static_cast<float>(e4m3_by_definition(scale)) * matrix.dequant_mul;
      for (unsigned i = 0; i < 16; ++i) {
        const std::uint64_t row = block / 4;
        const std::uint64_t col = (block % 4) * 16 + i;
        ASSERT_EQ(code_at(matrix, row, col), test::nearest_e2m1(from[i] / divisor)) << block;
      }
    }
    EXPECT_GT(scales.size(), recipe == Nvfp4Recipe::fp8_closed ? 20U : 50U) << name_of(recipe);
  }
}

TEST(Nvfp4Search, OnATieTheLargerScaleWins) {
  // One value v under global 1: exact with 6 * s, 4 * 1.5 s, 3 * 2 s and so on; amax's scale is 1.
  std::vector<float> values(16, 0.0F);
  values[7] = 6.0F;
  EXPECT_EQ(quantise(values, {Nvfp4Recipe::amax, 1.0F}).matrix.scales[0], 0x38);
  for (const Nvfp4Recipe recipe :
       {Nvfp4Recipe::mse, Nvfp4Recipe::four_over_six, Nvfp4Recipe::fp8_closed}) {
    const Quantised result = quantise(values, {recipe, 1.0F});
    EXPECT_EQ(result.matrix.scales[0], 0x3C) << name_of(recipe);  // 1.5
    EXPECT_EQ(code_at(result.matrix, 0, 7), 6U);                  // 4
    EXPECT_EQ(result.stats.noise, 0);
    EXPECT_EQ(result.stats.snr_db(), std::numeric_limits<double>::infinity());
  }
}

// Values that all lie on the grid of a maximum of 4, none but the maximum on that of 6.
TEST(Nvfp4Search, FourOverSixTakesWhicheverFitsTheBlock) {
  std::vector<float> values(32, 3.0F);
  values[0] = 4.0F;  // 3 is 4.5 of 6: half a step away from a code
  values[16] = 6.0F;
  const Quantised result = quantise(values, {Nvfp4Recipe::four_over_six, 1.0F});
  EXPECT_EQ(result.matrix.scales, (std::vector<std::uint8_t>{0x38, 0x3C}));
  EXPECT_EQ(code_at(result.matrix, 0, 0), 6U);
  EXPECT_EQ(result.stats.noise, 0);
}

}  // namespace
}  // namespace moxie

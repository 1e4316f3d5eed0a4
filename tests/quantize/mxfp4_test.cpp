// SPDX-License-Identifier: Apache-2.0
// MXFP4: the scale of every recipe at its boundaries, saturation, and a slow search over all
// scales.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "moxie/quantize.hpp"
#include "quantize/fp4_values.hpp"

namespace moxie {
namespace {

using test::code_at;
using test::e2m1_by_definition;
using test::ref_of;

constexpr Mxfp4Recipe kRecipes[] = {Mxfp4Recipe::ceil, Mxfp4Recipe::floor, Mxfp4Recipe::even,
                                    Mxfp4Recipe::mse};

// A group of 32 with one value.
Quantised quantise(float amax, Mxfp4Recipe recipe) {
  std::vector<float> values(32, 0.0F);
  values[13] = -amax;
  return quantise_mxfp4(ref_of(values, 1, 32), recipe);
}
int scale_of(float amax, Mxfp4Recipe recipe) { return quantise(amax, recipe).matrix.scales[0]; }
double back(float amax, Mxfp4Recipe recipe) {
  return -test::value_at(quantise(amax, recipe).matrix, 0, 13);
}

TEST(QuantiseMxfp4, Q02_ScaleBytesOfKnownMaxima) {
  for (const Mxfp4Recipe recipe : {Mxfp4Recipe::ceil, Mxfp4Recipe::floor}) {
    EXPECT_EQ(scale_of(2.7F, recipe), 126);
    EXPECT_EQ(scale_of(5.5F, recipe), 127);
    EXPECT_EQ(scale_of(1.2F, recipe), 125);
    EXPECT_EQ(scale_of(6.0F, recipe), 127);
  }
  EXPECT_EQ(scale_of(7.9F, Mxfp4Recipe::floor), 127);
  EXPECT_EQ(back(7.9F, Mxfp4Recipe::floor), 6);
  EXPECT_EQ(quantise(7.9F, Mxfp4Recipe::floor).stats.clipped_elems, 1U);
  EXPECT_EQ(scale_of(7.9F, Mxfp4Recipe::ceil), 128);
  EXPECT_EQ(quantise(7.9F, Mxfp4Recipe::ceil).stats.clipped_elems, 0U);
}

TEST(QuantiseMxfp4, Q03_TheBiasIs127) {
  for (const Mxfp4Recipe recipe : {Mxfp4Recipe::ceil, Mxfp4Recipe::floor, Mxfp4Recipe::even}) {
    EXPECT_EQ(scale_of(6.0F, recipe), 127);
    EXPECT_EQ(scale_of(3.0F, recipe), 126);
    EXPECT_EQ(scale_of(12.0F, recipe), 128);
    EXPECT_EQ(back(6.0F, recipe), 6);
  }
}

TEST(QuantiseMxfp4, pit22_CeilIsExactAtSixTimesEveryPowerOfTwo) {
  for (int k = -127; k <= 125; ++k) {
    const float amax = std::ldexp(6.0F, k);
    EXPECT_EQ(scale_of(amax, Mxfp4Recipe::ceil), k + 127) << k;
    EXPECT_EQ(scale_of(std::nextafter(amax, HUGE_VALF), Mxfp4Recipe::ceil), k + 128) << k;
    EXPECT_EQ(scale_of(std::nextafter(amax, 0.0F), Mxfp4Recipe::ceil), k + 127) << k;
    EXPECT_EQ(back(amax, Mxfp4Recipe::ceil), static_cast<double>(amax)) << k;
    // The mantissa 1.75 is where `even` goes up; 2 is where `floor` does.
    if (k == 125) continue;
    EXPECT_EQ(scale_of(std::ldexp(7.0F, k), Mxfp4Recipe::even), k + 128) << k;
    EXPECT_EQ(scale_of(std::nextafter(std::ldexp(7.0F, k), 0.0F), Mxfp4Recipe::even), k + 127) << k;
    EXPECT_EQ(scale_of(std::ldexp(8.0F, k), Mxfp4Recipe::floor), k + 128) << k;
    EXPECT_EQ(scale_of(std::nextafter(std::ldexp(8.0F, k), 0.0F), Mxfp4Recipe::floor), k + 127)
        << k;
  }
}

TEST(QuantiseMxfp4, pit23_VariantsDifferWhereTheTableSays) {
  struct Line {
    float amax;
    int floor, ceil, even;  // exponents
    double by_floor, by_ceil, by_even;
  };
  constexpr Line kTable[] = {
      {3.0F, -1, -1, -1, 3, 3, 3}, {3.2F, -1, 0, -1, 3, 3, 3}, {3.5F, -1, 0, 0, 3, 4, 4},
      {4.0F, 0, 0, 0, 4, 4, 4},    {5.0F, 0, 0, 0, 4, 4, 4},   {6.0F, 0, 0, 0, 6, 6, 6},
      {6.5F, 0, 1, 0, 6, 6, 6},    {7.0F, 0, 1, 1, 6, 8, 8},   {7.9F, 0, 1, 1, 6, 8, 8},
      {8.0F, 1, 1, 1, 8, 8, 8},
  };
  for (const Line& line : kTable) {
    EXPECT_EQ(scale_of(line.amax, Mxfp4Recipe::floor) - 127, line.floor) << line.amax;
    EXPECT_EQ(scale_of(line.amax, Mxfp4Recipe::ceil) - 127, line.ceil) << line.amax;
    EXPECT_EQ(scale_of(line.amax, Mxfp4Recipe::even) - 127, line.even) << line.amax;
    EXPECT_EQ(back(line.amax, Mxfp4Recipe::floor), line.by_floor) << line.amax;
    EXPECT_EQ(back(line.amax, Mxfp4Recipe::ceil), line.by_ceil) << line.amax;
    EXPECT_EQ(back(line.amax, Mxfp4Recipe::even), line.by_even) << line.amax;
  }
  EXPECT_EQ(name_of(Mxfp4Recipe::ceil), "ceil");
  EXPECT_EQ(name_of(Mxfp4Recipe::floor), "floor");
  EXPECT_EQ(name_of(Mxfp4Recipe::even), "even");
  EXPECT_EQ(name_of(Mxfp4Recipe::mse), "mse");
}

TEST(QuantiseMxfp4, Q01_TiesGoToTheEvenCode) {
  std::vector<float> values(32, 0.0F);
  const std::vector<float> ties = {0.25F, 0.75F, 1.25F, 1.75F, 2.5F, 3.5F, 5.0F, 6.0F};
  const std::vector<unsigned> codes = {0, 2, 2, 4, 4, 6, 6, 7};
  for (unsigned i = 0; i < 8; ++i) {
    values[2 * i] = ties[i];
    values[2 * i + 1] = -ties[i];
  }
  const Fp4Matrix matrix = quantise_mxfp4(ref_of(values, 1, 32), Mxfp4Recipe::ceil).matrix;
  ASSERT_EQ(matrix.scales[0], 127);
  for (unsigned i = 0; i < 8; ++i) {
    EXPECT_EQ(code_at(matrix, 0, 2 * i), codes[i]);
    EXPECT_EQ(code_at(matrix, 0, 2 * i + 1), codes[i] | 8);
  }
}

TEST(QuantiseMxfp4, Q04_ZerosAndTheSmallestNumbersAreFinite) {
  for (const Mxfp4Recipe recipe : kRecipes) {
    const Quantised zeros = quantise_mxfp4(ref_of(std::vector<float>(64), 2, 32), recipe);
    EXPECT_EQ(zeros.matrix.scales, std::vector<std::uint8_t>(2, 0x00));
    EXPECT_EQ(zeros.matrix.codes, std::vector<std::uint8_t>(32, 0));
    EXPECT_EQ(zeros.stats.zero_blocks, 2U);
    // 2^-127 is the least scale. A subnormal maximum is still found on its grid.
    EXPECT_EQ(scale_of(0x1p-127F, recipe), 0);
    EXPECT_EQ(back(0x1p-127F, recipe), 0x1p-127);
    const Quantised lost = quantise(std::numeric_limits<float>::denorm_min(), recipe);
    EXPECT_EQ(lost.matrix.scales[0], 0);
    EXPECT_EQ(lost.stats.underflowed_blocks, 1U);
    EXPECT_TRUE(std::isfinite(back(std::numeric_limits<float>::max(), recipe)));
  }
}

double slow_error(const float* values, int exponent) {
  double sum = 0;
  for (unsigned i = 0; i < 32; ++i) {
    const double scaled = std::ldexp(static_cast<double>(values[i]), -exponent);
    const double error =
        values[i] - std::ldexp(e2m1_by_definition(test::nearest_e2m1(scaled)), exponent);
    sum += error * error;
  }
  return sum;
}

// The search looks at two scales; nothing better exists among all others.
TEST(QuantiseMxfp4, TheSearchedScaleIsTheBestOfAllAndCodesAreNearest) {
  const unsigned seed = test::fresh_seed();
  SCOPED_TRACE(seed);
  constexpr unsigned kGroups = 300;
  std::vector<float> values = test::gaussian(kGroups * 32, seed);
  std::mt19937 random(seed);
  for (unsigned group = 0; group < kGroups; ++group) {
    // Outliers of all sizes: without them a group's maximum is three times its deviation.
    values[group * 32] *= static_cast<float>(1 + group % 12);
    const float factor = std::ldexp(1.0F, static_cast<int>(random() % 60) - 30);
    for (unsigned i = 0; i < 32; ++i) values[group * 32 + i] *= factor;
  }
  const Fp4Matrix best = quantise_mxfp4(ref_of(values, kGroups / 2, 64), Mxfp4Recipe::mse).matrix;
  const Fp4Matrix ceil = quantise_mxfp4(ref_of(values, kGroups / 2, 64), Mxfp4Recipe::ceil).matrix;
  unsigned lower = 0;
  for (unsigned group = 0; group < kGroups; ++group) {
    const float* from = values.data() + group * 32;
    const int chosen = best.scales[group] - 127;
    const double error = slow_error(from, chosen);
    for (int exponent = chosen - 6; exponent <= chosen + 6; ++exponent)
      ASSERT_LE(error, slow_error(from, exponent) * (1 + 1e-12)) << group << " " << exponent;
    lower += best.scales[group] < ceil.scales[group] ? 1 : 0;
    for (unsigned i = 0; i < 32; ++i) {
      const double scaled = std::ldexp(static_cast<double>(from[i]), -chosen);
      ASSERT_EQ(code_at(best, group / 2, group % 2 * 32 + i), test::nearest_e2m1(scaled));
    }
  }
  EXPECT_GT(lower, 0U);
  EXPECT_LT(lower, kGroups);
}

TEST(QuantiseMxfp4, OnATieTheLargerScaleWins) {
  std::vector<float> values(32, 0.0F);
  values[4] = 3.5F;  // 4 under scale 1, 3 under 1/2: half an error either way
  EXPECT_EQ(quantise_mxfp4(ref_of(values, 1, 32), Mxfp4Recipe::mse).matrix.scales[0], 127);
}

}  // namespace
}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// NVFP4: blocks worked out by hand, globals, zeros, extremes, saturation.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "moxie/quantize.hpp"
#include "quantize/fp4_values.hpp"
#include "support/refusal.hpp"

namespace moxie {
namespace {

using test::code_at;
using test::e4m3_by_definition;
using test::gaussian;
using test::ref_of;
using test::value_at;

constexpr Nvfp4Recipe kRecipes[] = {Nvfp4Recipe::amax, Nvfp4Recipe::mse, Nvfp4Recipe::four_over_six,
                                    Nvfp4Recipe::fp8_closed};

Quantised quantise(const std::vector<float>& values, Nvfp4Options options = {},
                   std::uint64_t rows = 1) {
  return quantise_nvfp4(ref_of(values, rows, values.size() / rows), options);
}

// A block whose first value is `amax`, the others smaller multiples of it.
std::vector<float> block_of(float amax) {
  std::vector<float> values(16, amax / 4);
  values[0] = amax;
  return values;
}

TEST(QuantiseNvfp4, pit19_TheGoldenBlockOfTheFormatReproduces) {
  const std::vector<float> values = {3,      -3,   2.25,    1.75, 1.25, 0.875, 0.375, 0.125,
                                     -0.125, 0.25, -0.625F, 0,    1,    -1,    0.7F,  -2.6F};
  const Quantised result = quantise(values, {.dequant_mul = 0x1p-8F});
  EXPECT_EQ(result.matrix.scales, std::vector<std::uint8_t>{0x70});
  const std::vector<std::uint8_t> expected = {0xF7, 0x66, 0x44, 0x02, 0x18, 0x0A, 0xC4, 0xF3};
  EXPECT_EQ(result.matrix.codes, expected);
  const std::vector<double> back = {3, -3, 2, 2, 1, 1, .5, 0, -0.0, .25, -.5, 0, 1, -1, .75, -3};
  EXPECT_EQ(test::values_of(result.matrix), back);
  EXPECT_EQ(result.stats.flushed_elems, 2U);  // 0.125 and -0.125
  EXPECT_EQ(result.stats.max_error, 3.0 - static_cast<double>(2.6F));
}

TEST(QuantiseNvfp4, pit18_TheDivisorIsTheRoundedScaleTimesTheGlobal) {
  const Quantised result = quantise(block_of(2.9F), {.dequant_mul = 8.17F / 2688});
  EXPECT_EQ(result.matrix.scales[0], 0x72);  // 160 for 159.0208
  EXPECT_EQ(code_at(result.matrix, 0, 0), 7U);
  EXPECT_EQ(static_cast<float>(value_at(result.matrix, 0, 0)), 2.9178572F);
  // 5.02 of the unrounded unit would be code 7; of the rounded one it is 4.989 and code 6.
  std::vector<float> values = block_of(2.9F);
  values[1] = 5.02F * (2.9F / 6);
  EXPECT_EQ(code_at(quantise(values, {.dequant_mul = 8.17F / 2688}).matrix, 0, 1), 6U);
}

// pit15
TEST(QuantiseNvfp4, Q01_TiesGoToTheEvenCodeInBothSigns) {
  const std::vector<float> magnitudes = {0.25F, 0.75F, 1.25F, 1.75F, 2.5F, 3.5F, 5.0F, 7.0F};
  const std::vector<unsigned> codes = {0, 2, 2, 4, 4, 6, 6, 7};
  std::vector<float> values = magnitudes;
  for (const float magnitude : magnitudes) values.push_back(-magnitude);
  // A seven rounds to the scale 1.125; forced down to 1 by a global that leaves no other.
  const Quantised result = quantise(values, {.dequant_mul = 1.0F / 448});
  ASSERT_EQ(result.matrix.scales[0], 0x7E);
  for (unsigned i = 0; i < 8; ++i) {
    EXPECT_EQ(code_at(result.matrix, 0, i), codes[i]) << i;
    EXPECT_EQ(code_at(result.matrix, 0, i + 8), codes[i] | 8) << i;
  }
  EXPECT_EQ(result.stats.saturated_blocks, 1U);
  EXPECT_EQ(result.stats.clipped_elems, 2U);
}

TEST(QuantiseNvfp4, pit17_NegatedValuesDifferInTheSignBitOnly) {
  const unsigned seed = test::fresh_seed();
  SCOPED_TRACE(seed);
  std::vector<float> values = gaussian(64 * 16, seed);
  values[3] = 0;
  values[5] = 1e-40F;
  std::vector<float> negated = values;
  for (float& value : negated) value = -value;
  for (const Nvfp4Recipe recipe : kRecipes) {
    const Fp4Matrix plain = quantise(values, {.recipe = recipe}).matrix;
    const Fp4Matrix other = quantise(negated, {.recipe = recipe}).matrix;
    EXPECT_EQ(plain.scales, other.scales);
    for (std::size_t i = 0; i < plain.codes.size(); ++i)
      ASSERT_EQ(plain.codes[i] ^ other.codes[i], 0x88) << i;
  }
}

TEST(QuantiseNvfp4, Q04_ZerosHaveAFiniteScaleAndZeroCodes) {
  for (const Nvfp4Recipe recipe : kRecipes) {
    const Quantised result = quantise(std::vector<float>(48, 0.0F), {.recipe = recipe});
    EXPECT_EQ(result.matrix.dequant_mul, 1.0F);
    EXPECT_EQ(result.matrix.scales, std::vector<std::uint8_t>(3, 0x38));
    EXPECT_EQ(result.matrix.codes, std::vector<std::uint8_t>(24, 0));
    EXPECT_EQ(result.stats.zero_blocks, 3U);
    EXPECT_EQ(result.stats.underflowed_blocks, 0U);
    EXPECT_TRUE(std::isnan(result.stats.snr_db()));
  }
}

TEST(QuantiseNvfp4, Q04_GlobalsWithoutAReciprocalAreRaisedOrRefused) {
  const float denormal = std::numeric_limits<float>::denorm_min();
  for (const Nvfp4Recipe recipe : kRecipes) {
    for (const float amax : {denormal, 1e-40F, 1e-36F, 0x1p-110F}) {
      const Quantised result = quantise(block_of(amax), {.recipe = recipe});
      EXPECT_EQ(result.matrix.dequant_mul, kNvfp4LeastGlobal) << amax;
      EXPECT_EQ(result.stats.raised_globals, 1U);
      EXPECT_TRUE(std::isfinite(1 / result.matrix.dequant_mul));
      EXPECT_TRUE(std::isfinite(value_at(result.matrix, 0, 0)));
    }
    const Quantised normal = quantise(block_of(1e-30F), {.recipe = recipe});
    EXPECT_EQ(normal.stats.raised_globals, 0U);
    for (const float global : {1e-40F, 0.0F, -1.0F, std::numeric_limits<float>::infinity(),
                               std::numeric_limits<float>::quiet_NaN(), 0x1p123F}) {
      test::expect_refusal(
          [&] { quantise(block_of(1.0F), {.recipe = recipe, .dequant_mul = global}); },
          ErrorCode::input, "MOXIE-Q003");
    }
  }
  // Far too small for its scale: the codes are zeros, counted, and nothing is divided by zero.
  const Quantised lost = quantise(block_of(denormal));
  EXPECT_EQ(lost.matrix.scales[0], 0x01);
  EXPECT_EQ(lost.matrix.codes, std::vector<std::uint8_t>(8, 0));
  EXPECT_EQ(lost.stats.underflowed_blocks, 1U);
  EXPECT_EQ(lost.stats.flushed_elems, 1U);  // a quarter of the least number is 0
}

TEST(QuantiseNvfp4, ExtremesOfFp32ComeBackFinite) {
  constexpr float kMost = std::numeric_limits<float>::max();
  for (const Nvfp4Recipe recipe : kRecipes) {
    const Quantised result = quantise(block_of(kMost), {.recipe = recipe});
    EXPECT_EQ(result.stats.saturated_blocks, 0U);
    EXPECT_NEAR(value_at(result.matrix, 0, 0) / static_cast<double>(kMost), 1, 1e-6);
    EXPECT_TRUE(std::isfinite(result.stats.signal) && std::isfinite(result.stats.noise));
    // The computed global is accepted when given.
    EXPECT_EQ(
        quantise(block_of(kMost), {.recipe = recipe, .dequant_mul = result.matrix.dequant_mul})
            .matrix.codes,
        result.matrix.codes);
  }
}

TEST(QuantiseNvfp4, Q05_GateAndUpShareTheGlobalOfTheLarger) {
  const std::vector<float> gate = block_of(6.0F);
  const std::vector<float> up = block_of(12.0F);
  const std::vector<MatrixRef> both = {ref_of(gate, 1, 16), ref_of(up, 1, 16)};
  const float shared = nvfp4_dequant_mul(both, Nvfp4Recipe::amax);
  EXPECT_EQ(shared, 12.0F / 2688);
  const Quantised half = quantise(gate, {.dequant_mul = shared});
  EXPECT_EQ(half.matrix.dequant_mul, shared);
  EXPECT_EQ(e4m3_by_definition(half.matrix.scales[0]), 224);
  EXPECT_EQ(code_at(half.matrix, 0, 0), 7U);
  EXPECT_NEAR(value_at(half.matrix, 0, 0), 6, 1e-6);
  const Quantised whole = quantise(up, {.dequant_mul = shared});
  EXPECT_EQ(e4m3_by_definition(whole.matrix.scales[0]), 448);
  EXPECT_EQ(whole.stats.saturated_blocks + half.stats.saturated_blocks, 0U);
  EXPECT_EQ(nvfp4_dequant_mul(both, Nvfp4Recipe::four_over_six), 12.0F / 1536);
  EXPECT_EQ(nvfp4_dequant_mul(both, Nvfp4Recipe::fp8_closed), 12.0F / 384);
  EXPECT_EQ(nvfp4_dequant_mul({}, Nvfp4Recipe::mse), 1.0F);
}

TEST(QuantiseNvfp4, Q06_AMaximumAboveTheBlocksReachNeedsAGlobalOrIsReported) {
  const Quantised exact = quantise(block_of(5376.0F));
  EXPECT_EQ(exact.matrix.dequant_mul, 2.0F);
  EXPECT_EQ(exact.matrix.scales[0], 0x7E);
  EXPECT_EQ(code_at(exact.matrix, 0, 0), 7U);
  EXPECT_EQ(value_at(exact.matrix, 0, 0), 5376);
  EXPECT_EQ(exact.stats.saturated_blocks, 0U);
  const Quantised without = quantise(block_of(5376.0F), {.dequant_mul = 1.0F});
  EXPECT_EQ(value_at(without.matrix, 0, 0), 2688);
  EXPECT_EQ(without.stats.saturated_blocks, 1U);
  EXPECT_EQ(without.stats.clipped_elems, 1U);
}

// C5
TEST(QuantiseNvfp4, pit21_SaturatedBlocksAreCountedAndNothingElseIs) {
  EXPECT_EQ(quantise(block_of(8.17F), {.dequant_mul = 0.77F / 2688}).stats.saturated_blocks, 1U);
  const unsigned seed = test::fresh_seed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(0.1F, 10.0F);
  for (int trial = 0; trial < 2000; ++trial) {
    const float amax = uniform(random);
    for (const Nvfp4Recipe recipe : kRecipes) {
      ASSERT_EQ(quantise(block_of(amax), {.recipe = recipe}).stats.saturated_blocks, 0U) << amax;
      const float reach = recipe == Nvfp4Recipe::fp8_closed ? 384 : 2688;
      const float small = amax / reach * 0.999F;
      ASSERT_EQ(quantise(block_of(amax), {recipe, small}).stats.saturated_blocks, 1U) << amax;
    }
  }
}

TEST(QuantiseNvfp4, pit20_TinyBlocksKeepTheLeastScaleAndHaveNoNan) {
  // 0x01 is 2^-9: with global 1 the unit of these blocks.
  std::vector<float> values(32, 0.0F);
  values[0] = 0.24F * 0x1p-9F;
  values[16] = 0.3F * 0x1p-9F;
  const Quantised result = quantise(values, {.dequant_mul = 1.0F});
  EXPECT_EQ(result.matrix.scales, (std::vector<std::uint8_t>{0x01, 0x01}));
  EXPECT_EQ(code_at(result.matrix, 0, 0), 0U);
  EXPECT_EQ(code_at(result.matrix, 0, 16), 1U);
  EXPECT_EQ(result.stats.underflowed_blocks, 1U);
  EXPECT_EQ(result.stats.flushed_elems, 1U);
  EXPECT_EQ(result.stats.zero_blocks, 0U);
}

TEST(QuantiseNvfp4, RecipesHaveTheNamesOfReports) {
  EXPECT_EQ(name_of(Nvfp4Recipe::amax), "amax");
  EXPECT_EQ(name_of(Nvfp4Recipe::mse), "mse");
  EXPECT_EQ(name_of(Nvfp4Recipe::four_over_six), "46");
  EXPECT_EQ(name_of(Nvfp4Recipe::fp8_closed), "fp8-closed");
}

}  // namespace
}  // namespace moxie

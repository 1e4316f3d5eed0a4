// SPDX-License-Identifier: Apache-2.0
// Activations to NVFP4: the golden blocks, scales at their ends, what is counted, and a second
// implementation.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "formats/act_quant.hpp"

namespace moxie {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Quantised {
  std::vector<float> scaled;  // code * block scale
  Nvfp4Blocks blocks;
};

Quantised quantise(const std::vector<float>& values, float g) {
  Quantised result;
  result.scaled.resize(values.size());
  quantise_nvfp4_row(values.data(), values.size(), g, result.scaled.data(), result.blocks);
  return result;
}

TEST(Nvfp4Act, pit19_TheGoldenBlock) {
  const std::vector<float> x = {3,      -3,   2.25,   1.75, 1.25, 0.875, 0.375, 0.125,
                                -0.125, 0.25, -0.625, 0,    1,    -1,    0.7F,  -2.6F};
  constexpr float kGlobal = 0x1p-8F;
  constexpr std::uint8_t kCodes[16] = {0x7, 0xF, 0x6, 0x6, 0x4, 0x4, 0x2, 0x0,
                                       0x8, 0x1, 0xA, 0x0, 0x4, 0xC, 0x3, 0xF};
  const float scale = decode_e4m3(0x70);
  const Quantised got = quantise(x, kGlobal);
  for (std::size_t i = 0; i < 16; ++i) {
    const float expected = decode_e2m1(kCodes[i]) * scale;
    EXPECT_EQ(bits_as<std::uint32_t>(got.scaled[i]), bits_as<std::uint32_t>(expected)) << i;
  }
  const std::vector<float> dequantised = {3,     -3,   2,    2, 1, 1,  0.5,  0,
                                          -0.0F, 0.25, -0.5, 0, 1, -1, 0.75, -3};
  for (std::size_t i = 0; i < 16; ++i) EXPECT_EQ(got.scaled[i] * kGlobal, dequantised[i]) << i;
}

TEST(Nvfp4Act, pit18_TheDivisorIsTheRoundedScaleTimesTheGlobal) {
  constexpr float kGlobal = 8.17F / 2688.0F;
  std::vector<float> x(16, 0.0F);
  x[3] = 2.9F;
  const Quantised got = quantise(x, kGlobal);
  EXPECT_EQ(got.scaled[3], 6 * 160.0F);
  EXPECT_FLOAT_EQ(got.scaled[3] * kGlobal, 2.9178572F);
}

TEST(Nvfp4Act, K16_TheGlobalScaleIsTheEncodersReciprocal) {
  const std::vector<float> x(16, 0.5F);
  const float global = nvfp4_global(0.5F);
  EXPECT_FLOAT_EQ(1 / global, 5376);
  const Quantised got = quantise(x, global);
  float dot = 0;
  for (const float value : got.scaled) {
    EXPECT_EQ(value, 6 * 448.0F);
    dot += value;
  }
  EXPECT_EQ(dot, 43008);
  EXPECT_FLOAT_EQ(dot * global, 8);
  EXPECT_EQ(got.blocks.saturated, 0U);
}

// Half a step of the least scale times six is the largest amax that vanishes: a tie, to even.
TEST(Nvfp4Act, pit20_ABlockTooSmallForAScaleIsZeroAndCounted) {
  constexpr float kGlobal = 0.25F;
  const float last = 6 * kGlobal * 0x1p-10F;
  for (const float amax : {last, last / 2, 1e-30F, std::numeric_limits<float>::denorm_min()}) {
    const Quantised got = quantise(std::vector<float>(16, -amax), kGlobal);
    EXPECT_EQ(got.scaled, std::vector<float>(16, 0.0F));
    for (const float value : got.scaled) EXPECT_FALSE(std::signbit(value));
    EXPECT_EQ(got.blocks.underflowed, 1U) << amax;
  }
  const Quantised kept = quantise(std::vector<float>(16, std::nextafter(last, 1.0F)), kGlobal);
  EXPECT_EQ(kept.blocks.underflowed, 0U);
  EXPECT_EQ(kept.scaled[0], 3 * 0x1p-9F);
  const Quantised zero = quantise(std::vector<float>(16, 0.0F), kGlobal);
  EXPECT_EQ(zero.blocks.underflowed, 0U) << "a block of zeros loses nothing";
  EXPECT_EQ(zero.scaled, std::vector<float>(16, 0.0F));
}

TEST(Nvfp4Act, pit21_C5_ABlockBeyondTheReachOfItsGlobalIsClippedAndCounted) {
  std::vector<float> x(16, 0.1F);
  x[7] = -8.17F;
  const Quantised small = quantise(x, 0.77F / 2688);
  EXPECT_EQ(small.blocks.saturated, 1U);
  EXPECT_FLOAT_EQ(small.scaled[7] * (0.77F / 2688), -0.77F);
  const Quantised right = quantise(x, nvfp4_global(8.17F));
  EXPECT_EQ(right.blocks.saturated, 0U);
  EXPECT_FLOAT_EQ(right.scaled[7] * nvfp4_global(8.17F), -8.17F);
  EXPECT_EQ(quantise({kInfinity}, 1).blocks.saturated, 1U);
  EXPECT_EQ(quantise({kInfinity}, 1).scaled[0], 2688.0F);
}

// C6: the scale of x clips what the activation function gives.
TEST(Nvfp4Act, C6_TheScaleOfXDoesNotServeTheValuesBeforeDown) {
  const float x_global = nvfp4_global(8.17F);
  const float act_global = nvfp4_global(286.0F);
  EXPECT_FLOAT_EQ(x_global, 0.0030394346F);
  EXPECT_FLOAT_EQ(act_global, 0.10639881F);
  const std::vector<float> act(16, 286.0F);
  EXPECT_FLOAT_EQ(quantise(act, act_global).scaled[0] * act_global, 286.0F);
  EXPECT_FLOAT_EQ(quantise(act, x_global).scaled[0] * x_global, 8.17F);
  EXPECT_EQ(quantise(act, x_global).blocks.saturated, 1U);
}

TEST(Nvfp4Act, pit24_ANanStaysOneIsCountedAndDoesNotChangeItsBlock) {
  std::vector<float> x(32, 1.0F);
  x[0] = kNan;
  x[17] = -kNan;
  x[18] = kNan;
  const Quantised got = quantise(x, nvfp4_global(1));
  EXPECT_EQ(got.blocks.not_numbers, 2U);
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (std::isnan(x[i])) {
      EXPECT_TRUE(std::isnan(got.scaled[i]));
    } else {
      EXPECT_EQ(got.scaled[i], 6 * 448.0F);
    }
  }
  const Quantised all = quantise(std::vector<float>(16, kNan), 1);
  EXPECT_EQ(all.blocks.not_numbers, 1U);
  for (const float value : all.scaled) EXPECT_TRUE(std::isnan(value));
}

// What a measured scale of any row is: in range, or recognised as none.
TEST(Nvfp4Act, Q04_EveryAmaxHasAScaleThatServesOrIsRefused) {
  for (const float unusable : {0.0F, -0.0F, -1.0F, kNan, kInfinity, -kInfinity, 1e-40F, 1e37F,
                               std::nextafter(0x1p-117F, 0.0F)})
    EXPECT_FALSE(is_act_scale(unusable)) << unusable;
  EXPECT_TRUE(is_act_scale(kNvfp4Fallback));
  for (const float end : {0x1p-117F, 0x1p116F}) {
    EXPECT_TRUE(is_act_scale(end));
    EXPECT_TRUE(std::isnormal(kE4m3MinSubnormal * end));
    EXPECT_TRUE(std::isnormal(kNvfp4Reach * end));
  }
  EXPECT_FALSE(is_act_scale(nvfp4_global(0)));
  EXPECT_FALSE(is_act_scale(nvfp4_global(kInfinity)));
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 100000; ++round) {
    const float amax = std::abs(bits_as<float>(static_cast<std::uint32_t>(random())));
    const float global = nvfp4_global(amax);
    if (!is_act_scale(global)) continue;
    std::vector<float> x(16, -amax);
    const Quantised got = quantise(x, global);
    ASSERT_EQ(got.blocks.saturated + got.blocks.underflowed, 0U) << amax;
    ASSERT_EQ(got.scaled[0], -6 * 448.0F) << amax;
  }
}

// The definition in double; every fp32 step is that of the exact quotient or product, rounded.
double nearest(double value, int mantissa_bits, int least_exponent, double most) {
  if (value == 0) return 0;
  int exponent = 0;
  std::frexp(value, &exponent);
  const double step = std::ldexp(1.0, std::max(exponent - 1, least_exponent) - mantissa_bits);
  return std::clamp(std::nearbyint(value / step) * step, -most, most);
}

TEST(Nvfp4Act, AgreesWithASlowImplementationForScalesOfAllSizes) {
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<float> exponent(-12, 4);
  const auto f32 = [](double value) { return static_cast<double>(static_cast<float>(value)); };
  for (int round = 0; round < 20000; ++round) {
    const auto g = static_cast<float>(std::ldexp(1.0 + static_cast<double>(random() % 4096) / 4096,
                                                 static_cast<int>(random() % 200) - 110));
    const std::uint64_t count = 1 + random() % 40;
    std::vector<float> x(count);
    for (float& value : x) {
      // Some lie on a midpoint of the grid of some scale.
      const float size = 2688.0F * std::exp2(exponent(random));
      value = g * (random() % 4 == 0 ? std::ldexp(1.25F, static_cast<int>(random() % 12)) : size);
      if (random() % 2 == 0) value = -value;
    }
    const Quantised got = quantise(x, g);
    for (std::uint64_t first = 0; first < count; first += 16) {
      double amax = 0;
      const std::uint64_t end = std::min(count, first + 16);
      for (std::uint64_t i = first; i < end; ++i)
        amax = std::max(amax, std::abs(static_cast<double>(x[i])));
      const double scale = nearest(f32(f32(amax / 6) / g), 3, -6, 448);
      const double divisor = f32(scale * g);
      for (std::uint64_t i = first; i < end; ++i) {
        const double code = scale == 0 ? 0 : nearest(f32(x[i] / divisor), 1, 0, 6);
        ASSERT_EQ(got.scaled[i], code * scale) << x[i] << " " << g;
      }
    }
  }
}

TEST(Nvfp4Act, RowsMayBeQuantisedInPlaceAndTheLastBlockMayBeShort) {
  std::mt19937_64 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> row(72);
  for (float& value : row) value = normal(random);
  const float g = nvfp4_global(4);
  const std::vector<float> apart = quantise(row, g).scaled;
  Nvfp4Blocks blocks;
  quantise_nvfp4_row(row.data(), row.size(), g, row.data(), blocks);
  EXPECT_EQ(row, apart);
}

}  // namespace
}  // namespace moxie

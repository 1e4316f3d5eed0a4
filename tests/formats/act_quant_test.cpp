// SPDX-License-Identifier: Apache-2.0
// Activation quantisers: scales at their boundaries, rounding, saturation, NaN, short groups, and a
// second implementation over the whole range of exponents.
#include "formats/act_quant.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace moxie {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

float above(float value) { return std::nextafter(value, kInfinity); }
float below(float value) { return std::nextafter(value, 0.0F); }

TEST(ActQuant, Fp8ScalesOfKnownMagnitudes) {
  EXPECT_EQ(fp8_scale(448.0F), 1.0F);
  EXPECT_EQ(fp8_scale(1.0F), 0x1p-8F);  // 1 / 448 lies above 2^-9
  EXPECT_EQ(fp8_scale(8.17F), 0x1p-5F);
  EXPECT_EQ(fp8_scale(286.0F), 1.0F);
  EXPECT_EQ(fp8_scale(3.5F), 0x1p-7F);
  EXPECT_EQ(fp8_scale(kInfinity), 0x1p127F);
}

// 448 * 2^k is the largest amax of its scale: nothing saturates and the largest code is used.
TEST(ActQuant, AnAmaxOf448TimesAPowerOfTwoFillsItsScaleExactly) {
  for (int k = -22; k <= 118; ++k) {
    const float amax = std::ldexp(448.0F, k);
    const float scale = std::ldexp(1.0F, k);
    EXPECT_EQ(fp8_scale(amax), scale) << k;
    EXPECT_EQ(fp8_scale(above(amax)), 2 * scale) << k;
    EXPECT_EQ(fp8_value(amax, scale), amax) << k;
    if (k > -22) {
      // The quotient of the number below may round up to a power of two, never down past it.
      EXPECT_EQ(fp8_scale(below(amax)), scale) << k;
      EXPECT_EQ(fp8_scale(above(amax / 2)), scale) << k;
    }
  }
}

TEST(ActQuant, ScalesDoNotFallBelowThatOfTheFloor) {
  // 1e-4 / 448 lies between 2^-23 and 2^-22.
  const float least = fp8_scale(1e-4F);
  EXPECT_EQ(least, 0x1p-22F);
  for (const float amax : {0.0F, 1e-30F, 5e-5F, std::numeric_limits<float>::denorm_min(), kNan})
    EXPECT_EQ(fp8_scale(amax), least) << amax;
  EXPECT_EQ(fp8_scale(std::ldexp(448.0F, -22)), least);
  EXPECT_EQ(fp8_scale(above(std::ldexp(448.0F, -22))), 2 * least);
}

TEST(ActQuant, ValuesRoundToTheEvenCodeAtTies) {
  EXPECT_EQ(fp8_value(1.0625F, 1), 1.0F);
  EXPECT_EQ(fp8_value(1.1875F, 1), 1.25F);
  EXPECT_EQ(fp8_value(-1.0625F, 1), -1.0F);
  EXPECT_EQ(fp8_value(1.0625F * 64, 64), 64.0F);
  EXPECT_EQ(fp8_value(above(1.0625F), 1), 1.125F);
  EXPECT_EQ(fp8_value(0x1p-10F, 1), 0.0F);
  EXPECT_EQ(fp8_value(above(0x1p-10F), 1), 0x1p-9F);
}

TEST(ActQuant, ValuesSaturateAndNanStaysNan) {
  EXPECT_EQ(fp8_value(1e30F, 2), 896.0F);
  EXPECT_EQ(fp8_value(-kInfinity, 2), -896.0F);
  EXPECT_TRUE(std::isnan(fp8_value(kNan, 2)));
  EXPECT_TRUE(std::isnan(bf16_value(kNan)));
  EXPECT_EQ(bf16_value(kInfinity), kInfinity);
}

TEST(ActQuant, ANanOfAGroupIsItsOwnAndDoesNotChangeTheScale) {
  std::vector<float> row(128, 0.5F);
  row[5] = kNan;
  row[9] = -7.0F;
  std::vector<float> quantised(row.size());
  quantise_row(ActFormat::fp8, row.data(), row.size(), quantised.data());
  for (std::size_t i = 0; i < row.size(); ++i) {
    if (i == 5) {
      EXPECT_TRUE(std::isnan(quantised[i]));
    } else {
      EXPECT_EQ(quantised[i], row[i]) << i;
    }
  }
  EXPECT_EQ(group_amax(row.data(), row.size()), 7.0F);
}

TEST(ActQuant, Bf16RoundsEveryValueByItself) {
  const std::vector<float> row = {1.0F, 1.00390625F, above(1.00390625F), 1.01171875F, -3e-39F};
  std::vector<float> quantised(row.size());
  quantise_row(ActFormat::bf16, row.data(), row.size(), quantised.data());
  EXPECT_EQ(quantised[0], 1.0F);
  EXPECT_EQ(quantised[1], 1.0F);        // a tie, to even
  EXPECT_EQ(quantised[2], 1.0078125F);  // just above it
  EXPECT_EQ(quantised[3], 1.015625F);   // a tie, to even
  EXPECT_NEAR(quantised[4], -3e-39F, 0x1p-134);
  EXPECT_NE(quantised[4], 0);
}

// 704 = 5 * 128 + 64, 192 = 128 + 64: the last group has a scale of its own.
TEST(ActQuant, TheLastGroupOfARowMayBeShort) {
  for (const std::uint64_t count : {1U, 64U, 127U, 128U, 129U, 192U, 704U}) {
    std::vector<float> row(count, 0.0083F);
    row[(count - 1) / 128 * 128] = 12544.0F;  // the scale of its group is 2^5
    std::vector<float> quantised(count);
    quantise_row(ActFormat::fp8, row.data(), count, quantised.data());
    for (std::uint64_t i = 0; i < count; ++i) {
      const bool last = i / 128 == (count - 1) / 128;
      if (row[i] > 1) {
        EXPECT_EQ(quantised[i], 12288.0F);  // 392 is a tie of 384 and 416
      } else if (last) {
        EXPECT_EQ(quantised[i], 0) << i;
      } else {
        EXPECT_NEAR(quantised[i], 0.0083F, 0.0083F / 16) << i;
      }
    }
  }
}

// mxfp8 is fp8 with groups of 32; the last one may be short, too.
TEST(ActQuant, Mxfp8QuantisesEvery32ColumnsAsFp8QuantisesAGroup) {
  std::mt19937_64 random(11);
  std::uniform_real_distribution<float> exponent(-20, 20);
  std::vector<float> row(32 * 5 + 16);
  for (float& value : row) value = std::exp2(exponent(random)) * (random() % 2 == 0 ? 1.0F : -1.0F);
  std::vector<float> quantised(row.size());
  quantise_row(ActFormat::mxfp8, row.data(), row.size(), quantised.data());
  for (std::size_t first = 0; first < row.size(); first += 32) {
    const std::size_t count = std::min<std::size_t>(32, row.size() - first);
    std::vector<float> group(count);
    quantise_row(ActFormat::fp8, row.data() + first, count, group.data());
    for (std::size_t i = 0; i < count; ++i) EXPECT_EQ(quantised[first + i], group[i]);
  }
}

TEST(ActQuant, RowsMayBeQuantisedInPlace) {
  std::mt19937_64 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> row(200);
  for (float& value : row) value = normal(random);
  for (const ActFormat format : {ActFormat::bf16, ActFormat::fp8, ActFormat::mxfp8}) {
    std::vector<float> apart(row.size());
    quantise_row(format, row.data(), row.size(), apart.data());
    std::vector<float> in_place = row;
    quantise_row(format, in_place.data(), in_place.size(), in_place.data());
    EXPECT_EQ(apart, in_place);
    EXPECT_NE(apart, row);
  }
}

TEST(ActQuant, Nvfp4WithoutItsGlobalScaleGivesNan) {
  float value = 1;
  quantise_row(ActFormat::nvfp4, &value, 1, &value);
  EXPECT_TRUE(std::isnan(value));
}

TEST(ActQuant, GroupsAreThoseOfTheFormats) {
  EXPECT_EQ(act_group(ActFormat::bf16), 1U);
  EXPECT_EQ(act_group(ActFormat::fp8), 128U);
  EXPECT_EQ(act_group(ActFormat::fp8x2), 128U);
  EXPECT_EQ(act_group(ActFormat::mxfp8), 32U);
  EXPECT_EQ(act_group(ActFormat::nvfp4), 16U);
  EXPECT_EQ(act_group(ActFormat::int8), 32U);
  EXPECT_EQ(act_group(ActFormat::int8x2), 32U);
}

// The definition in double with ldexp and frexp: the least k with amax / 448 <= 2^k.
double slow_scale(double amax) {
  // The quotient is one of fp32; it decides at the boundary.
  const auto ratio =
      static_cast<double>(static_cast<float>(std::max(amax, static_cast<double>(1e-4F)) / 448.0));
  int exponent = 0;
  const double fraction = std::frexp(ratio, &exponent);
  return std::ldexp(1.0, fraction == 0.5 ? exponent - 1 : exponent);
}

// Nearest of the E4M3 grid, ties to even: steps of 2^(e-3), of 2^-9 below 2^-6.
double slow_e4m3(double value) {
  if (value == 0) return 0;
  int exponent = 0;
  std::frexp(value, &exponent);
  const double step = std::ldexp(1.0, std::max(exponent - 1, -6) - 3);
  const double rounded = std::nearbyint(value / step) * step;  // to even by default
  return std::clamp(rounded, -448.0, 448.0);
}

TEST(ActQuant, Fp8AgreesWithASlowImplementationOverTheWholeRangeOfExponents) {
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 3000; ++round) {
    const std::uint64_t count = 1 + random() % 200;
    const auto top = static_cast<std::uint32_t>(random() % 255);  // largest biased exponent
    std::vector<float> row(count);
    for (float& value : row) {
      const std::uint32_t exponent = top - std::min<std::uint32_t>(top, random() % 24);
      value = std::bit_cast<float>(static_cast<std::uint32_t>(random() % 2) << 31 | exponent << 23 |
                                   (static_cast<std::uint32_t>(random()) & 0x7FFFFF));
      // Some sit on a boundary.
      if (random() % 8 == 0) value = std::ldexp(448.0F, static_cast<int>(exponent) - 140);
    }
    std::vector<float> quantised(count);
    quantise_row(ActFormat::fp8, row.data(), count, quantised.data());
    for (std::uint64_t first = 0; first < count; first += 128) {
      const std::uint64_t columns = std::min<std::uint64_t>(128, count - first);
      double amax = 0;
      for (std::uint64_t i = first; i < first + columns; ++i)
        amax = std::max(amax, std::abs(static_cast<double>(row[i])));
      const double scale = slow_scale(amax);
      std::vector<std::uint8_t> codes(columns);
      ASSERT_EQ(quantise_fp8_group(row.data() + first, columns, codes.data()), scale);
      ASSERT_LE(amax, 448 * scale);
      for (std::uint64_t i = first; i < first + columns; ++i) {
        // A value that rounds up to 2^128 becomes Inf, as in bf16.
        const auto expected = static_cast<float>(slow_e4m3(row[i] / scale) * scale);
        ASSERT_EQ(quantised[i], expected) << row[i] << " " << scale;
        ASSERT_EQ(static_cast<float>(decode_e4m3(codes[i - first]) * scale), expected);
      }
    }
  }
}

TEST(ActQuant, Bf16AgreesWithASlowImplementationOverTheWholeRangeOfExponents) {
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 200000; ++round) {
    auto bits = static_cast<std::uint32_t>(random());
    if (round % 4 == 0) bits = (bits & 0xFFFF0000) | 0x8000;  // a tie
    const auto value = std::bit_cast<float>(bits);
    if (!std::isfinite(value)) continue;
    int exponent = 0;
    std::frexp(value, &exponent);
    const double step = std::ldexp(1.0, std::max(exponent - 1, -126) - 7);
    const double expected = std::nearbyint(value / step) * step;
    const bool overflows = std::abs(expected) >= 0x1p128;
    ASSERT_EQ(bf16_value(value), overflows ? std::copysign(kInfinity, value) : expected) << value;
  }
}

}  // namespace
}  // namespace moxie

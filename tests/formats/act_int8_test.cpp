// SPDX-License-Identifier: Apache-2.0
// int8 and int8x2 activations: scales, ties, what has no codes, short groups, and a second
// implementation in double over the whole range of exponents.
#include "formats/act_int8.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
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
constexpr ActFormat kBoth[] = {ActFormat::int8, ActFormat::int8x2};

std::vector<float> quantised(ActFormat format, const std::vector<float>& row) {
  std::vector<float> result(row.size());
  quantise_row(format, row.data(), row.size(), result.data());
  return result;
}

// One group's scale and codes.
struct Group {
  float scale = 0;
  std::vector<std::int8_t> high;
  std::vector<std::int8_t> low;
};

Group group_of(const std::vector<float>& values) {
  Group group{.high = std::vector<std::int8_t>(values.size()),
              .low = std::vector<std::int8_t>(values.size())};
  group.scale =
      quantise_int8x2_group(values.data(), values.size(), group.high.data(), group.low.data());
  std::vector<std::int8_t> codes(values.size());
  const float scale = quantise_int8_group(values.data(), values.size(), codes.data());
  EXPECT_EQ(codes, group.high);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(scale), std::bit_cast<std::uint32_t>(group.scale));
  return group;
}

TEST(ActInt8, IsAConstantExpression) {
  static_assert([] {
    const float values[] = {127.0F, -3.0F, 0.25F};
    std::int8_t high[3] = {};
    std::int8_t low[3] = {};
    return quantise_int8x2_group(values, 3, high, low) == 1 && high[0] == 127 && high[1] == -3 &&
           high[2] == 0 && low[0] == 0 && low[1] == 0 && low[2] == 64;
  }());
}

TEST(ActInt8, TheNearestIntegerIsEvenAtTies) {
  for (int twice = -300; twice <= 300; ++twice) {
    const float value = static_cast<float>(twice) / 2;
    EXPECT_EQ(nearest_integer(value), std::nearbyint(value)) << value;
    for (const float end : {-kInfinity, kInfinity}) {
      const float beside = std::nextafter(value, end);
      EXPECT_EQ(nearest_integer(beside), std::nearbyint(beside)) << beside;
    }
  }
}

// 255 values of a scale of 1, and all of their halves and quarters.
TEST(ActInt8, CodesOfAScaleOfOneAreTheRoundedValues) {
  for (int quarters = -508; quarters <= 508; ++quarters) {
    const float value = static_cast<float>(quarters) / 4;
    const Group group = group_of({127.0F, value});
    EXPECT_EQ(group.scale, 1.0F);
    EXPECT_EQ(group.high[1], std::nearbyint(value)) << value;
    EXPECT_EQ(group.low[1], std::nearbyint((value - std::nearbyint(value)) * 254)) << value;
  }
  // Ties: 0.5 and 1.5 go to 0 and 2, and leave the ends of the low codes.
  EXPECT_EQ(group_of({127.0F, 0.5F}).low[1], 127);
  EXPECT_EQ(group_of({127.0F, 1.5F}).high[1], 2);
  EXPECT_EQ(group_of({127.0F, 1.5F}).low[1], -127);
  // 0.25 and -0.25 are 63.5 steps of the low code.
  EXPECT_EQ(group_of({127.0F, 0.25F}).low[1], 64);
  EXPECT_EQ(group_of({127.0F, 0.75F}).low[1], -64);
}

TEST(ActInt8, TheLargestMagnitudeIsTheLargestCodeAtEveryScale) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 200'000; ++round) {
    const std::uint32_t exponent = 34 + static_cast<std::uint32_t>(random() % 221);
    const auto amax =
        std::bit_cast<float>(exponent << 23 | (static_cast<std::uint32_t>(random()) & 0x7FFFFF));
    const float scale = int8_scale(&amax, 1);
    ASSERT_GT(scale, 0) << amax;
    ASSERT_EQ(int8_code(amax, scale), 127) << amax;
    ASSERT_EQ(int8_code(-amax, scale), -127) << amax;
    ASSERT_EQ(int8x2_low(amax, scale, 127), 0) << amax;
  }
}

TEST(ActInt8, ZerosHaveNoScale) {
  for (const float zero : {0.0F, -0.0F}) {
    const Group group = group_of(std::vector<float>(32, zero));
    EXPECT_EQ(group.scale, 0);
    EXPECT_EQ(group.high, std::vector<std::int8_t>(32, 0));
    EXPECT_EQ(group.low, std::vector<std::int8_t>(32, 0));
    for (const ActFormat format : kBoth)
      EXPECT_EQ(quantised(format, std::vector<float>(32, zero)), std::vector<float>(32, 0.0F));
  }
}

TEST(ActInt8, GroupsOfScalesBelow2ToTheMinus100AreZeros) {
  const float least = 127.0F * kInt8LeastScale;
  EXPECT_EQ(group_of({least}).scale, kInt8LeastScale);
  EXPECT_EQ(group_of({least, least / 127}).high[1], 1);
  // One number below, the quotient rounds up to the least scale; two below it does not.
  const float below = std::nextafter(std::nextafter(least, 0.0F), 0.0F);
  for (const float tiny : {below, 0x1p-126F, std::numeric_limits<float>::denorm_min()}) {
    const Group group = group_of({tiny, -tiny});
    EXPECT_EQ(group.scale, 0) << tiny;
    EXPECT_EQ(group.high, std::vector<std::int8_t>(2, 0)) << tiny;
    EXPECT_EQ(group.low, std::vector<std::int8_t>(2, 0)) << tiny;
    for (const ActFormat format : kBoth)
      EXPECT_EQ(quantised(format, {tiny, -tiny}), std::vector<float>(2, 0.0F));
  }
  // Subnormals beside a number become 0.
  EXPECT_EQ(group_of({1.0F, 0x1p-140F}).high[1], 0);
  EXPECT_EQ(group_of({1.0F, 0x1p-140F}).low[1], 0);
}

TEST(ActInt8, ANanOrAnInfMakesItsGroupNan) {
  for (const float bad : {kNan, -kNan, kInfinity, -kInfinity}) {
    for (const ActFormat format : kBoth) {
      std::vector<float> row(96, 0.5F);
      row[40] = bad;
      const std::vector<float> result = quantised(format, row);
      for (std::size_t i = 0; i < row.size(); ++i)
        EXPECT_EQ(std::isnan(result[i]), i / 32 == 1) << i;
    }
    const Group group = group_of({1.0F, bad, 0.0F});
    EXPECT_TRUE(std::isnan(group.scale));
    EXPECT_EQ(group.high, std::vector<std::int8_t>(3, 0));
    EXPECT_EQ(group.low, std::vector<std::int8_t>(3, 0));
  }
}

TEST(ActInt8, LargeNumbersKeepTheirCodes) {
  constexpr float kMost = std::numeric_limits<float>::max();
  const Group group = group_of({kMost, -kMost / 2});
  EXPECT_EQ(group.high[0], 127);
  EXPECT_EQ(group.high[1], -63);  // the scale is rounded up, and the quotient lies below 63.5
  EXPECT_TRUE(std::isfinite(group.scale));
}

// 688 = 21 * 32 + 16: the last group has a scale of its own.
TEST(ActInt8, TheLastGroupOfARowMayBeShort) {
  for (const std::size_t count : {1U, 31U, 32U, 33U, 48U, 688U}) {
    std::vector<float> row(count, 1.0F);
    row.back() = 12700.0F;  // a scale of 100
    for (const ActFormat format : kBoth) {
      const std::vector<float> result = quantised(format, row);
      for (std::size_t i = 0; i + 1 < count; ++i) {
        const bool last = i / 32 == (count - 1) / 32;
        if (!last) {
          EXPECT_EQ(result[i], 1.0F);
        } else if (format == ActFormat::int8) {
          EXPECT_EQ(result[i], 0.0F);
        } else {
          EXPECT_EQ(result[i], 100.0F * (3.0F / 254.0F));  // 2.54 steps
        }
      }
      EXPECT_EQ(result.back(), 12700.0F);
    }
  }
}

// The definition in double. A quotient that rounds to fp32 decides at ties, so it is rounded here.
struct Slow {
  double scale = 0;
  std::vector<double> high;
  std::vector<double> low;
};
Slow slow_group(const std::vector<float>& values) {
  const auto in_fp32 = [](double value) { return static_cast<double>(static_cast<float>(value)); };
  double amax = 0;
  for (const float value : values) amax = std::max(amax, std::abs(static_cast<double>(value)));
  Slow slow{.scale = in_fp32(amax / 127)};
  for (const float value : values) {
    const double high = std::nearbyint(in_fp32(value / slow.scale));
    const double rest = value - slow.scale * high;  // exact
    EXPECT_EQ(in_fp32(rest), rest);
    slow.high.push_back(high);
    slow.low.push_back(std::nearbyint(in_fp32(in_fp32(rest * 254) / slow.scale)));
  }
  return slow;
}

// Values of one group whose magnitudes lie in up to 24 binades; some lie at a tie of the scale.
std::vector<float> random_group(std::mt19937_64& random) {
  std::vector<float> values(1 + random() % 32);
  const auto top = 38 + static_cast<std::uint32_t>(random() % 216);  // largest biased exponent
  for (float& value : values) {
    const std::uint32_t exponent = top - static_cast<std::uint32_t>(random() % 24);
    value = std::bit_cast<float>(static_cast<std::uint32_t>(random() % 2) << 31 | exponent << 23 |
                                 (static_cast<std::uint32_t>(random()) & 0x7FFFFF));
  }
  const float scale = int8_scale(values.data(), values.size());
  for (std::size_t i = 0; i < values.size() / 4; ++i) {
    const float tie = scale * (static_cast<float>(random() % 126) + 0.5F);
    float& value = values[random() % values.size()];
    if (std::abs(value) > tie) value = std::nextafter(tie, random() % 2 == 0 ? 0.0F : kInfinity);
  }
  return values;
}

TEST(ActInt8, AgreesWithASlowImplementationOverTheWholeRangeOfExponents) {
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 20'000; ++round) {
    const std::vector<float> values = random_group(random);
    const Group group = group_of(values);
    if (group.scale == 0) continue;
    const Slow slow = slow_group(values);
    ASSERT_EQ(group.scale, slow.scale);
    const std::vector<float> one = quantised(ActFormat::int8, values);
    const std::vector<float> two = quantised(ActFormat::int8x2, values);
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(group.high[i], slow.high[i]) << values[i] << " " << slow.scale;
      ASSERT_EQ(group.low[i], slow.low[i]) << values[i] << " " << slow.scale;
      const double exact_one = slow.scale * slow.high[i];
      const double exact_two = slow.scale * (slow.high[i] * 254 + slow.low[i]) / 254;
      ASSERT_EQ(one[i], static_cast<float>(exact_one));
      if (std::abs(exact_two) < 0x1p127) {
        ASSERT_LE(std::abs(two[i] - exact_two), 0x1.0001p-23 * std::abs(exact_two));
      }
      ASSERT_LE(std::abs(exact_one - values[i]), slow.scale / 2 * (1 + 0x1p-15));
      ASSERT_LE(std::abs(exact_two - values[i]), slow.scale / 508 * (1 + 0x1p-15));
    }
  }
}

TEST(ActInt8, ErrorsOfNormallyDistributedRows) {
  std::mt19937_64 random(5);
  std::normal_distribution<float> normal;
  std::vector<float> row(64 * 1024);
  for (float& value : row) value = bf16_value(normal(random));
  const auto error = [&](ActFormat format) {
    const std::vector<float> result = quantised(format, row);
    double wrong = 0;
    double norm = 0;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const double difference = static_cast<double>(result[i]) - row[i];
      wrong += difference * difference;
      norm += static_cast<double>(row[i]) * row[i];
    }
    return std::sqrt(wrong / norm);
  };
  EXPECT_NEAR(error(ActFormat::int8), 5.35e-3, 1e-4);
  EXPECT_NEAR(error(ActFormat::int8x2), 2.11e-5, 4e-7);
  EXPECT_LT(error(ActFormat::fp8x2), 1e-8);
}

TEST(ActInt8, RowsMayBeQuantisedInPlace) {
  std::mt19937_64 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> row(200);
  for (float& value : row) value = normal(random);
  for (const ActFormat format : {ActFormat::int8, ActFormat::int8x2, ActFormat::fp8x2}) {
    std::vector<float> in_place = row;
    quantise_row(format, in_place.data(), in_place.size(), in_place.data());
    EXPECT_EQ(quantised(format, row), in_place);
    EXPECT_NE(in_place, row);
  }
}

}  // namespace
}  // namespace moxie

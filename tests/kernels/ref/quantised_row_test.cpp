// SPDX-License-Identifier: Apache-2.0
// The judge's intervals of quantised values: they hold whatever engines may store whose values lie
// within the radii, and little more.
#include "kernels/ref/quantised_row.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "formats/act_quant.hpp"

namespace moxie::ref {
namespace {

constexpr ActFormat kFormats[] = {ActFormat::fp8, ActFormat::mxfp8, ActFormat::fp8x2,
                                  ActFormat::int8, ActFormat::int8x2};
constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Row {
  std::vector<double> values;
  std::vector<double> radii;
  std::vector<std::uint64_t> part_starts = {0};
  std::vector<double> quantised;
  std::vector<double> least;
  std::vector<double> most;

  void quantise(ActFormat format) {
    for (auto* array : {&quantised, &least, &most}) array->assign(values.size(), 0);
    quantise_row(format, {.values = values, .radii = radii, .part_starts = part_starts},
                 {.quantised = quantised, .least = least, .most = most});
  }
};

// What codes stand for, exactly: of int8 the codes times the scale in double.
std::vector<double> engine_row(ActFormat format, const std::vector<float>& values,
                               const std::vector<std::uint64_t>& starts) {
  std::vector<double> result(values.size());
  for (std::size_t part = 0; part < starts.size(); ++part) {
    const std::uint64_t end = part + 1 < starts.size() ? starts[part + 1] : values.size();
    for (std::uint64_t first = starts[part]; first < end; first += act_group(format)) {
      const std::uint64_t count = std::min(act_group(format), end - first);
      if (format == ActFormat::int8 || format == ActFormat::int8x2) {
        std::vector<std::int8_t> high(count);
        std::vector<std::int8_t> low(count);
        const double scale =
            quantise_int8x2_group(values.data() + first, count, high.data(), low.data());
        for (std::uint64_t i = 0; i < count; ++i)
          result[first + i] = format == ActFormat::int8 ? scale * high[i]
                                                        : scale * (254.0 * high[i] + low[i]) / 254;
        continue;
      }
      std::vector<float> group(count);
      moxie::quantise_row(format, values.data() + first, count, group.data());
      std::ranges::copy(group, result.begin() + static_cast<std::ptrdiff_t>(first));
    }
  }
  return result;
}

// Rows of values whose radii are some units of their size; magnitudes around 2^exponent.
Row random_row(std::mt19937_64& random, int exponent) {
  std::normal_distribution<double> normal;
  Row row;
  const std::size_t width = 1 + random() % 200;
  if (width > 64 && random() % 2 == 0) row.part_starts = {0, 1 + random() % (width - 1)};
  const double relative = std::exp2(-static_cast<double>(8 + random() % 18));
  for (std::size_t i = 0; i < width; ++i) {
    double value = std::ldexp(normal(random), exponent - static_cast<int>(random() % 6));
    // Some are multiples of a half, near a tie of a scale that is a power of two.
    if (random() % 4 == 0)
      value = std::ldexp(std::round(std::ldexp(value, 4 - exponent)), exponent - 4);
    row.values.push_back(value);
    row.radii.push_back(std::abs(value) * relative * static_cast<double>(random() % 4));
  }
  return row;
}

TEST(QuantisedRow, IntervalsHoldEveryEngineWithinTheRadii) {
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 600; ++round) {
    // Around the least scale of int8, and elsewhere.
    const int exponent = round % 4 == 0 ? -94 : static_cast<int>(random() % 60) - 30;
    Row row = random_row(random, exponent);
    for (const ActFormat format : kFormats) {
      row.quantise(format);
      for (int engine = 0; engine < 8; ++engine) {
        std::vector<float> values(row.values.size());
        for (std::size_t i = 0; i < values.size(); ++i) {
          const double at =
              engine < 2 ? 2 * engine - 1 : static_cast<double>(random() % 2001) / 1000 - 1;
          values[i] = static_cast<float>(row.values[i] + at * row.radii[i]);
        }
        const std::vector<double> got = engine_row(format, values, row.part_starts);
        for (std::size_t i = 0; i < values.size(); ++i) {
          ASSERT_TRUE(got[i] >= row.least[i] && got[i] <= row.most[i])
              << name_of(format) << " column " << i << ": " << got[i] << " of [" << row.least[i]
              << ", " << row.most[i] << "], value " << row.values[i] << " radius " << row.radii[i];
        }
      }
    }
  }
}

TEST(QuantisedRow, TheCentreIsTheDefinitionsOwn) {
  std::mt19937_64 random(9);
  for (int round = 0; round < 200; ++round) {
    Row row = random_row(random, static_cast<int>(random() % 60) - 30);
    const std::vector<float> values(row.values.begin(), row.values.end());
    for (const ActFormat format : kFormats) {
      row.quantise(format);
      EXPECT_EQ(row.quantised, engine_row(format, values, row.part_starts)) << name_of(format);
      for (std::size_t i = 0; i < values.size(); ++i)
        EXPECT_TRUE(row.least[i] <= row.quantised[i] && row.quantised[i] <= row.most[i]);
    }
  }
}

// 2^-20 of the values: all but a few codes are certain, and scales vary by as much.
TEST(QuantisedRow, IntervalsOfInt8AreNarrowWhereNoTieIsNear) {
  std::mt19937_64 random(4);
  std::normal_distribution<double> normal;
  Row row;
  for (int i = 0; i < 3200; ++i) {
    row.values.push_back(normal(random));
    row.radii.push_back(std::abs(row.values.back()) * 0x1p-20);
  }
  for (const auto& [format, certain] :
       {std::pair{ActFormat::int8, 0.99}, {ActFormat::int8x2, 0.9}}) {
    row.quantise(format);
    std::size_t narrow = 0;
    for (std::size_t i = 0; i < row.values.size(); ++i) {
      const double spread = row.most[i] - row.least[i];
      narrow += spread <= 0x1p-18 * std::abs(row.quantised[i]) ? 1 : 0;
      EXPECT_LE(spread, 0.06) << "more than a step of the largest scale";
    }
    EXPECT_GT(static_cast<double>(narrow), certain * static_cast<double>(row.values.size()))
        << name_of(format);
  }
}

TEST(QuantisedRow, AnExactRowHasPointsForIntervals) {
  Row row{.values = {127, 3.25, -12.5, 0}, .radii = {0, 0, 0, 0}};
  row.quantise(ActFormat::int8);
  EXPECT_EQ(row.quantised, (std::vector<double>{127, 3, -12, 0}));
  EXPECT_EQ(row.least, (std::vector<double>{127, 3, -13, 0}));  // a tie: either
  EXPECT_EQ(row.most, (std::vector<double>{127, 3, -12, 0}));
  row.quantise(ActFormat::int8x2);
  EXPECT_EQ(row.quantised, (std::vector<double>{127, 3 + 64.0 / 254, -12.5, 0}));
  EXPECT_EQ(row.least[1], 3 + 63.0 / 254);  // 63.5, a tie
  EXPECT_EQ(row.most[1], row.quantised[1]);
}

TEST(QuantisedRow, AGroupOfInt8WithoutBoundsOrNumbersHasNone) {
  for (const ActFormat format : {ActFormat::int8, ActFormat::int8x2}) {
    Row row;
    row.values.assign(96, 1.0);
    row.radii.assign(96, 0.0);
    row.values[3] = std::numeric_limits<double>::quiet_NaN();
    row.radii[40] = kInfinity;
    row.quantise(format);
    for (std::size_t i = 0; i < 96; ++i) {
      if (i < 32) {
        EXPECT_TRUE(std::isnan(row.quantised[i]) && std::isnan(row.least[i]) &&
                    std::isnan(row.most[i]));
      } else {
        EXPECT_NEAR(row.quantised[i], 1, 1e-6);
        EXPECT_EQ(row.least[i] == -kInfinity, i < 64);
        EXPECT_EQ(row.most[i] == kInfinity, i < 64);
      }
    }
  }
}

TEST(QuantisedRow, AScaleThatMayBeZeroAllowsZeros) {
  const double amax = 127 * static_cast<double>(kInt8LeastScale);
  Row row{.values = {amax, amax / 2}, .radii = {amax / 1024, 0}};
  for (const ActFormat format : {ActFormat::int8, ActFormat::int8x2}) {
    row.quantise(format);
    EXPECT_EQ(row.least, (std::vector<double>{0, 0}));
    EXPECT_GT(row.most[1], amax / 2.1);
  }
  row = {.values = {amax / 2, 0}, .radii = {amax / 1024, 0}};
  row.quantise(ActFormat::int8);
  EXPECT_EQ(row.least, (std::vector<double>{0, 0}));
  EXPECT_EQ(row.most, (std::vector<double>{0, 0}));
}

TEST(QuantisedRow, RowsOfXAreExactInDouble) {
  std::mt19937_64 random(6);
  std::normal_distribution<float> normal;
  std::vector<float> x(80);
  for (float& value : x) value = normal(random);
  std::vector<double> got(x.size());
  for (const ActFormat format : {ActFormat::int8, ActFormat::int8x2}) {
    quantise_int8(format, x, got.data());
    EXPECT_EQ(got, engine_row(format, x, {0}));
  }
}

}  // namespace
}  // namespace moxie::ref

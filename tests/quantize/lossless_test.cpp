// SPDX-License-Identifier: Apache-2.0
// FP4 in FP8: the windows proved by enumeration, counts on small matrices, and a slow search.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <set>
#include <vector>

#include "moxie/quantize.hpp"
#include "quantize/fp4_values.hpp"
#include "support/refusal.hpp"

namespace moxie {
namespace {

// Non-negative numbers of an FP8 type by its definition, without Inf and NaN.
std::set<double> numbers_of(int mantissa_bits, int bias, unsigned last_code, bool with_subnormals) {
  std::set<double> numbers = {0};
  const unsigned steps = 1U << mantissa_bits;
  for (unsigned code = 0; code <= last_code; ++code) {
    const int exponent = static_cast<int>(code / steps);
    const double fraction = static_cast<double>(code % steps) / steps;
    if (exponent > 0) {
      numbers.insert(std::ldexp(1 + fraction, exponent - bias));
    } else if (with_subnormals) {
      numbers.insert(std::ldexp(fraction, 1 - bias));
    }
  }
  return numbers;
}

std::set<double> numbers_of(ExactWindow window) {
  switch (window) {
    case ExactWindow::e4m3_normal:
      return numbers_of(3, 7, 0x7E, false);
    case ExactWindow::e4m3_exact:
      return numbers_of(3, 7, 0x7E, true);
    case ExactWindow::e5m2_normal:
      return numbers_of(2, 15, 0x7B, false);
    case ExactWindow::e5m2_exact:
      return numbers_of(2, 15, 0x7B, true);
    case ExactWindow::f16_exact:
      break;
  }
  return numbers_of(10, 15, 0x7BFF, true);
}

constexpr ExactWindow kWindows[] = {ExactWindow::e4m3_normal, ExactWindow::e4m3_exact,
                                    ExactWindow::e5m2_normal, ExactWindow::e5m2_exact,
                                    ExactWindow::f16_exact};

TEST(Lossless, InsideAWindowAllProductsAreFp8NumbersAndOneStepOutsideNotAll) {
  const std::vector<int> widths = {12, 15, 27, 29, 37};
  for (std::size_t i = 0; i < widths.size(); ++i) {
    const std::set<double> numbers = numbers_of(kWindows[i]);
    const ExponentRange range = exponents_of(kWindows[i]);
    EXPECT_EQ(range.most - range.least + 1, widths[i]);
    for (int exponent = -40; exponent <= 40; ++exponent) {
      unsigned lost = 0;
      for (unsigned code = 0; code < 16; ++code) {
        const double value = std::ldexp(test::e2m1_by_definition(code), exponent);
        lost += numbers.contains(std::abs(value)) ? 0 : 1;
      }
      EXPECT_EQ(lost == 0, exponent >= range.least && exponent <= range.most) << exponent;
    }
  }
}

LosslessReport check(const std::vector<std::uint8_t>& scales, std::uint64_t rows, Granule granule,
                     ExactWindow window = ExactWindow::e4m3_normal) {
  return check_lossless(scales.data(), rows, scales.size() / rows, granule, window);
}

TEST(Lossless, AWindowsWidthIsInsideAndOneMoreIsOutside) {
  for (const ExactWindow window : kWindows) {
    const ExponentRange range = exponents_of(window);
    const int width = range.most - range.least + 1;
    for (int low = 1; low + width <= 254; ++low) {
      const auto first = static_cast<std::uint8_t>(low);
      const auto last = static_cast<std::uint8_t>(low + width - 1);
      EXPECT_EQ(check({first, last, last}, 1, Granule::row, window).outside, 0U);
      const auto beyond = static_cast<std::uint8_t>(low + width);
      const LosslessReport report = check({first, beyond, first}, 1, Granule::row, window);
      EXPECT_EQ(report.groups, 3U);
      EXPECT_EQ(report.outside, 1U);
      EXPECT_EQ(report.worst_group, 1U);
      EXPECT_EQ(report.worst_distance, 1);
    }
  }
}

TEST(Lossless, GranulesHaveAFactorEach) {
  // Row 0 around 100, row 1 around 120: apart they fit, together one row is outside.
  const std::vector<std::uint8_t> scales = {100, 101, 102, 120, 121, 122};
  EXPECT_EQ(check(scales, 2, Granule::row).outside, 0U);
  const LosslessReport whole = check(scales, 2, Granule::whole);
  EXPECT_EQ(whole.outside, 3U);
  // Of equal factors the upper one: row 0 is outside, its first group furthest from 111.
  EXPECT_EQ(whole.worst_row, 0U);
  EXPECT_EQ(whole.worst_group, 0U);
  EXPECT_EQ(whole.worst_distance, 11);

  // 130 rows of 5 groups: blocks end at row 128 and group 4.
  std::vector<std::uint8_t> blocks(130 * 5, 100);
  for (unsigned row = 0; row < 130; ++row) {
    for (unsigned group = 0; group < 5; ++group)
      blocks[row * 5 + group] =
          static_cast<std::uint8_t>(100 + 40 * (row / 128) + 20 * (group / 4));
  }
  EXPECT_EQ(check(blocks, 130, Granule::block).outside, 0U);
  EXPECT_EQ(check(blocks, 130, Granule::row).outside, 130U);
  EXPECT_EQ(check(blocks, 130, Granule::whole).outside, 130U * 5 - 128 * 4);
  blocks[127 * 5 + 3] = 80;
  const LosslessReport report = check(blocks, 130, Granule::block);
  EXPECT_EQ(report.outside, 1U);
  EXPECT_EQ(report.worst_row, 127U);
  EXPECT_EQ(report.worst_group, 3U);
  EXPECT_EQ(report.worst_distance,
            9);  // 80..100 is 21 exponents, the window 12
}

TEST(Lossless, ZerosDoNotCountAndNanIsRefused) {
  const LosslessReport report = check({0x00, 127, 0x00, 126}, 2, Granule::whole);
  EXPECT_EQ(report.groups, 2U);
  EXPECT_EQ(report.outside, 0U);
  EXPECT_EQ(check({0, 0}, 1, Granule::row).groups, 0U);
  EXPECT_EQ(check_lossless(nullptr, 0, 0, Granule::whole, ExactWindow::e4m3_exact).groups, 0U);
  test::expect_refusal([] { check({127, 0xFF}, 1, Granule::row); }, ErrorCode::input, "MOXIE-Q002");
}

// Every factor is tried.
std::uint64_t slow_outside(const std::vector<std::uint8_t>& scales, std::uint64_t rows,
                           std::uint64_t row_step, std::uint64_t group_step, ExactWindow window) {
  const std::uint64_t groups = scales.size() / rows;
  const ExponentRange range = exponents_of(window);
  std::uint64_t total = 0;
  for (std::uint64_t row0 = 0; row0 < rows; row0 += row_step) {
    for (std::uint64_t group0 = 0; group0 < groups; group0 += group_step) {
      std::uint64_t least = scales.size();
      for (int factor = -300; factor <= 300; ++factor) {
        std::uint64_t outside = 0;
        for (std::uint64_t row = row0; row < std::min(rows, row0 + row_step); ++row) {
          for (std::uint64_t group = group0; group < std::min(groups, group0 + group_step);
               ++group) {
            const int scale = scales[row * groups + group];
            const int exponent = scale - 127 + factor;
            outside += scale != 0 && (exponent < range.least || exponent > range.most) ? 1 : 0;
          }
        }
        least = std::min(least, outside);
      }
      total += least;
    }
  }
  return total;
}

TEST(Lossless, CountsAreThoseOfASearchOverAllFactors) {
  const unsigned seed = test::fresh_seed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (const double sigma : {3.0, 12.0, 60.0}) {
    std::normal_distribution<double> normal(120, sigma);
    std::vector<std::uint8_t> scales(140 * 9);
    for (std::uint8_t& scale : scales)
      scale = static_cast<std::uint8_t>(std::clamp(normal(random), 0.0, 254.0));
    for (const ExactWindow window : kWindows) {
      EXPECT_EQ(check(scales, 140, Granule::row, window).outside,
                slow_outside(scales, 140, 1, 9, window));
      EXPECT_EQ(check(scales, 140, Granule::block, window).outside,
                slow_outside(scales, 140, 128, 4, window));
      EXPECT_EQ(check(scales, 140, Granule::whole, window).outside,
                slow_outside(scales, 140, 140, 9, window));
    }
  }
}

}  // namespace
}  // namespace moxie

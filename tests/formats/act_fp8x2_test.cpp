// SPDX-License-Identifier: Apache-2.0
// fp8x2 activations: scales at their boundaries, exactness, bounds of the error, NaN and Inf, and a
// second implementation in double.
#include <gtest/gtest.h>

#include <algorithm>
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

float above(float value) { return std::nextafter(value, kInfinity); }
float below(float value) { return std::nextafter(value, 0.0F); }

TEST(ActFp8x2, AnAmaxOf240TimesAPowerOfTwoFillsItsScaleExactly) {
  for (int k = -21; k <= 119; ++k) {
    const float amax = std::ldexp(240.0F, k);
    const float scale = std::ldexp(1.0F, k);
    EXPECT_EQ(fp8x2_scale(amax), scale) << k;
    EXPECT_EQ(fp8x2_scale(above(amax)), 2 * scale) << k;
    if (k > -21) {
      EXPECT_EQ(fp8x2_scale(below(amax)), scale) << k;
    }
    EXPECT_EQ(fp8x2_value(amax, scale), amax) << k;
  }
  for (const float amax : {0.0F, 1e-30F, 1e-4F, kNan}) EXPECT_EQ(fp8x2_scale(amax), 0x1p-21F);
}

TEST(ActFp8x2, TheLowCodeIsTheRemainderIn32nds) {
  const auto codes = [](float value) {
    const Fp8Pair pair = fp8x2_codes(value, 1.0F);
    return std::pair(decode_e4m3(pair.high), decode_e4m3(pair.low));
  };
  EXPECT_EQ(codes(1.0F), std::pair(1.0F, 0.0F));
  EXPECT_EQ(codes(1.0625F), std::pair(1.0F, 2.0F));  // a tie of the high code, to even
  EXPECT_EQ(codes(1.1875F), std::pair(1.25F, -2.0F));
  EXPECT_EQ(codes(-1.0625F), std::pair(-1.0F, -2.0F));
  EXPECT_EQ(codes(232.0F), std::pair(224.0F, 256.0F));  // the largest remainder
  EXPECT_EQ(codes(0x1p-10F), std::pair(0.0F, 0x1p-5F));
  EXPECT_EQ(codes(0x1p-15F), std::pair(0.0F, 0.0F));  // a tie of the low code
  EXPECT_EQ(codes(above(0x1p-15F)), std::pair(0.0F, 0x1p-9F));
}

// Every bf16 value from 2^-7 of the scale to 240 times it.
TEST(ActFp8x2, KeepsBf16ValuesOfNormalSpread) {
  for (const int k : {-21, -7, 0, 100}) {
    const float scale = std::ldexp(1.0F, k);
    const std::uint16_t first = encode_bf16(std::ldexp(1.0F, k - 7));
    const std::uint16_t last = encode_bf16(std::ldexp(240.0F, k));
    for (std::uint32_t bits = first; bits <= last; ++bits) {
      const float value = decode_bf16(static_cast<std::uint16_t>(bits));
      ASSERT_EQ(fp8x2_value(value, scale), value);
      ASSERT_EQ(fp8x2_value(-value, scale), -value);
    }
    EXPECT_EQ(fp8x2_value(0, scale), 0);
  }
}

TEST(ActFp8x2, NanAndInfBecomeWhatTheyDoInFp8) {
  std::vector<float> row(256, 0.5F);
  row[5] = kNan;
  row[9] = -7.0F;
  row[130] = -kInfinity;
  row[131] = kInfinity;
  std::vector<float> quantised(row.size());
  quantise_row(ActFormat::fp8x2, row.data(), row.size(), quantised.data());
  for (std::size_t i = 0; i < row.size(); ++i) {
    if (i == 5) {
      EXPECT_TRUE(std::isnan(quantised[i]));
    } else if (i < 128 || i == 130 || i == 131) {
      EXPECT_EQ(quantised[i], row[i]) << i;
    } else {
      EXPECT_EQ(quantised[i], 0) << i;
    }
  }
  const Fp8Pair nan = fp8x2_codes(kNan, 1);
  EXPECT_TRUE(is_nan_e4m3(nan.high) && is_nan_e4m3(nan.low));
}

TEST(ActFp8x2, TheLastGroupOfARowMayBeShort) {
  for (const std::size_t count : {1U, 127U, 128U, 129U, 192U, 704U}) {
    std::vector<float> row(count, 0x1.01p-20F);
    row[(count - 1) / 128 * 128] = 240.0F;
    std::vector<float> quantised(count);
    quantise_row(ActFormat::fp8x2, row.data(), count, quantised.data());
    for (std::size_t i = 0; i < count; ++i) {
      const bool flushed = i / 128 == (count - 1) / 128 && i % 128 != 0;
      EXPECT_EQ(quantised[i], flushed ? 0.0F : row[i]) << i;
    }
  }
}

// Nearest of the E4M3 grid, ties to even.
double slow_e4m3(double value) {
  if (value == 0) return 0;
  int exponent = 0;
  std::frexp(value, &exponent);
  const double step = std::ldexp(1.0, std::max(exponent - 1, -6) - 3);
  return std::clamp(std::nearbyint(value / step) * step, -448.0, 448.0);
}

TEST(ActFp8x2, AgreesWithASlowImplementationOverTheWholeRangeOfExponents) {
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 5000; ++round) {
    const std::size_t count = 1 + random() % 128;
    const auto top = static_cast<std::uint32_t>(random() % 255);
    std::vector<float> row(count);
    double amax = 0;
    for (float& value : row) {
      const std::uint32_t exponent = top - std::min<std::uint32_t>(top, random() % 24);
      value = std::bit_cast<float>(static_cast<std::uint32_t>(random() % 2) << 31 | exponent << 23 |
                                   (static_cast<std::uint32_t>(random()) & 0x7FFFFF));
      amax = std::max(amax, std::abs(static_cast<double>(value)));
    }
    std::vector<std::uint8_t> high(count);
    std::vector<std::uint8_t> low(count);
    const double scale = quantise_fp8x2_group(row.data(), count, high.data(), low.data());
    // The least power of two under which the largest magnitude is at most 240.
    ASSERT_LE(amax, 240 * scale * (1 + 0x1p-24));
    if (scale > 0x1p-21) {
      ASSERT_GT(amax, 120 * scale);
    }
    std::vector<float> quantised(count);
    quantise_row(ActFormat::fp8x2, row.data(), count, quantised.data());
    for (std::size_t i = 0; i < count; ++i) {
      const double exact = row[i] / scale;
      const double high_value = slow_e4m3(exact);
      const double low_value = slow_e4m3((exact - high_value) * 32);
      ASSERT_EQ(decode_e4m3(high[i]), high_value) << row[i];
      ASSERT_EQ(decode_e4m3(low[i]), low_value) << row[i];
      const double value = (high_value + low_value / 32) * scale;
      ASSERT_EQ(quantised[i], static_cast<float>(value)) << row[i];
      const double own = row[i] == 0 ? 0 : std::ldexp(1.0, std::ilogb(row[i]));
      ASSERT_LE(std::abs(value - row[i]), std::max(0x1p-9 * own, 0x1p-15 * scale)) << row[i];
    }
  }
}

}  // namespace
}  // namespace moxie

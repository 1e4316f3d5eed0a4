// SPDX-License-Identifier: Apache-2.0
// exp, tanh and log1p in fp32 against the library's in long double.
#include "formats/elementary.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

namespace moxie {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Error in units in the last place of the exact value, as fp32.
double ulps(float got, long double exact) {
  int exponent = 0;
  std::frexp(static_cast<double>(exact), &exponent);
  return static_cast<double>(std::fabs(static_cast<long double>(got) - exact)) /
         std::ldexp(1.0, std::max(exponent - 24, -149));
}

TEST(Elementary, ExpIsRoundedToNearestButForASliverOfAUnit) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  double worst = 0;
  for (int i = 0; i < 400'000; ++i) {
    const float x = std::uniform_real_distribution<float>(-103.9F, 88.72F)(random);
    worst = std::max(worst, ulps(exp_f32(x), std::exp(static_cast<long double>(x))));
    const float small = std::ldexp(x, -static_cast<int>(random() % 40));
    worst = std::max(worst, ulps(exp_f32(small), std::exp(static_cast<long double>(small))));
  }
  EXPECT_TRUE(worst <= 0.5 + 0x1p-16) << worst;
}

TEST(Elementary, ExpKeepsItsEdges) {
  EXPECT_EQ(exp_f32(0.0F), 1.0F);
  EXPECT_EQ(exp_f32(-0.0F), 1.0F);
  EXPECT_EQ(exp_f32(kInfinity), kInfinity);
  EXPECT_EQ(exp_f32(-kInfinity), 0.0F);
  EXPECT_EQ(exp_f32(1e30F), kInfinity);
  EXPECT_EQ(exp_f32(-1e30F), 0.0F);
  EXPECT_TRUE(std::isnan(exp_f32(std::nanf(""))));
  for (const float x : {88.722F, 88.7228F, 88.72284F, 88.73F, 88.99F, 89.01F, -87.4F, -103.2F,
                        -103.9F, -103.98F, -104.5F, -105.5F})
    EXPECT_EQ(exp_f32(x), static_cast<float>(std::exp(static_cast<double>(x)))) << x;
}

TEST(Elementary, TanhIsRoundedToNearestButForASliverOfAUnit) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  double worst = 0;
  for (int i = 0; i < 400'000; ++i) {
    const float x = std::ldexp(std::uniform_real_distribution<float>(-12.0F, 12.0F)(random),
                               -static_cast<int>(random() % 30));
    worst = std::max(worst, ulps(tanh_f32(x), std::tanh(static_cast<long double>(x))));
  }
  EXPECT_TRUE(worst <= 0.5 + 0x1p-13) << worst;
  EXPECT_EQ(tanh_f32(kInfinity), 1.0F);
  EXPECT_EQ(tanh_f32(-kInfinity), -1.0F);
  EXPECT_TRUE(std::isnan(tanh_f32(std::nanf(""))));
  EXPECT_TRUE(std::signbit(tanh_f32(-0.0F)));
}

TEST(Elementary, Log1pIsRoundedToNearestButForASliverOfAUnit) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  double worst = 0;
  for (int i = 0; i < 400'000; ++i) {
    const float y = std::ldexp(std::uniform_real_distribution<float>(0.0F, 1.0F)(random),
                               -static_cast<int>(random() % 140));
    worst = std::max(worst, ulps(log1p_f32(y), std::log1p(static_cast<long double>(y))));
  }
  EXPECT_TRUE(worst <= 0.5 + 0x1p-16) << worst;
  EXPECT_EQ(log1p_f32(0.0F), 0.0F);
  EXPECT_EQ(log1p_f32(1.0F), static_cast<float>(std::log(2.0)));
}

}  // namespace
}  // namespace moxie

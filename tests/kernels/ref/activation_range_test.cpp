// SPDX-License-Identifier: Apache-2.0
// Activation functions: the table of the models, what clamps do with NaN, and intervals that hold.
#include "kernels/ref/activation_range.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <utility>

#include "kernels/ref/reference.hpp"

namespace moxie::ref {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr ActivationFunction kSilu = {.kind = Activation::silu};
constexpr ActivationFunction kClamped = {.kind = Activation::clamped_swiglu, .limit = 10};

// K-03 and pit46: the gate is clamped from above only, and before the sigmoid.
TEST(ActivationRange, pit46_K03_ReproducesTheTableOfTheModels) {
  EXPECT_NEAR(activate(kClamped, 12, -15), -99.995460, 1e-6);
  EXPECT_NEAR(activate(kClamped, -12, 3), -0.000221, 1e-6);
  EXPECT_NEAR(activate(kClamped, -12, 1), -7.3730e-5, 1e-9);
  EXPECT_NEAR(activate(kClamped, 15, -15), -99.995460, 1e-6);
  EXPECT_NEAR(activate(kSilu, 1, 2), 1.462117, 1e-6);
  EXPECT_NEAR(activate(kSilu, 2, 3), 5.284782, 1e-6);
  EXPECT_NEAR(activate(kSilu, 12, -15), -179.998894, 1e-6);
  EXPECT_NEAR(activate(kSilu, -1.2784645427610738, 1), -0.2784645427610738, 1e-15);
}

TEST(ActivationRange, pit46_K03_ReproducesTheOtherFunctionsOfTheTable) {
  const ActivationFunction oai{.kind = Activation::oai_swiglu, .limit = 7};
  EXPECT_NEAR(activate(oai, 8, -9), -41.999719, 1e-6);
  EXPECT_NEAR(activate(oai, -9, 2), -6.0095e-6, 1e-10);
  EXPECT_NEAR(activate(oai, 1, 2), 2.537387, 1e-6);
  EXPECT_NEAR(activate({.kind = Activation::situ}, 2, 3), 4.861067, 1e-6);
  EXPECT_EQ(activate({.kind = Activation::relu2}, 0, -1.5), 0);
  EXPECT_EQ(activate({.kind = Activation::relu2}, 0, 3), 9);
  // gelu_tanh(1) = 0.841192, gelu_tanh(-3) = -0.00363739.
  EXPECT_NEAR(activate({.kind = Activation::gelu_tanh}, 1, 2), 2 * 0.8411919906, 1e-9);
  EXPECT_NEAR(activate({.kind = Activation::gelu_tanh}, -3, 1), -0.0036373920, 1e-9);
}

// The bound over an interval relies on it: a gate's factor falls to its only minimum and rises from
// there.
TEST(ActivationRange, EveryGateFactorHasOneMinimum) {
  for (const Activation kind :
       {Activation::silu, Activation::oai_swiglu, Activation::situ, Activation::gelu_tanh}) {
    const ActivationFunction function{.kind = kind, .limit = 1e9};
    double last = activate(function, -60, 1);
    int turns = 0;
    bool falling = true;
    for (int i = -60'000 + 1; i <= 60'000; ++i) {
      const double value = activate(function, i * 1e-3, 1);
      if (falling && value > last) {
        falling = false;
        ++turns;
      }
      EXPECT_FALSE(!falling && value < last) << name_of(kind) << " " << i * 1e-3;
      last = value;
    }
    EXPECT_EQ(turns, 1) << name_of(kind);
  }
}

TEST(ActivationRange, pit48_NanIsNotClampedAway) {
  for (const ActivationFunction& function : {kSilu, kClamped}) {
    EXPECT_TRUE(std::isnan(activate(function, kNan, 1)));
    EXPECT_TRUE(std::isnan(activate(function, 1, kNan)));
    for (const Interval& bad : {Interval{kNan, 0}, Interval{kNan, 1}}) {
      EXPECT_TRUE(std::isnan(activate(function, bad, {1, 0.1}).centre));
      EXPECT_FALSE(std::isfinite(activate(function, bad, {1, 0.1}).radius));
      EXPECT_TRUE(std::isnan(activate(function, {1, 0.1}, bad).centre));
      EXPECT_FALSE(std::isfinite(activate(function, {1, 0.1}, bad).radius));
    }
    EXPECT_FALSE(std::isfinite(activate(function, {1, kNan}, {1, 0.1}).radius));
  }
}

TEST(ActivationRange, DeepNegativeGatesGiveZeroAndNoNan) {
  EXPECT_EQ(activate(kSilu, -1000, 3), 0);
  EXPECT_EQ(activate(kSilu, 1000, 3), 3000);
  // fp32's exponential overflows there and an engine returns 0.
  const Interval a = activate(kSilu, Interval{-89, 0}, Interval{2, 0});
  EXPECT_LE(std::abs(a.centre), a.radius);
}

TEST(ActivationRange, APointKeepsOnlyTheErrorOfEvaluation) {
  const Interval a = activate(kSilu, Interval{2, 0}, Interval{3, 0});
  EXPECT_NEAR(a.centre, 5.284782, 1e-6);
  EXPECT_NEAR(a.radius, 16 * 0x1p-24 * a.centre, 1e-12);
}

TEST(ActivationRange, ClampedSidesDoNotMove) {
  const Interval a = activate(kClamped, Interval{20, 1}, Interval{-20, 1});
  EXPECT_NEAR(a.radius, 16 * 0x1p-24 * 99.99546, 1e-9);
}

// The largest distance that a fine grid over the box finds is never above the radius, and near it.
TEST(ActivationRange, TheRadiusIsTheLargestDistanceInTheBox) {
  const auto seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> centre(-14, 14);
  std::uniform_real_distribution<double> exponent(-8, 2);
  int with_minimum = 0;
  for (int round = 0; round < 2000; ++round) {
    const Interval up = {centre(random), std::exp2(exponent(random))};
    // Each with the place of its minimum.
    for (const auto& [function, minimum] :
         {std::pair{kSilu, -1.2784645},
          {kClamped, -1.2784645},
          {ActivationFunction{.kind = Activation::oai_swiglu, .limit = 7}, -0.7511543},
          {ActivationFunction{.kind = Activation::situ}, -1.2187557},
          {ActivationFunction{.kind = Activation::gelu_tanh}, -0.7524614},
          {ActivationFunction{.kind = Activation::relu2}, 0.0}}) {
      const Interval gate = {round % 3 == 0 ? minimum : centre(random),
                             std::exp2(exponent(random))};
      with_minimum += std::abs(gate.centre - minimum) < gate.radius ? 1 : 0;
      const Interval a = activate(function, gate, up);
      EXPECT_EQ(a.centre, activate(function, gate.centre, up.centre));
      double furthest = 0;
      constexpr int kSteps = 40;
      for (int i = 0; i <= kSteps; ++i) {
        for (const int j : {0, 7, kSteps / 2, kSteps}) {
          const double g = gate.centre + gate.radius * (2.0 * i / kSteps - 1);
          const double u = up.centre + up.radius * (2.0 * j / kSteps - 1);
          furthest = std::max(furthest, std::abs(activate(function, g, u) - a.centre));
        }
      }
      const double evaluation = 16 * 0x1p-24 * std::abs(a.centre) + 0x1p-110;
      EXPECT_TRUE(furthest <= a.radius + 1e-12) << gate.centre << " " << up.centre;
      EXPECT_TRUE(a.radius <= furthest * 1.01 + evaluation + 1e-3 * gate.radius)
          << gate.centre << " +- " << gate.radius << ", " << up.centre << " +- " << up.radius;
    }
  }
  EXPECT_GT(with_minimum, 100);
}

TEST(ActivationRange, SaysWhatTheReferenceSupports) {
  EXPECT_TRUE(supports(Activation::silu));
  EXPECT_TRUE(supports(Activation::clamped_swiglu));
  for (const Activation other :
       {Activation::oai_swiglu, Activation::situ, Activation::relu2, Activation::gelu_tanh})
    EXPECT_TRUE(supports(other)) << name_of(other);
  for (const ActFormat format :
       {ActFormat::bf16, ActFormat::fp8, ActFormat::fp8x2, ActFormat::mxfp8, ActFormat::nvfp4,
        ActFormat::int8, ActFormat::int8x2})
    EXPECT_TRUE(supports(format)) << name_of(format);
}

}  // namespace
}  // namespace moxie::ref

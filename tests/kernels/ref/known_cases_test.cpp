// SPDX-License-Identifier: Apache-2.0
// The judge on layers that can be computed by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/ref/small_layer.hpp"
#include "support/refusal.hpp"

namespace moxie {
namespace {

using test::code_of;
using test::SmallLayer;

double silu(double x) { return x / (1 + std::exp(-x)); }

// One expert: column i of the intermediate axis has gate 1 and up 1 of x[i], output i is column i.
SmallLayer identity_layer(const SmallLayer::Shape& shape = {}) {
  SmallLayer layer(shape);
  for (std::uint64_t expert = 0; expert < shape.experts; ++expert) {
    for (std::uint64_t i = 0; i < shape.inter; ++i) {
      layer.set_gate_up(expert, i, 1, 1);
      layer.set_down(expert, i, i, 1);
    }
  }
  return layer;
}

TEST(KnownCases, K01_GateAndUpAreNotExchanged) {
  SmallLayer layer({});
  layer.x[0] = 1;
  layer.set_gate_up(0, 0, 2, 3);
  layer.set_down(0, 0, 0, 1);
  // The activation is rounded to bf16 on its way: 5.284782 becomes 5.28125.
  const auto result = layer.run();
  EXPECT_EQ(result.y[0], 5.28125);
  EXPECT_NEAR(result.unquantised[0], 5.284782, 1e-6);
  EXPECT_EQ(result.y[1], 0);
  EXPECT_EQ(result.magnitude[0], 5.28125);
}

TEST(KnownCases, K02_GlobalsOfGateAndUpMayDiffer) {
  SmallLayer layer({.format = BlockFormat::nvfp4, .hidden = 16, .inter = 16});
  layer.x[0] = 1;
  layer.set_gate_up(0, 0, 2, 2);
  layer.experts[0].gate.set_scale(0, 0, 0x40);  // 2
  layer.experts[0].up.set_scale(0, 0, 0x40);
  layer.experts[0].gate.mul = 0.25;
  layer.set_down(0, 0, 0, 1);
  EXPECT_NEAR(layer.run().unquantised[0], 2.924234, 1e-6);
}

TEST(KnownCases, K03_TheClampIsOneSidedOnTheGateAndBeforeTheSigmoid) {
  for (const auto& [gate, up, expected] :
       {std::tuple{-12.0F, 1.0F, -7.3730e-5}, {15.0F, -15.0F, -99.995460}}) {
    SmallLayer layer({});
    layer.activation = Activation::clamped_swiglu;
    layer.limit = 10;
    layer.x[0] = gate;
    layer.x[1] = up;
    layer.experts[0].gate.set(0, 0, 1);
    layer.experts[0].up.set(0, 1, 1);
    layer.set_down(0, 0, 0, 1);
    EXPECT_NEAR(layer.run().unquantised[0], expected, 1e-6 * std::abs(expected) + 1e-9);
  }
}

// K-04 and B4: the judge has separate halves; rows that a reader takes in the other arrangement
// give the other pair.
TEST(KnownCases, K04_B4_TheTwoArrangementsOfFusedRowsGiveTheirOwnPair) {
  constexpr float kRows[4] = {1, 2, 3, 4};
  const auto y = [&](const int(&gate)[2], const int(&up)[2]) {
    SmallLayer layer({});
    layer.x[0] = 1;
    for (std::uint64_t i = 0; i < 2; ++i) {
      layer.experts[0].gate.set(i, 0, kRows[gate[i]]);
      layer.experts[0].up.set(i, 0, kRows[up[i]]);
      layer.set_down(0, i, i, 1);
    }
    return layer.run().unquantised;
  };
  const auto concatenated = y({0, 1}, {2, 3});
  EXPECT_NEAR(concatenated[0], 2.193176, 1e-6);
  EXPECT_NEAR(concatenated[1], 7.046377, 1e-6);
  const auto interleaved = y({0, 2}, {1, 3});
  EXPECT_NEAR(interleaved[0], 1.462117, 1e-6);
  EXPECT_NEAR(interleaved[1], 11.430890, 1e-6);
}

TEST(KnownCases, K05_ScaleBytesAreTheWholeRangeOfPowersOfTwo) {
  for (const auto& [byte, scale] :
       {std::pair<int, double>{0, 0x1p-127}, {1, 0x1p-126}, {127, 1.0}, {254, 0x1p127}}) {
    SmallLayer layer({});
    layer.x[0] = 1;
    layer.set_gate_up(0, 0, 2, 3);
    layer.set_down(0, 0, 0, 1);
    layer.experts[0].down.set_scale(0, 0, static_cast<std::uint8_t>(byte));
    EXPECT_EQ(layer.run().y[0], 5.28125 * scale) << byte;
  }
  SmallLayer layer({});
  layer.x[0] = 1;
  layer.set_gate_up(0, 0, 2, 3);
  layer.experts[0].down.set_scale(0, 0, 255);
  const auto result = layer.run();
  EXPECT_TRUE(std::isnan(result.y[0]));
  EXPECT_TRUE(std::isnan(result.bound[0]));
  EXPECT_EQ(result.y[1], 0);
}

TEST(KnownCases, L04_EveryScaleGroupOfARowHasItsOwnScale) {
  SmallLayer layer({.format = BlockFormat::nvfp4, .hidden = 32, .inter = 16});
  for (std::uint64_t k = 0; k < 32; ++k) {
    layer.x[k] = 1;
    layer.experts[0].gate.set(0, k, 1);
  }
  layer.experts[0].gate.set_scale(0, 16, 0x40);  // 2
  layer.experts[0].up.set(0, 0, 1);
  layer.set_down(0, 0, 0, 1);
  // silu(48) * 1
  EXPECT_EQ(layer.run().y[0], 48);
}

// B3 and pit59: three experts whose globals differ; gate and up of each are its own.
TEST(KnownCases, B3_pit59_EveryExpertUsesItsOwnGlobals) {
  constexpr double kGlobals[3] = {0.5, 2, 8};
  SmallLayer layer(
      {.format = BlockFormat::nvfp4, .hidden = 16, .inter = 16, .experts = 3, .tokens = 3});
  for (std::uint64_t i = 0; i < 3; ++i) {
    layer.x[i * 16] = 1;
    layer.ids[i] = static_cast<std::int32_t>(i);
    layer.set_gate_up(i, 0, 1, 1);
    layer.set_down(i, 0, 0, 1);
    layer.experts[i].gate.mul = kGlobals[i];
    layer.experts[i].up.mul = kGlobals[i];
    layer.experts[i].down.mul = kGlobals[2 - i];
  }
  const auto result = layer.run();
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(result.unquantised[i * 16], silu(kGlobals[i]) * kGlobals[i] * kGlobals[2 - i],
                1e-12);
  }
}

TEST(KnownCases, B6_TheNonLinearityIsPerSlot) {
  SmallLayer layer({.experts = 2, .top_k = 2});
  layer.x[0] = 1;
  layer.ids = {0, 1};
  layer.weights = {0.5F, 0.5F};
  layer.set_gate_up(0, 0, 2, 1);
  layer.set_gate_up(1, 0, -2, 1);
  for (const std::uint64_t expert : {0, 1}) layer.set_down(expert, 0, 0, 1);
  EXPECT_NEAR(layer.run().unquantised[0], 0.761594, 1e-6);
}

TEST(KnownCases, B7_TheRouterWeightCountsOnce) {
  SmallLayer layer = identity_layer({.top_k = 2});
  layer.x[0] = 40;  // silu(40) * 40 = 1600, exact in bf16
  layer.ids = {0, -1};
  layer.weights = {0.25F, 7.0F};
  auto result = layer.run();
  EXPECT_EQ(result.y[0], 400);
  EXPECT_EQ(result.magnitude[0], 400);
  layer.weights = {1.0F, 0.0F};
  layer.ids = {0, 0};
  EXPECT_EQ(layer.run().y[0], 1600);
}

TEST(KnownCases, ASlotOfTheSameExpertTwiceCountsTwice) {
  SmallLayer layer = identity_layer({.top_k = 2});
  layer.x[0] = 40;
  layer.weights = {0.5F, 0.25F};
  EXPECT_EQ(layer.run().y[0], 1200);
}

TEST(KnownCases, TokensWithoutAValidSlotAreExactlyZeroWhateverTheirX) {
  SmallLayer layer = identity_layer({.tokens = 3, .top_k = 2});
  layer.ids = {-1, 1, 0, 0, std::numeric_limits<std::int32_t>::min(), 7};
  for (float& x : layer.x) x = std::numeric_limits<float>::quiet_NaN();
  for (std::size_t i = 32; i < 64; ++i) layer.x[i] = 1;
  layer.weights[0] = std::numeric_limits<float>::quiet_NaN();
  const auto result = layer.run();
  for (std::size_t i = 0; i < result.y.size(); ++i) {
    if (i / 32 == 1) {
      EXPECT_NEAR(result.y[i], 2 * silu(1), 0.01);
      EXPECT_GT(result.bound[i], 0);
      continue;
    }
    EXPECT_EQ(result.y[i], 0);
    EXPECT_EQ(result.bound[i], 0);
    EXPECT_EQ(result.magnitude[i], 0);
    EXPECT_EQ(result.unquantised[i], 0);
  }
}

TEST(KnownCases, pit48_ANanReachesItsTokenAndNoOther) {
  for (const ActFormat format :
       {ActFormat::bf16, ActFormat::fp8, ActFormat::fp8x2, ActFormat::int8, ActFormat::int8x2}) {
    SmallLayer layer = identity_layer({.tokens = 2});
    layer.act_format = format;
    layer.activation = Activation::clamped_swiglu;
    layer.limit = 10;
    for (float& x : layer.x) x = 1;
    layer.x[3] = std::numeric_limits<float>::quiet_NaN();
    const auto result = layer.run();
    EXPECT_TRUE(std::isnan(result.y[3]));
    EXPECT_FALSE(std::isfinite(result.bound[3]));
    EXPECT_TRUE(std::isfinite(result.y[32 + 3]));
    EXPECT_TRUE(std::isfinite(result.bound[32 + 3]));
  }
}

// Two parts of 96 columns. Column 100 is large; column 70 is below half a subnormal step of the
// scale that column 100 asks for, and vanishes when both share a group.
TEST(KnownCases, Fp8GroupsStartAnewAtEveryPart) {
  SmallLayer layer = identity_layer({.hidden = 192, .inter = 192});
  layer.act_format = ActFormat::fp8;
  layer.x[70] = 0.125F;   // a = silu(1/8) / 8 = 0.0083
  layer.x[100] = 112.0F;  // a = 12544; its group's scale is 2^5
  const auto whole = layer.run();
  layer.part_starts = {0, 96};
  const auto parts = layer.run();
  EXPECT_EQ(whole.y[70], 0);
  EXPECT_NEAR(parts.y[70], 0.125 * silu(0.125), 0.07 * 0.0083);
  EXPECT_NE(parts.y[70], 0);
  EXPECT_EQ(whole.y[100], parts.y[100]);
  // Groups of x are counted from column 0 whatever the parts: 70 and 100 share one.
  EXPECT_EQ(whole.unquantised, parts.unquantised);
}

TEST(KnownCases, Fp8GroupsOf128EndInsideAPart) {
  SmallLayer layer = identity_layer({.hidden = 192, .inter = 192});
  layer.act_format = ActFormat::fp8;
  layer.x[127] = 0.125F;
  layer.x[128] = 112.0F;
  EXPECT_NE(layer.run().y[127], 0);
  layer.x[127] = 0;
  layer.x[129] = 0.125F;
  EXPECT_EQ(layer.run().y[129], 0);
}

// Column 0 of the activation is gate * up; column 1 is small. Where column 0 lies so near 448 that
// an engine's rounding decides the scale of the group, column 1 may be stored under either.
TEST(KnownCases, AScaleThatRoundingDecidesWidensTheBoundOfItsGroup) {
  const auto bound_of = [](float gate, float up) {
    SmallLayer layer({});
    layer.act_format = ActFormat::fp8;
    layer.x[0] = gate;
    layer.x[1] = up;
    layer.x[2] = 0.0625F;
    layer.experts[0].gate.set(0, 0, 1);
    layer.experts[0].up.set(0, 1, 1);
    layer.set_gate_up(0, 1, 0, 0);
    layer.experts[0].gate.set(1, 2, 1);
    layer.experts[0].up.set(1, 2, 1);
    layer.set_down(0, 1, 1, 1);
    return layer.run().bound[1];
  };
  // silu(32) is 32 but for 4e-13.
  EXPECT_GT(bound_of(32, 14), 100 * bound_of(32, 13));
  EXPECT_GT(bound_of(32, 14), 100 * bound_of(32, 15));
}

// Every term of the bound, by hand: the gate is 2^20 - 2^20 + 80, of which an engine may lose 2.
TEST(KnownCases, TheBoundIsTheSumOfItsTerms) {
  SmallLayer layer({.format = BlockFormat::nvfp4, .top_k = 2});
  layer.ids = {0, -1};
  layer.weights = {-0.5F, 1.0F};
  layer.x[0] = 0x1p20F;
  layer.x[1] = -0x1p20F;
  layer.x[2] = 80;
  layer.x[3] = 12;
  test::SmallExpert& expert = layer.experts[0];
  for (const std::uint64_t col : {0, 1, 2}) expert.gate.set(0, col, 1);
  expert.up.set(0, 3, 1);
  layer.set_down(0, 5, 0, -2);
  expert.gate.mul = 0.5;
  expert.up.mul = 0.25;
  expert.down.mul = 3;
  const auto result = layer.run();

  constexpr double kEpsilon = 0x1p-24;
  // 32 terms and the global scale: as many roundings as any order of summation can have.
  constexpr double kGamma = 33 * kEpsilon / (1 - 33 * kEpsilon);
  const double gate_error = kGamma * (0x1p21 + 80) * 0.5;
  const double up_error = kGamma * 12 * 0.25;
  // silu is the identity to 1e-16 there.
  const double error = (40 + gate_error) * (3 + up_error) - 120 + 16 * kEpsilon * 120;
  const double spread =
      bf16_value(static_cast<float>(120 + error)) - bf16_value(static_cast<float>(120 - error));
  EXPECT_EQ(spread, 12);
  const double slot = 3 * (kGamma * 2 * 120 + 2 * spread);
  EXPECT_EQ(result.y[5], 360);
  EXPECT_EQ(result.magnitude[5], 360);
  EXPECT_NEAR(result.bound[5], 0.5 * slot + 2 * kEpsilon * 360, 1e-9);
  EXPECT_LT(result.bound[4], 1e-40);
}

TEST(KnownCases, RefusesProblemsThatItCanNotJudge) {
  const auto code = [](const SmallLayer& layer) {
    return test::refusal_of([&] { static_cast<void>(layer.run()); }).code();
  };
  SmallLayer layer({});
  layer.activation = Activation::oai_swiglu;
  EXPECT_EQ(code(layer), ErrorCode::internal);  // no limit
  layer.activation = Activation::clamped_swiglu;
  EXPECT_EQ(code(layer), ErrorCode::internal);  // no limit
  layer.activation = Activation::silu;
  layer.act_format = ActFormat::fp8;
  for (const std::vector<std::uint64_t>& starts :
       {std::vector<std::uint64_t>{}, {1}, {0, 0}, {0, 16, 8}, {0, 32}}) {
    layer.part_starts = starts;
    EXPECT_EQ(code(layer), ErrorCode::internal);
  }
}

}  // namespace
}  // namespace moxie

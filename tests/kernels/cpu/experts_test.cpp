// SPDX-License-Identifier: Apache-2.0
// cpu.portable.experts on inputs small enough to know the right answer by hand.
#include "kernels/cpu/portable/experts.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "formats/act_quant.hpp"
#include "support/hand_layer.hpp"

namespace moxie::cpu::portable {
namespace {

using test::Half;
using test::HandLayer;
using test::unit_x;

constexpr BlockFormat kBoth[] = {BlockFormat::mxfp4, BlockFormat::nvfp4};
// Codes of E2M1.
enum Code : unsigned {
  k0 = 0,
  k05 = 1,
  k1 = 2,
  k15 = 3,
  k2 = 4,
  k3 = 5,
  k4 = 6,
  k6 = 7,
  kMinus2 = 12
};

double silu_of(double v) { return v / (1 + std::exp(-v)); }

TEST(PortableExperts, GateAndUpAreNotSwapped) {  // K-01
  for (const BlockFormat format : kBoth) {
    HandLayer layer(format, 1);
    layer.code(0, Half::gate, 0, 0, k2).code(0, Half::up, 0, 0, k3).down_one(0);
    const float y = layer.run(kExperts, unit_x(32), {0}, {1.0F})[0];
    EXPECT_NEAR(y, 5.284782, 0.03) << "the activation is rounded to bf16";
    EXPECT_EQ(y, 5.28125F);
  }
}

TEST(PortableExperts, GateAndUpKeepTheirOwnGlobals) {  // K-02, pit11
  HandLayer layer(BlockFormat::nvfp4, 1);
  for (const Half half : {Half::gate, Half::up})
    layer.code(0, half, 0, 0, k2).scale(0, half, 0, 0, 0x40);
  layer.global(0, Half::gate, 0.25F).down_one(0);
  EXPECT_NEAR(layer.run(kExperts, unit_x(32), {0}, {1.0F})[0], 2.924234, 0.01);
}

TEST(PortableExperts, EachExpertKeepsItsOwnGlobals) {  // B3, pit59
  HandLayer layer(BlockFormat::nvfp4, 3);
  const float globals[] = {0.5F, 2.0F, 8.0F};
  for (std::uint64_t e = 0; e < 3; ++e) {
    layer.code(e, Half::gate, 0, 0, k1).code(e, Half::up, 0, 0, k1).down_one(e);
    for (const Half half : {Half::gate, Half::up}) layer.global(e, half, globals[e]);
  }
  for (int e = 0; e < 3; ++e) {
    const double g = globals[e];
    const float y = layer.run(kExperts, unit_x(32), {e}, {1.0F})[0];
    EXPECT_NEAR(y, silu_of(g) * g, silu_of(g) * g / 256);
  }
  // The third projection has its own as well.
  layer.global(1, Half::down, 16.0F);
  EXPECT_NEAR(layer.run(kExperts, unit_x(32), {1}, {1.0F})[0], 16 * silu_of(2) * 2, 0.2);
}

TEST(PortableExperts, TheClampIsOneSidedForTheGateAndTwoSidedForUp) {  // K-03, pit46
  struct Row {
    Activation activation;
    float gate, up;
    double expected;
  };
  for (const Row& row : {Row{Activation::clamped_swiglu, -12, 1, -7.3730e-5},
                         Row{Activation::clamped_swiglu, 15, -15, -99.995460},
                         Row{Activation::clamped_swiglu, 12, -15, -99.995460},
                         Row{Activation::clamped_swiglu, -12, 3, -0.000221},
                         Row{Activation::silu, 12, -15, -179.998894}}) {
    HandLayer layer(BlockFormat::nvfp4, 1);
    layer.shape().activation = row.activation;
    layer.shape().activation_limit = 10;
    // Value 1 times the global times x = +-1 gives any gate and up.
    layer.code(0, Half::gate, 0, 0, row.gate < 0 ? 10U : 2U)
        .global(0, Half::gate, std::abs(row.gate));
    layer.code(0, Half::up, 0, 0, row.up < 0 ? 10U : 2U).global(0, Half::up, std::abs(row.up));
    layer.down_one(0);
    const float y = layer.run(kExperts, unit_x(32), {0}, {1.0F})[0];
    EXPECT_NEAR(y, row.expected, std::abs(row.expected) / 200) << row.gate << " " << row.up;
  }
}

TEST(PortableExperts, EveryActivationFunctionGivesTheTablesValues) {  // K-03, pit46
  struct Row {
    Activation activation;
    float limit, gate, up;
    double expected;
  };
  for (const Row& row :
       {Row{Activation::oai_swiglu, 7, 8, -9, -41.999719},
        Row{Activation::oai_swiglu, 7, -9, 2, -6.0095e-6},
        Row{Activation::oai_swiglu, 7, 1, 2, 2.537387}, Row{Activation::situ, 0, 2, 3, 4.861067},
        Row{Activation::gelu_tanh, 0, 1, 2, 1.682384},
        Row{Activation::gelu_tanh, 0, -3, 1, -0.00363739}}) {
    HandLayer layer(BlockFormat::nvfp4, 1);
    layer.shape().activation = row.activation;
    layer.shape().activation_limit = row.limit;
    layer.code(0, Half::gate, 0, 0, row.gate < 0 ? 10U : 2U)
        .global(0, Half::gate, std::abs(row.gate));
    layer.code(0, Half::up, 0, 0, row.up < 0 ? 10U : 2U).global(0, Half::up, std::abs(row.up));
    layer.down_one(0);
    const float y = layer.run(kExperts, unit_x(32), {0}, {1.0F})[0];
    EXPECT_NEAR(y, row.expected, std::abs(row.expected) / 200) << row.gate << " " << row.up;
  }
}

TEST(PortableExperts, FunctionsWithoutAGateTakeEveryRowOfUp) {  // pit49
  for (const BlockFormat format : kBoth) {
    HandLayer layer(format, 1);
    layer.ungated().shape().activation = Activation::relu2;
    // Rows 0 and 1 of up are 3 and -1.5; down takes both.
    layer.code(0, Half::up, 0, 0, k3).code(0, Half::up, 1, 0, 11).code(0, Half::up, 31, 0, k2);
    layer.code(0, Half::down, 0, 0, k1)
        .code(0, Half::down, 0, 1, k1)
        .code(0, Half::down, 1, 31, k05);
    const std::vector<float> y = layer.run(kExperts, unit_x(32), {0}, {1.0F});
    EXPECT_EQ(y[0], 9.0F);
    EXPECT_EQ(y[1], 2.0F);
  }
}

TEST(PortableExperts, BiasesAreAddedBeforeTheActivationAndBeforeTheRouterWeight) {  // pit47
  HandLayer layer(BlockFormat::mxfp4, 2);
  layer.shape().activation = Activation::oai_swiglu;
  layer.shape().activation_limit = 7;
  // All weights are zero: gate 1, up 2 come from the biases alone.
  layer.bias(1, Half::gate, 3, 1.0F).bias(1, Half::up, 3, 2.0F).bias(1, Half::down, 5, 0.5F);
  layer.code(1, Half::down, 5, 3, k1);
  const std::vector<float> y = layer.run(kExperts, unit_x(32), {1}, {0.25F});
  EXPECT_NEAR(y[5], 0.25 * (2.537387 + 0.5), 0.005);
  EXPECT_EQ(y[4], 0.0F);
  // Expert 0 has biases of zero and an up of 0 + 1: its gate of 0 gives 0.
  EXPECT_EQ(layer.run(kExperts, unit_x(32), {0}, {1.0F}), std::vector<float>(32, 0.0F));
}

TEST(PortableExperts, TheActivationIsAppliedToEverySlotAndNotToTheirSum) {  // B6, pit55
  HandLayer layer(BlockFormat::mxfp4, 2);
  layer.shape().top_k = 2;
  for (std::uint64_t e = 0; e < 2; ++e) {
    layer.code(e, Half::gate, 0, 0, e == 0 ? k2 : kMinus2).code(e, Half::up, 0, 0, k1).down_one(e);
  }
  EXPECT_NEAR(layer.run(kExperts, unit_x(32), {0, 1}, {0.5F, 0.5F})[0], 0.761594, 4e-3);
}

TEST(PortableExperts, TheRouterWeightIsAppliedOnce) {  // B7, pit56
  HandLayer layer(BlockFormat::mxfp4, 1);
  layer.code(0, Half::gate, 0, 0, k2).code(0, Half::up, 0, 0, k1).down_one(0);
  const float whole = layer.run(kExperts, unit_x(32), {0}, {1.0F})[0];
  EXPECT_EQ(layer.run(kExperts, unit_x(32), {0}, {0.25F})[0], 0.25F * whole);
  layer.shape().top_k = 2;
  EXPECT_EQ(layer.run(kExperts, unit_x(32), {0, 0}, {1.0F, 0.0F})[0], whole);
}

TEST(PortableExperts, DuplicatesOfAnExpertBothCount) {  // S-04
  HandLayer layer(BlockFormat::mxfp4, 4);
  layer.shape().top_k = 2;
  layer.code(3, Half::gate, 0, 0, k2).code(3, Half::up, 0, 0, k1).down_one(3);
  const std::vector<float> both = layer.run(kExperts, unit_x(32), {3, 3}, {0.6F, 0.3F});
  layer.shape().top_k = 1;
  EXPECT_NEAR(both[0], 0.9F * layer.run(kExperts, unit_x(32), {3}, {1.0F})[0], 1e-6);
}

TEST(PortableExperts, MaskedAndForeignSlotsAddNothingAndBadIdsAreFlagged) {  // S-01, pit57, pit65
  HandLayer layer(BlockFormat::mxfp4, 4);
  layer.shape().top_k = 2;
  layer.local_of_expert() = {-1, -1, 0, 1};
  layer.shape().local_experts = 2;
  for (std::uint64_t e = 0; e < 2; ++e) {
    layer.code(e, Half::gate, 0, 0, k2).code(e, Half::up, 0, 0, e == 0 ? k1 : k3).down_one(e);
  }
  std::vector<float> x(3 * 32, 0.0F);
  for (std::size_t t = 0; t < 3; ++t) x[t * 32] = static_cast<float>(t + 1);
  const std::vector<std::int32_t> ids = {2, -1, 0, 3, -1, -1};
  const std::vector<float> weights = {.75F, .25F, .6F, .4F, .5F, .5F};
  const std::vector<float> y = layer.run(kExperts, x, ids, weights);
  EXPECT_NEAR(y[0], .75 * silu_of(2) * 1, 0.01);
  EXPECT_NEAR(y[32], .4 * silu_of(4) * 6, 0.1);
  for (std::size_t i = 0; i < 32; ++i) EXPECT_EQ(y[64 + i], 0.0F);
  EXPECT_EQ(layer.flags, 0U);
  layer.run(kExperts, x, {2, -1, 4, 3, -1, -1}, weights);
  EXPECT_EQ(layer.flags, kFlagBadExpertId);
}

TEST(PortableExperts, ATokenWithNanDoesNotReachOthers) {  // pit57
  HandLayer layer(BlockFormat::mxfp4, 2);
  for (std::uint64_t e = 0; e < 2; ++e)
    layer.code(e, Half::gate, 0, 0, k2).code(e, Half::up, 0, 0, k1).down_one(e);
  std::vector<float> x(3 * 32, 0.0F);
  x[0] = std::numeric_limits<float>::quiet_NaN();
  x[32] = x[64] = 1.0F;
  const std::vector<float> y = layer.run(kExperts, x, {0, 0, -1}, {1.0F, 1.0F, 0.0F});
  EXPECT_TRUE(std::isnan(y[0])) << "a NaN activation is not hidden";  // pit48
  EXPECT_EQ(y[32], layer.run(kExperts, unit_x(32), {0}, {1.0F})[0]);
  EXPECT_EQ(y[64], 0.0F);
}

TEST(PortableExperts, ANanGateDoesNotBecomeTheClampLimit) {  // pit48
  for (const Half half : {Half::gate, Half::up}) {
    HandLayer layer(BlockFormat::mxfp4, 1);
    layer.shape().activation = Activation::clamped_swiglu;
    layer.shape().activation_limit = 10;
    layer.code(0, Half::gate, 0, 0, k2).code(0, Half::up, 0, 0, k1).down_one(0);
    layer.scale(0, half, 0, 0, 0xFF);
    EXPECT_TRUE(std::isnan(layer.run(kExperts, unit_x(32), {0}, {1.0F})[0]));
  }
}

TEST(PortableExperts, E8m0ScalesReachBothEndsOfTheirRange) {  // K-05, pit5, pit8
  const double tiny = std::ldexp(1.0, -127);
  struct Row {
    unsigned byte;
    double scale;
  };
  for (const Row& row :
       {Row{0, tiny}, Row{1, 2 * tiny}, Row{127, 1.0}, Row{254, std::ldexp(1.0, 127)}}) {
    HandLayer layer(BlockFormat::mxfp4, 1);
    layer.code(0, Half::gate, 0, 0, k2).code(0, Half::up, 0, 0, k1).down_one(0);
    layer.scale(0, Half::down, 0, 0, row.byte);
    const double act = 1.7578125;  // silu(2) in bf16
    EXPECT_EQ(layer.run(kExperts, unit_x(32), {0}, {1.0F})[0], static_cast<float>(row.scale * act));
  }
  HandLayer layer(BlockFormat::mxfp4, 1);
  layer.scale(0, Half::down, 0, 0, 0xFF);  // all codes of the group are zero
  EXPECT_TRUE(std::isnan(layer.run(kExperts, unit_x(32), {0}, {1.0F})[0]));
}

TEST(PortableExperts, TheSmallestBlockScaleIsNotFlushed) {  // K-06, B10
  HandLayer layer(BlockFormat::nvfp4, 1);
  layer.code(0, Half::gate, 0, 0, k2).code(0, Half::up, 0, 0, k1).down_one(0, k6);
  layer.scale(0, Half::down, 0, 0, 0x01);
  EXPECT_EQ(layer.run(kExperts, unit_x(32), {0}, {1.0F})[0], 0.01171875F * 1.7578125F);
  // A small global multiplies the sum; folded into the scale it would have been lost.
  layer.scale(0, Half::down, 0, 0, 0x08).global(0, Half::down, 2.86e-4F);
  EXPECT_NEAR(layer.run(kExperts, unit_x(32), {0}, {1.0F})[0], 6 * 2.86e-4 / 64 * 1.7578125, 1e-9);
}

TEST(PortableExperts, EveryWidthSumsAllItsColumns) {  // K-08
  for (const BlockFormat format : kBoth) {
    for (const std::uint64_t width : {32U, 64U, 96U, 1024U, 1056U, 1152U, 2048U, 2080U, 2880U}) {
      HandLayer layer(format, 1, width, 32);
      for (std::uint64_t column = 0; column < width; ++column)
        layer.code(0, Half::gate, 0, column, k1);
      layer.code(0, Half::up, 0, 0, k1).down_one(0);
      // gate = sum of all columns; large, so that silu(gate) = gate.
      for (const std::size_t tokens : {1U, 3U}) {
        const std::vector<float> x(tokens * width, 1.0F);
        const std::vector<float> y = layer.run(kExperts, x, std::vector<std::int32_t>(tokens, 0),
                                               std::vector<float>(tokens, 1.0F));
        for (std::size_t t = 0; t < tokens; ++t)
          EXPECT_NEAR(y[t * width], static_cast<double>(width), static_cast<double>(width) / 256)
              << width;
      }
      // The same width as the intermediate axis: exact, the activations are 1 in bf16.
      HandLayer wide(format, 1, 32, width);
      wide.shape().activation = Activation::clamped_swiglu;
      wide.shape().activation_limit = 1.0F;
      for (std::uint64_t column = 0; column < width; ++column)
        wide.code(0, Half::gate, column, 0, k4)
            .code(0, Half::up, column, 0, k1)
            .code(0, Half::down, 0, column, k1);
      const double act = 0.73046875;  // silu(1) in bf16
      EXPECT_NEAR(wide.run(kExperts, unit_x(32), {0}, {1.0F})[0], act * static_cast<double>(width),
                  1e-3);
    }
  }
}

TEST(PortableExperts, GroupsInsideARowKeepTheirOwnScales) {  // L-04, pit9
  HandLayer layer(BlockFormat::nvfp4, 1, 32, 32);
  layer.code(0, Half::up, 0, 0, k1).down_one(0);
  for (std::uint64_t column = 0; column < 32; ++column) layer.code(0, Half::gate, 0, column, k1);
  layer.scale(0, Half::gate, 0, 1, 0x40);
  EXPECT_NEAR(layer.run(kExperts, std::vector<float>(32, 1.0F), {0}, {1.0F})[0], 48, 0.2);
  for (const BlockFormat format : kBoth) {
    HandLayer many(format, 1, 64, 64);
    const std::uint64_t group = scale_group(format);
    for (std::uint64_t g = 0; g < 64 / group; ++g) {
      const unsigned byte = format == BlockFormat::mxfp4 ? 127 + static_cast<unsigned>(g)
                                                         : 0x38 + 8 * static_cast<unsigned>(g);
      many.scale(0, Half::gate, 0, g, byte);
      for (std::uint64_t i = 0; i < group; ++i) many.code(0, Half::gate, 0, g * group + i, k1);
    }
    many.code(0, Half::up, 0, 0, k1).down_one(0);
    const double sum = format == BlockFormat::mxfp4 ? 32 * 3 : 16 * 15;
    EXPECT_NEAR(many.run(kExperts, std::vector<float>(64, 1.0F), {0}, {1.0F})[0], sum, sum / 256);
  }
}

TEST(PortableExperts, TheCombineAddsInTheOrderOfTheChoices) {  // K-12, pit58
  HandLayer layer(BlockFormat::nvfp4, 3);
  layer.shape().top_k = 3;
  layer.shape().activation = Activation::clamped_swiglu;
  layer.shape().activation_limit = 1.0F;
  for (std::uint64_t e = 0; e < 3; ++e)
    layer.code(e, Half::gate, 0, 0, k4).code(e, Half::up, 0, 0, k1).down_one(e, e == 2 ? 10U : 2U);
  const float one = layer.run(kExperts, unit_x(32), {0, -1, -1}, {1, 0, 0})[0];
  const std::vector<float> weights = {1e8F / one, 1 / one, 1e8F / one};
  const float first = layer.run(kExperts, unit_x(32), {0, 1, 2}, weights)[0];
  EXPECT_EQ(first, 0.0F) << "1e8 + 1 is 1e8 in fp32";
  EXPECT_NE(layer.run(kExperts, unit_x(32), {0, 2, 1}, weights)[0], 0.0F);
  for (int repeat = 0; repeat < 100; ++repeat)
    EXPECT_EQ(layer.run(kExperts, unit_x(32), {0, 1, 2}, weights)[0], first);
}

TEST(PortableExperts, EmptyExpertsAndNoTokensAreHarmless) {  // K-09, K-10, pit54
  HandLayer layer(BlockFormat::mxfp4, 4);
  for (std::uint64_t e = 0; e < 4; ++e)
    layer.code(e, Half::gate, 0, 0, k2)
        .code(e, Half::up, 0, 0, 2 + static_cast<unsigned>(e))
        .down_one(e);
  EXPECT_TRUE(layer.run(kExperts, {}, {}, {}).empty());
  const std::vector<float> none =
      layer.run(kExperts, std::vector<float>(3 * 32, 1.0F), {-1, -1, -1}, {1, 1, 1});
  EXPECT_EQ(none, std::vector<float>(3 * 32, 0.0F));
  const std::vector<std::vector<std::int32_t>> routings = {
      {1, 1, 1, 3}, {3, 3, 3, 3}, {0, 0, 0, 0}};
  for (const auto& ids : routings) {
    std::vector<float> x(4 * 32, 0.0F);
    for (std::size_t t = 0; t < 4; ++t) x[t * 32] = static_cast<float>(t + 1);
    const std::vector<float> y = layer.run(kExperts, x, ids, {1, 1, 1, 1});
    for (std::size_t t = 0; t < 4; ++t) {
      const std::vector<float> alone =
          layer.run(kExperts, unit_x(32, 0, static_cast<float>(t + 1)), {ids[t]}, {1.0F});
      EXPECT_TRUE(
          std::equal(alone.begin(), alone.end(), y.begin() + static_cast<std::ptrdiff_t>(t) * 32));
      EXPECT_GT(alone[0], 0.0F);
    }
  }
}

TEST(PortableExperts, RowsKeepTheirExpertWhateverTheCounts) {  // C4, C14
  // Down of expert e is (e + 1) times the identity's first element.
  const unsigned codes[] = {k1, k2, k3, k4};
  HandLayer layer(BlockFormat::mxfp4, 4);
  for (std::uint64_t e = 0; e < 4; ++e)
    layer.code(e, Half::gate, 0, 0, k2).code(e, Half::up, 0, 0, k1).down_one(e, codes[e]);
  for (const std::size_t count : {0U, 1U, 31U, 32U, 33U, 127U, 128U, 129U, 500U}) {
    std::vector<std::int32_t> ids(count, 0);
    ids.insert(ids.end(), {3, 1, 2});
    std::vector<float> x(ids.size() * 32, 0.0F);
    for (std::size_t t = 0; t < ids.size(); ++t) x[t * 32] = 1 + static_cast<float>(t % 7) / 8;
    const std::vector<float> y = layer.run(kExperts, x, ids, std::vector<float>(ids.size(), 1.0F));
    for (std::size_t t = 0; t < ids.size(); ++t) {
      const float alone = layer.run(kExperts, unit_x(32, 0, x[t * 32]), {ids[t]}, {1.0F}, 1)[0];
      ASSERT_EQ(y[t * 32], alone) << count << " rows, token " << t;
    }
  }
}

// The numeric check derives its bound from this order: lanes through a block, blocks lane by lane,
// a tree of lanes, the global scale.
TEST(PortableExperts, TheSumHasTheOrderThatTheCatalogStates) {
  constexpr std::uint64_t kInter = 1056;
  constexpr std::size_t kStatedLanes = 8;
  constexpr std::size_t kStatedBlock = 256;
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  HandLayer layer(BlockFormat::nvfp4, 1, 32, kInter);
  std::vector<float> act(kInter);
  std::vector<float> weight(kInter);
  for (std::uint64_t i = 0; i < kInter; ++i) {
    const auto gate = static_cast<std::uint8_t>(random() % 16);
    const auto up = static_cast<std::uint8_t>(random() % 16);
    const auto down = static_cast<std::uint8_t>(random() % 16);
    layer.code(0, Half::gate, i, 0, gate)
        .code(0, Half::up, i, 0, up)
        .code(0, Half::down, 0, i, down);
    const float g = decode_e2m1(gate);
    act[i] = bf16_value(g / (1.0F + std::exp(-g)) * decode_e2m1(up));
    weight[i] = decode_e2m1(down);
  }
  layer.global(0, Half::down, 0.7F);
  std::array<float, kStatedLanes> sums{};
  for (std::size_t block = 0; block < kInter; block += kStatedBlock) {
    std::array<float, kStatedLanes> part{};
    for (std::size_t i = block; i < std::min<std::size_t>(kInter, block + kStatedBlock); ++i)
      part[i % kStatedLanes] += weight[i] * act[i];
    for (std::size_t lane = 0; lane < kStatedLanes; ++lane) sums[lane] += part[lane];
  }
  std::array<float, 4> four{};
  for (std::size_t i = 0; i < 4; ++i) four[i] = sums[i] + sums[i + 4];
  const float expected = ((four[0] + four[2]) + (four[1] + four[3])) * 0.7F;
  EXPECT_EQ(layer.run(kExperts, unit_x(32), {0}, {1.0F})[0], expected);
}

// Groups of 128 and of 32 in rows of 192 and 208 columns: relu2 makes squares, which down hands
// out.
TEST(PortableExperts, RowsAreQuantisedInWholeGroups) {
  std::mt19937_64 random(8);
  for (const std::uint64_t inter : {192U, 208U}) {
    for (const ActFormat format :
         {ActFormat::fp8, ActFormat::fp8x2, ActFormat::mxfp8, ActFormat::int8, ActFormat::int8x2}) {
      HandLayer layer(BlockFormat::nvfp4, 1, 224, inter);
      layer.ungated().shape().activation = Activation::relu2;
      layer.shape().act_format = format;
      std::vector<float> x = unit_x(224);
      std::vector<float> xq(x.size());
      quantise_row(format, x.data(), x.size(), xq.data());
      std::vector<float> act(inter);
      for (std::uint64_t i = 0; i < inter; ++i) {
        const auto code = static_cast<std::uint8_t>(random() % 8);
        const auto scale = static_cast<std::uint8_t>(0x20 + random() % 0x20);
        layer.code(0, Half::up, i, 0, code).scale(0, Half::up, i, 0, scale);
        layer.code(0, Half::down, i, i, k1);
        const float up = decode_e2m1(code) * decode_e4m3(scale) * xq[0];
        act[i] = up * up;
      }
      std::vector<float> expected(inter);
      quantise_row(format, act.data(), inter, expected.data());
      const std::vector<float> y = layer.run(kExperts, x, {0}, {1.0F});
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(), y.begin())) << name_of(format);
      EXPECT_NE(act, expected) << name_of(format);
    }
  }
}

TEST(PortableExperts, OffsetsOfBigBuffersAre64Bit) {  // K-07
  // Expert 300 starts beyond 2^32 bytes; of the buffer only the pages that are touched exist.
  constexpr std::uint64_t kExperts301 = 301;
  constexpr std::uint64_t kStride = std::uint64_t{16} << 20;
  HandLayer alone(BlockFormat::mxfp4, 1);
  alone.code(0, Half::gate, 0, 0, k2).code(0, Half::up, 0, 0, k3).down_one(0);
  void* memory = ::mmap(nullptr, kExperts301 * kStride, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) GTEST_SKIP() << "no address space for 4.7 GiB";
  auto* blobs = static_cast<std::byte*>(memory);
  std::ranges::copy(alone.blob_of(0), blobs + 300 * kStride);
  HandLayer many(BlockFormat::mxfp4, kExperts301);
  many.read_from(blobs, kStride);
  EXPECT_EQ(many.run(kExperts, unit_x(32), {300}, {1.0F}),
            alone.run(kExperts, unit_x(32), {0}, {1.0F}));
  ::munmap(memory, kExperts301 * kStride);

  const ExpertsShape shape{
      .hidden = 4096, .inter = 32, .experts = 1, .local_experts = 1, .top_k = 1};
  EXPECT_GT(kExperts.workspace_bytes(shape, 524'288), 2 * 4 * std::uint64_t{2'147'483'648})
      << "524288 rows of 4096 are 2^31 elements, twice";
}

}  // namespace
}  // namespace moxie::cpu::portable

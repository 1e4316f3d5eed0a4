// SPDX-License-Identifier: Apache-2.0
// The clamped expert by hand, over ranks, and with faults in its tails. A file name that begins
// with `shared_` would make this a test of data beside the repository.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "kernels/ref/fp8_weights.hpp"
#include "kernels/ref/shared_expert.hpp"

namespace moxie {
namespace {

using test::all_zero;
using test::Fp8Weights;
using test::part_of;

// One column: gate and up see x[0] and x[1], the output is the activation twice and negated.
ref::SharedExpertResult one_column(double gate, double up) {
  const Fp8Weights w1(2, {1, 0});
  const Fp8Weights w3(2, {0, 1});
  const Fp8Weights w2(1, {2, -1});
  return ref::shared_expert({.gate = w1.view(), .up = w3.view(), .down = w2.view()},
                            std::vector<double>{gate, up});
}

TEST(SharedExpert, GateAndUpAreNotExchangedAndTheLastProductHasItsMagnitude) {
  const auto result = one_column(2, 3);
  EXPECT_NEAR(result.act[0], 5.284782, test::kPrinted);
  EXPECT_EQ(result.y, (std::vector<double>{2 * result.act[0], -result.act[0]}));
  EXPECT_EQ(result.magnitude, (std::vector<double>{2 * result.act[0], result.act[0]}));
  EXPECT_EQ(result.gate_up_magnitude[0], 3);
}

// pit50: the shared expert has the clamp of the routed ones.
TEST(SharedExpert, pit50_TheClampIsOneSidedOnTheGateAndBeforeTheSigmoid) {
  EXPECT_NEAR(one_column(-12, 1).act[0], -7.3730e-5, 1e-9);
  EXPECT_NEAR(one_column(15, -15).act[0], -99.995460, test::kPrinted);
}

TEST(SharedExpert, ANanIsNotClampedAway) {
  EXPECT_TRUE(std::isnan(one_column(std::nan(""), 1).y[0]));
  EXPECT_TRUE(std::isnan(one_column(1, std::nan("")).y[0]));
}

constexpr std::uint64_t kHidden = 12;
constexpr std::uint64_t kInter = 64;  // a multiple of the tile that three ranks do not divide
constexpr std::uint64_t kTile = 8;

struct Model {
  std::mt19937_64 random{7};
  Fp8Weights w1 = test::random_fp8(kInter, kHidden, kTile, random);
  Fp8Weights w3 = test::random_fp8(kInter, kHidden, kTile, random);
  Fp8Weights w2 = test::random_fp8(kHidden, kInter, kTile, random);
  std::vector<double> x = test::random_values(kHidden, random);
};

struct Rank {
  Rank(const Model& model, std::uint64_t local, std::uint64_t rank)
      : part(part_of(kInter, local, rank)),
        w1(model.w1.row_part(part)),
        w3(model.w3.row_part(part)),
        w2(model.w2.column_part(part)),
        x(model.x) {}

  [[nodiscard]] ref::SharedExpertResult run() const {
    return ref::shared_expert({.gate = w1.view(), .up = w3.view(), .down = w2.view()}, x);
  }

  test::Part part;
  Fp8Weights w1;
  Fp8Weights w3;
  Fp8Weights w2;
  std::vector<double> x;
};

TEST(SharedExpert, RanksAddUpToTheWholeAndTailsAddExactZeros) {
  const Model model;
  const auto whole = Rank(model, kInter, 0).run();
  for (const std::uint64_t tp : {1, 2, 3, 5, 7}) {
    const std::uint64_t local = round_up(divide_up(kInter, tp), kTile);
    std::vector<double> sum;
    for (std::uint64_t index = 0; index < tp; ++index) {
      const Rank rank(model, local, index);
      const auto result = rank.run();
      test::add_to(sum, result.y);
      EXPECT_TRUE(all_zero(std::span(result.act).subspan(rank.part.real)));
      if (rank.part.real == 0) {
        EXPECT_TRUE(all_zero(result.y)) << tp;
      }
    }
    test::expect_same_sum(sum, whole.y, whole.magnitude);
  }
}

TEST(SharedExpert, ATailOfAnyWidthChangesNoBit) {
  const Model model;
  const auto narrow = Rank(model, kInter, 0).run();
  const auto wide = Rank(model, kInter + 3 * kTile, 0).run();
  EXPECT_EQ(wide.y, narrow.y);
  EXPECT_EQ(wide.magnitude, narrow.magnitude);
}

// A product with zeros on its other side hides a byte that should not be there, and so does a scale
// of 2^-127 beside real values: here all scales are 1 at least.
TEST(SharedExpert, OneByteInEachTailIsSeenInYAndFewerBetweenTheProducts) {
  const Model model;
  constexpr std::uint64_t kLocal = kInter + kTile;
  const auto run = [&](bool in_w1, bool in_w3, bool in_w2) {
    Rank rank(model, kLocal, 0);
    for (auto* weights : {&rank.w1, &rank.w3, &rank.w2}) {
      for (auto& scale : weights->scales) scale = std::max(scale, kE8m0One);
    }
    if (in_w1) rank.w1.code(kInter, 0) = 0x38;
    if (in_w3) rank.w3.code(kInter, 0) = 0x38;
    if (in_w2) rank.w2.code(3, kInter) = 0x38;
    return rank.run();
  };
  const auto clean = run(false, false, false);
  EXPECT_NE(run(true, false, false).gate[kInter], 0);
  EXPECT_NE(run(false, true, false).up[kInter], 0);
  EXPECT_NE(run(true, true, false).act[kInter], 0);
  EXPECT_EQ(run(true, true, false).y, clean.y);
  EXPECT_EQ(run(false, false, true).y, clean.y);
  EXPECT_EQ(run(true, false, true).y, clean.y);

  const auto faulty = run(true, true, true);
  for (std::uint64_t row = 0; row < kHidden; ++row)
    EXPECT_EQ(faulty.y[row] != clean.y[row], row == 3) << row;
}

TEST(SharedExpert, OneByteInATailColumnOfW2IsSeenUnderAProbeForTheRows) {
  const Model model;
  Rank rank(model, kInter + kTile, 0);
  std::ranges::fill(rank.w2.codes, std::uint8_t{0});
  for (std::uint64_t row = kInter; row < kInter + kTile; ++row) {
    rank.w1.code(row, 0) = 0x38;
    rank.w3.code(row, 0) = 0x38;
  }
  for (auto* weights : {&rank.w1, &rank.w3})
    weights->scales[kInter / kTile * weights->scale_cols()] = kE8m0One;
  EXPECT_TRUE(all_zero(rank.run().y));
  rank.w2.code(5, kInter + 1) = 0x01;
  const auto result = rank.run();
  for (std::uint64_t row = 0; row < kHidden; ++row) EXPECT_EQ(result.y[row] != 0, row == 5) << row;
}

TEST(SharedExpert, ANanScaleOverATailOfZerosIsNotHidden) {
  const Model model;
  Rank rank(model, kInter + kTile, 0);
  rank.w2.scales[rank.w2.scale_cols() - 1] = 0xFF;
  EXPECT_TRUE(std::isnan(rank.run().y[0]));
  EXPECT_TRUE(std::isfinite(rank.run().y[kTile]));
}

}  // namespace
}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// The worked example with its partial sums and its named mistakes; ranks, virtual groups and faults
// planted in them.
#include "kernels/ref/output_path.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "kernels/ref/attention_values.hpp"
#include "kernels/ref/fp8_weights.hpp"
#include "kernels/ref/rotary.hpp"

namespace moxie {
namespace {

using test::all_zero;
using test::expect_near;
using test::Fp8Weights;
using test::Part;

// Four heads of four values, two groups, r = 2, three outputs, one token at position 1.
struct Worked {
  std::vector<double> o = {1, 0, 2, 1, 0, 1, -1, 2, 2, 1, 0, 1, -1, 1, 1, 0};
  Fp8Weights wo_a{8, {1, 0, 1, 0, 0, 1, 0, 1, 0, 1, 0, -1, 1, 0,  1, 0,
                      1, 1, 0, 0, 0, 0, 1, 1, 0, 0, 1, -1, 1, -1, 0, 0}};
  Fp8Weights wo_b{4, {1, 0, 2, 0, 0, 1, 0, -1, 1, 1, 1, 1}};
  std::vector<double> frequencies = {1};

  [[nodiscard]] ref::OutputPathResult run(std::uint64_t position = 1) const {
    return ref::output_path({.groups = 2,
                             .heads_per_group = 2,
                             .head_dim = 4,
                             .group_rank = 2,
                             .frequencies = frequencies,
                             .wo_a = wo_a.view(),
                             .wo_b = wo_b.view()},
                            o, position);
  }
};

const std::vector<double> kWorkedY = {11.241814, 3.984111, 9.129431};

TEST(OutputPath, TheWorkedExampleHasItsValuesAtEveryStage) {
  const auto result = Worked().run();
  expect_near(result.rotated,
              std::vector<double>{1, 0, 1.922076, -1.142640, 0, 1, 1.142640, 1.922076,  //
                                  2, 1, 0.841471, 0.540302, -1, 1, 0.540302, -0.841471},
              test::kPrinted);
  expect_near(result.z, std::vector<double>{5.844151, 2.285279, 2.698831, -1.698831},
              test::kPrinted);
  expect_near(result.y, kWorkedY, test::kPrinted);
  expect_near(result.contributions,
              std::vector<double>{5.844151, 2.285279, 8.129431, 5.397663, 1.698831, 1.0},
              test::kPrinted);
}

TEST(OutputPath, MagnitudesAreSumsOfMagnitudesOfTerms) {
  const auto result = Worked().run();
  expect_near(result.magnitude,
              std::vector<double>{5.844151 + 2 * 2.698831, 2.285279 + 1.698831,
                                  5.844151 + 2.285279 + 2.698831 + 1.698831},
              4 * test::kPrinted);  // sums of up to four printed values
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_GE(result.magnitude[i], std::abs(result.y[i]));
    EXPECT_GT(result.terms_magnitude[i], result.magnitude[i]);
  }
  for (std::size_t i = 0; i < 4; ++i) EXPECT_GE(result.z_magnitude[i], std::abs(result.z[i]));
  // Row 0 of group 0: 1 + (2 cos 1 + 1 sin 1) + 1 + (1 sin 1 + 2 cos 1).
  EXPECT_NEAR(result.z_magnitude[0], 2 + 4 * std::cos(1) + 2 * std::sin(1), 1e-12);
}

// Each mistake gives other values on these inputs, so that the example tells them apart.
TEST(OutputPath, WithoutTheInverseRotationTheValuesAreWrong) {
  expect_near(Worked().run(0).y, std::vector<double>{14.0, 1.0, 5.0}, 0);
}

TEST(OutputPath, TheForwardRotationGivesWrongValues) {
  Worked worked;
  worked.frequencies = {-1};
  expect_near(worked.run().y, std::vector<double>{11.241814, -1.064715, -0.968221}, test::kPrinted);
}

TEST(OutputPath, InterleavedHeadsGiveWrongValues) {
  Worked worked;
  std::swap_ranges(worked.o.begin() + 4, worked.o.begin() + 8, worked.o.begin() + 8);
  expect_near(worked.run().y, std::vector<double>{5.860041, 6.763547, 6.365884}, test::kPrinted);
}

TEST(OutputPath, ANanInOneHeadReachesEveryOutputThroughItsGroupAlone) {
  Worked worked;
  worked.o[0] = std::nan("");
  const auto result = worked.run();
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(std::isnan(result.y[i]));
    EXPECT_TRUE(std::isnan(result.magnitude[i]));
    EXPECT_TRUE(std::isnan(result.contributions[i]));
    EXPECT_TRUE(std::isfinite(result.contributions[3 + i]));
  }
}

// DeepSeek-V4's pattern in small: eight groups of two heads, tiles that divide r and head_dim.
constexpr std::uint64_t kGroups = 8;
constexpr std::uint64_t kHeadsPerGroup = 2;
constexpr std::uint64_t kHeadDim = 8;
constexpr std::uint64_t kGroupRank = 8;
constexpr std::uint64_t kHidden = 12;
constexpr std::uint64_t kTile = 4;
constexpr std::uint64_t kGroupWidth = kHeadsPerGroup * kHeadDim;
constexpr std::uint64_t kPosition = 1234;

struct Model {
  std::mt19937_64 random{5};
  Fp8Weights wo_a = test::random_fp8(kGroups * kGroupRank, kGroupWidth, kTile, random);
  Fp8Weights wo_b = test::random_fp8(kHidden, kGroups* kGroupRank, kTile, random);
  std::vector<double> frequencies = ref::rotary_frequencies({.theta = 10000, .dims = 4});
  std::vector<double> o = test::random_values(kGroups * kGroupWidth, random);
};

// A rank's own weights and heads; heads of virtual groups hold the average of some values.
struct Rank {
  Rank(const Model& model, std::uint64_t local_groups, std::uint64_t rank)
      : part(test::part_of(kGroups, local_groups, rank)),
        wo_a(model.wo_a.row_part(scaled(part, kGroupRank))),
        wo_b(model.wo_b.column_part(scaled(part, kGroupRank))),
        frequencies(model.frequencies),
        o(model.o.begin() + static_cast<std::ptrdiff_t>(part.first * kGroupWidth),
          model.o.begin() + static_cast<std::ptrdiff_t>((part.first + part.real) * kGroupWidth)) {
    const std::uint64_t heads = (part.local - part.real) * kHeadsPerGroup;
    const std::vector<double> q(heads * kHeadDim);
    const std::vector<double> sinks(heads, -std::numeric_limits<double>::infinity());
    const auto values = ref::attention_values(
        q, sinks, {.head_dim = kHeadDim, .kv = std::span(model.o).first(5 * kHeadDim)});
    o.insert(o.end(), values.begin(), values.end());
  }

  static Part scaled(const Part& part, std::uint64_t unit) {
    return {.first = part.first * unit, .real = part.real * unit, .local = part.local * unit};
  }

  [[nodiscard]] ref::OutputPathResult run() const {
    return ref::output_path({.groups = part.local,
                             .heads_per_group = kHeadsPerGroup,
                             .head_dim = kHeadDim,
                             .group_rank = kGroupRank,
                             .frequencies = frequencies,
                             .wo_a = wo_a.view(),
                             .wo_b = wo_b.view()},
                            o, kPosition);
  }

  Part part;
  Fp8Weights wo_a;
  Fp8Weights wo_b;
  std::vector<double> frequencies;
  std::vector<double> o;
};

// Heads in whole groups: tp 3 has nine groups, tp 5 has ten and an empty rank.
std::uint64_t local_groups(std::uint64_t tp) { return divide_up(kGroups, tp); }

TEST(OutputPath, RanksAddUpToTheWholeAndVirtualGroupsAddExactZeros) {
  const Model model;
  const auto whole = Rank(model, kGroups, 0).run();
  for (const std::uint64_t tp : {1, 2, 3, 4, 5, 8}) {
    std::vector<double> sum;
    std::uint64_t virtual_groups = 0;
    for (std::uint64_t index = 0; index < tp; ++index) {
      const Rank rank(model, local_groups(tp), index);
      const auto result = rank.run();
      test::add_to(sum, result.y);
      for (std::uint64_t group = rank.part.real; group < rank.part.local; ++group) {
        ++virtual_groups;
        const auto heads = std::span(rank.o).subspan(group * kGroupWidth, kGroupWidth);
        EXPECT_FALSE(all_zero(heads));
        EXPECT_TRUE(all_zero(std::span(result.z).subspan(group * kGroupRank, kGroupRank)));
        EXPECT_TRUE(all_zero(std::span(result.contributions).subspan(group * kHidden, kHidden)));
      }
      if (rank.part.real == 0) {
        EXPECT_TRUE(all_zero(result.y)) << tp;
      }
    }
    EXPECT_EQ(virtual_groups, local_groups(tp) * tp - kGroups);
    test::expect_same_sum(sum, whole.y, whole.terms_magnitude);
  }
}

TEST(OutputPath, AVirtualGroupChangesNoBitOfItsRank) {
  const Model model;
  Rank padded(model, 3, 2);
  ASSERT_EQ(padded.part.real, 2U);
  const auto before = padded.run();
  for (std::uint64_t i = 2 * kGroupWidth; i < 3 * kGroupWidth; ++i) padded.o[i] = 1e30;
  EXPECT_EQ(padded.run().y, before.y);

  Rank unpadded(model, 2, 3);
  ASSERT_EQ(unpadded.part.first, padded.part.first);
  EXPECT_EQ(unpadded.run().y, before.y);
}

TEST(OutputPath, AVirtualHeadThatIsNotANumberIsNotHidden) {
  const Model model;
  Rank rank(model, 3, 2);
  rank.o.back() = std::nan("");
  EXPECT_TRUE(std::isnan(rank.run().y[0]));
}

TEST(OutputPath, AScaleTailThatIsNotANumberIsNotHidden) {
  const Model model;
  Rank rank(model, 3, 2);
  rank.wo_a.scales.back() = 0xFF;
  EXPECT_TRUE(std::isnan(rank.run().y[0]));
  Rank other(model, 3, 2);
  other.wo_b.scales[other.wo_b.scale_cols() - 1] = 0xFF;
  EXPECT_TRUE(std::isnan(other.run().y[0]));
}

// A product with zeros on its other side hides a byte that should not be there: alone, one in wo_a
// is seen in z, and one in wo_b in nothing but a probe.
TEST(OutputPath, OneByteInAVirtualRowOfWoAIsSeenInZAndWithOneInWoBInY) {
  const Model model;
  const auto clean = Rank(model, 3, 2).run();
  Rank rank(model, 3, 2);
  rank.wo_a.code(2 * kGroupRank, 0) = 0x38;
  const auto one = rank.run();
  EXPECT_NE(one.z[2 * kGroupRank], 0);
  EXPECT_EQ(one.y, clean.y);

  rank.wo_a.scales[2 * kGroupRank / kTile * rank.wo_a.scale_cols()] = kE8m0One;
  rank.wo_b.scales[2 * kGroupRank / kTile] = kE8m0One;
  rank.wo_b.code(0, 2 * kGroupRank) = 0x38;
  const auto both = rank.run();
  EXPECT_NE(both.y[0], clean.y[0]);
  EXPECT_EQ(both.y[1], clean.y[1]);
  EXPECT_NE(both.contributions[2 * kHidden], 0);
}

TEST(OutputPath, OneByteInAVirtualColumnOfWoBIsSeenUnderAProbeForWoA) {
  const Model model;
  Rank rank(model, 3, 2);
  // A probe: ones in all rows of wo_a that are virtual.
  for (std::uint64_t row = 2 * kGroupRank; row < 3 * kGroupRank; ++row) {
    for (std::uint64_t col = 0; col < kGroupWidth; ++col) rank.wo_a.code(row, col) = 0x38;
  }
  const auto clean = rank.run();
  EXPECT_TRUE(all_zero(std::span(clean.contributions).subspan(2 * kHidden, kHidden)));
  for (std::uint64_t col = 2 * kGroupRank; col < 3 * kGroupRank; ++col) {
    Rank faulty = rank;
    faulty.wo_b.code(7, col) = 0x01;
    const auto result = faulty.run();
    for (std::uint64_t row = 0; row < kHidden; ++row)
      EXPECT_EQ(result.contributions[2 * kHidden + row] != 0, row == 7) << col;
  }
}

}  // namespace
}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// Golden values: the published worked example of R = 4 and the frequencies of DeepSeek-V4.
#include "kernels/ref/rotary.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <utility>
#include <vector>

#include "kernels/ref/fp8_weights.hpp"

namespace moxie {
namespace {

using ref::Rotation;
using test::expect_near;

const std::vector<double> kExample = {1, 2, 3, 4};
const std::vector<double> kExampleFrequencies = {1, 0.01};

std::vector<double> rotated(std::vector<double> head, const std::vector<double>& frequencies,
                            std::uint64_t position, Rotation rotation) {
  ref::rotate(head, frequencies, position, rotation);
  return head;
}

TEST(Rotary, TheWorkedExampleTurnsAdjacentPairsBothWays) {
  EXPECT_EQ(ref::rotary_frequencies({.theta = 10000, .dims = 4}), kExampleFrequencies);
  expect_near(rotated(kExample, kExampleFrequencies, 3, Rotation::forward),
              std::vector<double>{-1.272233, -1.838865, 2.878668, 4.088187}, test::kPrinted);
  expect_near(rotated(kExample, kExampleFrequencies, 3, Rotation::inverse),
              std::vector<double>{-0.707752, -2.121105, 3.118632, 3.908214}, test::kPrinted);
}

TEST(Rotary, PairsOfTheTwoHalvesWouldGiveOtherValues) {
  // (0, 2) and (1, 3) brought side by side, and back.
  std::vector<double> halves = {1, 3, 2, 4};
  ref::rotate(halves, kExampleFrequencies, 3, Rotation::inverse);
  std::swap(halves[1], halves[2]);
  expect_near(halves, std::vector<double>{-0.566632, 2.119082, -3.111097, 3.938209},
              test::kPrinted);
}

TEST(Rotary, OnlyTheLastDimensionsOfAHeadTurn) {
  const auto head = rotated({7, -8, 1, 2, 3, 4}, kExampleFrequencies, 3, Rotation::forward);
  expect_near(head, std::vector<double>{7, -8, -1.272233, -1.838865, 2.878668, 4.088187},
              test::kPrinted);
  EXPECT_EQ(head[0], 7);
  EXPECT_EQ(head[1], -8);
}

TEST(Rotary, CompressedLayersHaveTheGoldenFrequenciesOfYarn) {
  const auto frequencies = ref::rotary_frequencies(
      {.theta = 160000,
       .dims = 64,
       .yarn = ref::Yarn{.factor = 16, .beta_fast = 32, .beta_slow = 1, .original_max = 65536}});
  ASSERT_EQ(frequencies.size(), 32U);
  EXPECT_EQ(frequencies[0], 1);
  for (const auto& [pair, golden] : {std::pair<std::size_t, double>{1, 0.68765602},
                                     {15, 0.0036355386},
                                     {16, 0.002265625},
                                     {20, 2.9697778e-4},
                                     {25, 5.3723127e-6},
                                     {31, 5.680529e-7}})
    EXPECT_NEAR(frequencies[pair], golden, 1e-7 * golden) << pair;

  // Pairs up to 15 keep their frequency, those from 25 on are slower by the whole factor.
  const auto plain = ref::rotary_frequencies({.theta = 160000, .dims = 64});
  for (std::size_t pair = 0; pair <= 15; ++pair) EXPECT_EQ(frequencies[pair], plain[pair]) << pair;
  for (std::size_t pair = 16; pair < 25; ++pair) EXPECT_LT(frequencies[pair], plain[pair]) << pair;
  for (std::size_t pair = 25; pair < 32; ++pair)
    EXPECT_DOUBLE_EQ(frequencies[pair], plain[pair] / 16) << pair;
}

// The limits of the published reference: pairs below 0 do not exist, and a ramp has some width.
TEST(Rotary, ARampStartsAtPairZeroAtTheEarliestAndIsAStepWhereItHasNoWidth) {
  const auto yarn = [](double fast, double slow) {
    return ref::rotary_frequencies(
        {.theta = 10000,
         .dims = 8,
         .yarn =
             ref::Yarn{.factor = 4, .beta_fast = fast, .beta_slow = slow, .original_max = 100}});
  };
  const auto plain = ref::rotary_frequencies({.theta = 10000, .dims = 8});
  // 100 turns in 100 positions are pair -0.80, half a turn is pair 1.50: from 0 to 2.
  const auto early = yarn(100, 0.5);
  expect_near(early, std::vector<double>{plain[0], plain[1] * 0.625, plain[2] / 4, plain[3] / 4},
              1e-15);
  // Both ends are pair 0.
  const auto step = yarn(100, 50);
  expect_near(step, std::vector<double>{plain[0], plain[1] / 4, plain[2] / 4, plain[3] / 4}, 1e-15);
}

TEST(Rotary, TheInverseUndoesTheRotationAndPositionZeroDoesNothing) {
  std::mt19937_64 random(1);
  const auto frequencies = ref::rotary_frequencies({.theta = 10000, .dims = 64});
  const auto head = test::random_values(96, random);
  auto there = rotated(head, frequencies, 100003, Rotation::forward);
  EXPECT_NE(there, head);
  expect_near(rotated(there, frequencies, 100003, Rotation::inverse), head, 1e-14);
  EXPECT_EQ(rotated(head, frequencies, 0, Rotation::inverse), head);
}

TEST(Rotary, MagnitudesBoundBothTermsOfEveryValue) {
  std::vector<double> magnitude = {-7, 3, -4};
  ref::rotate_magnitude(magnitude, std::vector<double>{0.5}, 3);
  const double cosine = std::abs(std::cos(1.5));
  const double sine = std::abs(std::sin(1.5));
  expect_near(magnitude, std::vector<double>{7, 3 * cosine + 4 * sine, 3 * sine + 4 * cosine},
              1e-15);
}

TEST(Rotary, ANanReachesItsPairAndNoOther) {
  std::vector<double> head = kExample;
  head[1] = std::nan("");
  ref::rotate(head, kExampleFrequencies, 3, Rotation::inverse);
  EXPECT_TRUE(std::isnan(head[0]) && std::isnan(head[1]));
  EXPECT_TRUE(std::isfinite(head[2]) && std::isfinite(head[3]));
}

}  // namespace
}  // namespace moxie

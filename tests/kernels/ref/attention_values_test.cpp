// SPDX-License-Identifier: Apache-2.0
#include "kernels/ref/attention_values.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/ref/fp8_weights.hpp"

namespace moxie {
namespace {

using test::expect_near;

constexpr double kNoSink = -std::numeric_limits<double>::infinity();

TEST(AttentionValues, TheSinkEnlargesTheDenominatorOnly) {
  const std::vector<double> scores = {1, 0};
  expect_near(ref::sink_softmax(scores, 0.5), std::vector<double>{0.506480, 0.186324},
              test::kPrinted);
  expect_near(ref::sink_softmax(scores, kNoSink), std::vector<double>{0.731059, 0.268941},
              test::kPrinted);
}

TEST(AttentionValues, LargeScoresAndSinksDoNotOverflow) {
  const std::vector<double> scores = {5000, 4999};
  expect_near(ref::sink_softmax(scores, 4999.5), std::vector<double>{0.506480, 0.186324},
              test::kPrinted);
  expect_near(ref::sink_softmax(scores, 9000), std::vector<double>{0.0, 0.0}, 0);
}

TEST(AttentionValues, ZeroQueriesGiveTheAverageOfTheValuesAndNotZero) {
  const std::vector<double> kv = {1, 2, 3, 6, -1, 4};
  const std::vector<double> q = {0, 0, 0, 0};
  const std::vector<double> sinks = {kNoSink, 0};
  const auto values = ref::attention_values(q, sinks, {.head_dim = 2, .kv = kv});
  // The second head has a sink of 0: a fourth key without a value.
  expect_near(values, std::vector<double>{1.0, 4.0, 0.75, 3.0}, 1e-15);
}

TEST(AttentionValues, HeadsShareKeysAndTheScoreHasItsFactor) {
  const std::vector<double> kv = {2, 0, 0, 2};
  const std::vector<double> q = {1, 0, 0, -1};
  const std::vector<double> sinks = {0.5, kNoSink};
  const auto values = ref::attention_values(q, sinks, {.head_dim = 2, .kv = kv, .score_mul = 0.5});
  expect_near(values, std::vector<double>{2 * 0.506480, 2 * 0.186324, 2 * 0.731059, 2 * 0.268941},
              2 * test::kPrinted);
}

TEST(AttentionValues, ANanQueryReachesItsHeadAndNoOther) {
  const std::vector<double> kv = {2, 0, 0, 2};
  const std::vector<double> q = {1, 0, std::nan(""), -1};
  const std::vector<double> sinks = {0, 0};
  const auto values = ref::attention_values(q, sinks, {.head_dim = 2, .kv = kv});
  EXPECT_TRUE(std::isfinite(values[0]) && std::isfinite(values[1]));
  EXPECT_TRUE(std::isnan(values[2]) && std::isnan(values[3]));
}

}  // namespace
}  // namespace moxie

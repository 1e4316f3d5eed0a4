// SPDX-License-Identifier: Apache-2.0
// cpu.portable.route against worked examples: selection, final weights, ties, what is no number.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "kernels/cpu/route_call.hpp"

namespace moxie {
namespace {

using test::call_of_logits;
using test::expect_weights;
using test::kInfinity;
using test::kNan;
using test::logit_of;
using test::RouteCall;
using test::Routed;

using Ids = std::vector<std::int32_t>;

// The example that the models' description works out.
RouteCall worked_example() {
  RouteCall call = call_of_logits(RouterKind::sqrt_softplus, 4, 2, {1.0F, -2.0F, 0.5F, 3.0F});
  call.shape.routed_scaling = 1.5F;
  return call;
}

TEST(Route, TakesTheKindsThatAreBuilt) {
  const auto supports = cpu::portable::kRoute.supports;
  EXPECT_TRUE(supports(RouterKind::sqrt_softplus));
  EXPECT_TRUE(supports(RouterKind::sigmoid));
  EXPECT_TRUE(supports(RouterKind::softmax_topk));
  EXPECT_TRUE(supports(RouterKind::topk_softmax));
  EXPECT_TRUE(supports(RouterKind::scaled_softmax));
}

// pit40. Without the bias in the selection it would be [3, 0], with it in the weights [1.009182,
// 0.490818].
TEST(Route, SqrtSoftplusSelectsByBiasedScoresAndWeighsByUnbiasedOnes) {
  RouteCall call = worked_example();
  call.bias = {0.0F, 2.0F, 0.1F, -1.0F};
  const Routed routed = run(call);
  EXPECT_EQ(routed.ids, (Ids{1, 0}));
  expect_weights(routed.weights, {0.355737, 1.144263});
  EXPECT_EQ(routed.flags, 0U);
  call.bias.clear();
  EXPECT_EQ(run(call).ids, (Ids{3, 0}));
}

TEST(Route, SqrtSoftplusIsStableFarFromZero) {  // pit41
  for (const auto& [logit, expected] : {std::pair{100.0F, 10.0},
                                        {-40.0F, 2.061153622e-9},
                                        {0.0F, 0.832554611},
                                        {-87.0F, 1.28289186e-19},
                                        {3.0e38F, 1.7320508e19}}) {
    RouteCall call = call_of_logits(RouterKind::sqrt_softplus, 1, 1, {logit});
    call.shape.norm_topk = false;  // the weight is then the score
    const Routed routed = run(call);
    EXPECT_EQ(routed.ids, Ids{0});
    expect_weights(routed.weights, {expected}, 1e-4 * expected);
    call.shape.norm_topk = true;
    // Below the least sum of 1e-20 the weights would not add up; no such score is here.
    expect_weights(run(call).weights, {1.0});
  }
}

TEST(Route, SigmoidIsStableFarFromZero) {
  for (const auto& [logit, expected] :
       {std::pair{100.0F, 1.0}, {-40.0F, 4.24835426e-18}, {0.0F, 0.5}, {-3.0e38F, 0.0}}) {
    RouteCall call = call_of_logits(RouterKind::sigmoid, 1, 1, {logit});
    call.shape.norm_topk = false;
    expect_weights(run(call).weights, {expected}, 1e-6 * expected);
  }
}

RouteCall grouped_example() {
  RouteCall call =
      call_of_logits(RouterKind::sigmoid, 8, 3, {2.0F, -1.0F, 1.0F, 0.9F, 3.0F, -3.0F, 0.0F, 0.0F});
  call.bias = {0.0F, 0.0F, 0.2F, 0.0F, -0.5F, 0.0F, 0.3F, 0.0F};
  call.shape.routed_scaling = 2.5F;
  call.shape.expert_groups = 4;
  call.shape.kept_groups = 2;
  return call;
}

TEST(Route, KeepsTheGroupsOfTheTwoBestExperts) {  // pit43
  RouteCall call = grouped_example();
  const Routed routed = run(call);
  EXPECT_EQ(routed.ids, (Ids{2, 6, 3}));
  expect_weights(routed.weights, {0.941112, 0.643664, 0.915225});
  call.shape.expert_groups = call.shape.kept_groups = 1;
  EXPECT_EQ(run(call).ids, (Ids{2, 0, 6}));
}

// pit43: with 0 in place of minus infinity it would be [2, 0, 1].
TEST(Route, AMaskedGroupStaysOutWhenEveryKeptScoreIsNegative) {
  RouteCall call = call_of_logits(RouterKind::sigmoid, 8, 3, std::vector(8, 0.0F));
  call.bias = {-0.4F, -0.3F, 0.5F, -0.6F, -0.2F, -0.1F, -0.7F, -0.8F};
  for (float& bias : call.bias) bias -= 0.5F;  // every score is 0.5
  call.shape.expert_groups = 4;
  call.shape.kept_groups = 2;
  EXPECT_EQ(run(call).ids, (Ids{2, 5, 4}));
}

TEST(Route, OneGroupOfSigmoidsWithABiasRenormalises) {
  RouteCall call = call_of_logits(RouterKind::sigmoid, 4, 2, {0.0F, 1.0F, 2.0F, -1.0F});
  call.bias = {0.5F, 0.0F, 0.0F, 0.1F};
  const Routed routed = run(call);
  EXPECT_EQ(routed.ids, (Ids{0, 2}));
  expect_weights(routed.weights, {0.362110, 0.637890});
}

TEST(Route, ASoftmaxOverAllIsRenormalisedOrNot) {
  RouteCall call = call_of_logits(RouterKind::softmax_topk, 4, 2, {1.0F, 2.0F, 3.0F, 0.0F});
  EXPECT_EQ(run(call).ids, (Ids{2, 1}));
  expect_weights(run(call).weights, {0.731059, 0.268941});
  call.shape.norm_topk = false;
  expect_weights(run(call).weights, {0.643914, 0.236883});
  call.shape.routed_scaling = 2.0F;  // S-07: scaling is there in both
  expect_weights(run(call).weights, {1.287828, 0.473766});
}

// The bias is part of the logits: it counts in the selection and in the weights.
TEST(Route, ASoftmaxOverTheChosenLogitsCountsTheirBias) {  // pit44
  RouteCall call = call_of_logits(RouterKind::topk_softmax, 4, 2, {1.0F, 2.0F, 0.0F, -1.0F});
  expect_weights(run(call).weights, {0.731059, 0.268941});
  call.bias = {0.0F, -5.0F, 0.0F, 3.0F};
  EXPECT_EQ(run(call).ids, (Ids{3, 0}));
  expect_weights(run(call).weights, {0.731059, 0.268941});
}

TEST(Route, ASoftmaxIsStableFarFromZero) {
  for (const RouterKind kind : {RouterKind::softmax_topk, RouterKind::topk_softmax}) {
    for (const float offset : {-3e38F, -1e4F, 1e4F, 3e38F}) {
      const Routed routed = run(call_of_logits(kind, 3, 2, {offset, offset, offset}));
      EXPECT_EQ(routed.ids, (Ids{0, 1}));
      expect_weights(routed.weights, {0.5, 0.5});
    }
    const Routed far = run(call_of_logits(kind, 3, 2, {-1e30F, 5.0F, 1e30F}));
    EXPECT_EQ(far.ids, (Ids{2, 1}));
    expect_weights(far.weights, {1.0, 0.0});
  }
}

TEST(Route, ASoftmaxLeavesOutLogitsThatAreNoNumbers) {  // S-02
  RouteCall call = call_of_logits(RouterKind::softmax_topk, 4, 2, {0.0F, 1.0F, 0.0F, 2.0F});
  call.weight[0] = kNan;  // the logit of expert 0
  call.shape.norm_topk = false;
  EXPECT_EQ(run(call).ids, (Ids{3, 1}));
  expect_weights(run(call).weights, {0.665241, 0.244728});
}

TEST(Route, S06_TiesGoToTheLowerIdInEveryRow) {
  for (const auto kind : {RouterKind::sqrt_softplus, RouterKind::sigmoid}) {
    std::vector<float> logits;
    Ids expected;
    for (int pair = 0; pair < 40; ++pair) {
      logits.insert(logits.end(), {1.0F, 1.0F, 1.0F, 1.0F, 0.0F, 2.0F, 2.0F, 2.0F});
      expected.insert(expected.end(), {0, 1, 1, 2});
    }
    RouteCall call = call_of_logits(kind, 4, 2, logits);
    for (const unsigned threads : {1U, 2U}) {
      call.threads = threads;
      EXPECT_EQ(run(call).ids, expected);
    }
  }
}

TEST(Route, S06_TiesAmongGroupsGoToTheLowerGroup) {
  RouteCall call =
      call_of_logits(RouterKind::sigmoid, 8, 2, {0.0F, 0.0F, 1.0F, 1.0F, 1.0F, 1.0F, 1.0F, 1.0F});
  call.shape.expert_groups = 4;
  call.shape.kept_groups = 1;
  EXPECT_EQ(run(call).ids, (Ids{2, 3}));
  call.shape.kept_groups = 2;
  call.shape.top_k = 4;
  EXPECT_EQ(run(call).ids, (Ids{2, 3, 4, 5}));
}

TEST(Route, S07_ScalingAndRenormalisationAreIndependentAndAppliedOnce) {
  RouteCall call =
      call_of_logits(RouterKind::sigmoid, 3, 2, {logit_of(0.2), logit_of(0.4), logit_of(0.1)});
  call.shape.routed_scaling = 2.5F;
  const Routed routed = run(call);
  EXPECT_EQ(routed.ids, (Ids{1, 0}));
  expect_weights(routed.weights, {1.666667, 0.833333});
  call.shape.norm_topk = false;
  expect_weights(run(call).weights, {1.0, 0.5});
}

TEST(Route, S08_TheCorrectionBiasIsForSelectionOnly) {
  RouteCall call =
      call_of_logits(RouterKind::sigmoid, 3, 2, {logit_of(0.6), logit_of(0.5), logit_of(0.4)});
  call.bias = {0.0F, 0.0F, 0.3F};
  const Routed routed = run(call);
  EXPECT_EQ(routed.ids, (Ids{2, 0}));
  expect_weights(routed.weights, {0.4, 0.6});
}

TEST(Route, S09_EveryTokenHasItsOwnRowOfIdsAndWeights) {
  const std::vector<float> both = {3.0F, 2.0F, 0.0F, 0.0F, 0.0F, 0.0F, 3.0F, 2.0F};
  RouteCall call = call_of_logits(RouterKind::sigmoid, 4, 2, both);
  EXPECT_EQ(run(call).ids, (Ids{0, 1, 2, 3}));
  call.x.resize(4);
  EXPECT_EQ(run(call).ids, (Ids{0, 1}));
  // With one choice the weight is still normalised per token.
  call = call_of_logits(RouterKind::sigmoid, 4, 1, both);
  call.shape.routed_scaling = 1.5F;
  const Routed routed = run(call);
  EXPECT_EQ(routed.ids, (Ids{0, 2}));
  expect_weights(routed.weights, {1.5, 1.5});
}

TEST(Route, S02_NanLogitsAreNeverSelectedAndTooFewLogitsMaskTheToken) {
  for (const auto kind : {RouterKind::sqrt_softplus, RouterKind::sigmoid}) {
    // A NaN in x makes all logits of its token NaN; the one in the weight those of expert 0.
    RouteCall call = call_of_logits(kind, 4, 2, {kNan, 0, 0, 0, 5, 1, 0, 2, 0, 9, 0, 8});
    call.weight[0] = kNan;
    const Routed routed = run(call);
    EXPECT_EQ(routed.ids, (Ids{-1, -1, 3, 1, 1, 3}));
    EXPECT_EQ(routed.weights[0], 0.0F);
    EXPECT_EQ(routed.weights[1], 0.0F);
    EXPECT_TRUE(routed.weights[2] > routed.weights[3] && routed.weights[3] > 0);
    EXPECT_EQ(routed.flags, kFlagBadLogits);
    call.x.erase(call.x.begin(), call.x.begin() + 4);
    EXPECT_EQ(run(call).flags, 0U);
    call.shape.top_k = 4;
    EXPECT_EQ(run(call).ids, Ids(8, -1));
    call.shape.top_k = 3;
    EXPECT_EQ(run(call).ids, (Ids{3, 1, 2, 1, 3, 2}));
  }
}

// An infinite logit has no finite weight, so it counts as no number either.
TEST(Route, InfiniteLogitsAreNotSelected) {
  for (const float infinity : {kInfinity, -kInfinity}) {
    RouteCall call = call_of_logits(RouterKind::sqrt_softplus, 3, 2, {1.0F, 0.5F, 0.25F});
    call.weight[0] = infinity;
    const Routed routed = run(call);
    EXPECT_EQ(routed.ids, (Ids{1, 2}));
    EXPECT_TRUE(std::isfinite(routed.weights[0]) && std::isfinite(routed.weights[1]));
    call.shape.top_k = 3;
    EXPECT_EQ(run(call).ids, Ids(3, -1));
    EXPECT_EQ(run(call).flags, kFlagBadLogits);
  }
}

TEST(Route, AGroupWithFewerThanTwoNumbersComesLast) {  // S-02
  RouteCall call = call_of_logits(RouterKind::sigmoid, 6, 2, {9.0F, 9.0F, 1.0F, 1.0F, 2.0F, 2.0F});
  call.shape.expert_groups = 3;
  call.weight[0] = kNan;
  EXPECT_EQ(run(call).ids, (Ids{4, 5}));
  // Group 2 is kept and group 0 with it, by its number: three experts can be chosen, four can not.
  call.weight[2 * 6 + 2] = kNan;
  call.shape.kept_groups = 2;
  call.shape.top_k = 3;
  EXPECT_EQ(run(call).ids, (Ids{1, 4, 5}));
  EXPECT_EQ(run(call).flags, 0U);
  call.shape.top_k = 4;
  EXPECT_EQ(run(call).ids, Ids(4, -1));
  EXPECT_EQ(run(call).flags, kFlagBadLogits);
}

// pit42. The bias would change the weights if it entered, and the table does not follow scores.
TEST(Route, ATokenTableGivesTheIdsAndScoresGiveTheWeights) {
  RouteCall call = worked_example();
  call.shape.vocab = 3;
  call.table = {0, 0, 1, 3, 3, 1};
  call.token_ids = {1};
  call.bias = {5.0F, 5.0F, 5.0F, 5.0F};
  Routed routed = run(call);
  EXPECT_EQ(routed.ids, (Ids{1, 3}));
  expect_weights(routed.weights, {0.254201, 1.245799});
  call.token_ids = {2};
  routed = run(call);
  EXPECT_EQ(routed.ids, (Ids{3, 1}));
  expect_weights(routed.weights, {1.245799, 0.254201});
  // Duplicates are two slots.
  call.token_ids = {0};
  routed = run(call);
  EXPECT_EQ(routed.ids, (Ids{0, 0}));
  expect_weights(routed.weights, {0.75, 0.75});
  EXPECT_EQ(routed.flags, 0U);
}

TEST(Route, ATokenIdOutsideTheTableMasksItsTokenAlone) {  // pit42
  RouteCall call = worked_example();
  for (int copy = 0; copy < 3; ++copy)
    call.x.insert(call.x.end(), call.x.begin(), call.x.begin() + 4);
  call.shape.vocab = 2;
  call.table = {0, 1, 1, 3};
  call.token_ids = {1, -1, 0, std::numeric_limits<std::int64_t>::min()};
  Routed routed = run(call);
  EXPECT_EQ(routed.ids, (Ids{1, 3, -1, -1, 0, 1, -1, -1}));
  EXPECT_EQ(routed.flags, 0U) << "a negative id is a masked token, not a mistake";
  for (const std::int64_t wrong :
       {std::int64_t{2}, std::numeric_limits<std::int64_t>::max(), std::int64_t{1} << 32}) {
    call.token_ids[1] = wrong;
    routed = run(call);
    EXPECT_EQ(routed.ids, (Ids{1, 3, -1, -1, 0, 1, -1, -1}));
    EXPECT_EQ(routed.weights[2], 0.0F);
    EXPECT_EQ(routed.weights[3], 0.0F);
    EXPECT_EQ(routed.flags, kFlagBadTokenId);
  }
}

TEST(Route, OnlyTheLogitsOfATokensOwnExpertsCount) {  // S-02
  RouteCall call = worked_example();
  call.shape.vocab = 2;
  call.table = {0, 1, 1, 3};
  call.weight[0] = kNan;
  call.token_ids = {1};
  Routed routed = run(call);
  EXPECT_EQ(routed.ids, (Ids{1, 3}));
  EXPECT_EQ(routed.flags, 0U);
  call.token_ids = {0};
  routed = run(call);
  EXPECT_EQ(routed.ids, (Ids{-1, -1}));
  EXPECT_EQ(routed.weights, (std::vector{0.0F, 0.0F}));
  EXPECT_EQ(routed.flags, kFlagBadLogits);
}

// A padded token may hold anything: it is no mistake of the batch.
TEST(Route, ANegativeTokenIdMasksATokenWithoutATableToo) {
  RouteCall call = worked_example();
  call.x.insert(call.x.begin(), 4, kNan);
  EXPECT_EQ(run(call).flags, kFlagBadLogits);
  call.token_ids = {-1, 1 << 30};
  const Routed routed = run(call);
  EXPECT_EQ(routed.ids, (Ids{-1, -1, 3, 0}));
  EXPECT_EQ(routed.weights[0], 0.0F);
  EXPECT_EQ(routed.flags, 0U);
}

TEST(Route, NoTokensTouchNothing) {
  cpu::portable::kRoute.run({.shape = worked_example().shape});
  EXPECT_TRUE(run(call_of_logits(RouterKind::sigmoid, 4, 2, {})).ids.empty());
}

TEST(Route, TheWorkspaceGrowsWithTheTokensAndNeverWraps) {
  const auto bytes = cpu::portable::kRoute.workspace_bytes;
  for (const RouterShape& shape : {worked_example().shape, grouped_example().shape}) {
    std::uint64_t before = 0;
    for (const std::uint64_t tokens : {0U, 1U, 2U, 127U, 8192U}) {
      EXPECT_GE(bytes(shape, tokens), before);
      EXPECT_EQ(bytes(shape, tokens), bytes(shape, tokens));
      before = bytes(shape, tokens);
    }
    EXPECT_EQ(bytes(shape, ~std::uint64_t{0}), ~std::uint64_t{0});
    EXPECT_EQ(bytes(shape, ~std::uint64_t{0} / (4 * shape.experts)), ~std::uint64_t{0});
  }
}

}  // namespace
}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// cpu.portable.route against another implementation in double, and against itself: a token's bits
// do not depend on batch, threads or neighbours.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/cpu/route_call.hpp"

namespace moxie {
namespace {

using test::expect_same;
using test::kNan;
using test::RouteCall;
using test::Routed;

// Values that bf16 holds, so that a conversion changes nothing.
std::vector<float> random_values(std::mt19937_64& random, std::uint64_t count, float width) {
  std::uniform_real_distribution<float> uniform(-width, width);
  std::vector<float> values(count);
  for (float& value : values) value = decode_bf16(encode_bf16(uniform(random)));
  return values;
}

RouteCall random_call(std::mt19937_64& random, const RouterShape& shape, std::uint64_t tokens) {
  const float width = 4.0F / std::sqrt(static_cast<float>(shape.hidden));
  return {.shape = shape,
          .weight_type = random() % 2 == 0 ? DType::bf16 : DType::f32,
          .x_type = random() % 2 == 0 ? DType::bf16 : DType::f32,
          .weight = random_values(random, shape.experts * shape.hidden, width),
          .x = random_values(random, tokens * shape.hidden, 1.0F),
          .bias = random_values(random, shape.experts, 0.5F)};
}

std::uint64_t below(std::mt19937_64& random, std::uint64_t end) { return random() % end; }

RouterShape random_shape(std::mt19937_64& random, RouterKind kind) {
  const std::uint64_t groups =
      kind == RouterKind::sigmoid && below(random, 2) == 0 ? 2 + below(random, 7) : 1;
  const std::uint64_t group_experts = groups > 1 ? 2 + below(random, 36) : 1 + below(random, 300);
  const std::uint64_t kept = groups > 1 ? 1 + below(random, groups) : 1;
  return {.kind = kind,
          .hidden = 1 + below(random, 200),
          .experts = groups * group_experts,
          .top_k = 1 + below(random, std::min<std::uint64_t>(16, kept * group_experts)),
          .expert_groups = groups,
          .kept_groups = kept,
          .norm_topk = below(random, 4) != 0,
          .routed_scaling = static_cast<float>(1 + below(random, 10)) / 2};
}

// What the double implementation says of one token.
struct Judged {
  std::vector<std::size_t> ids;
  std::vector<double> weights;
  double gap = INFINITY;  // the smallest difference that decided anything
};

std::vector<std::size_t> sorted_by(const std::vector<double>& values) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [&](auto a, auto b) { return values[a] > values[b]; });
  return order;
}

Judged judge(const RouteCall& call, std::uint64_t token) {
  const RouterShape& shape = call.shape;
  std::vector<double> scores(shape.experts);
  std::vector<double> biased(shape.experts);
  for (std::size_t expert = 0; expert < shape.experts; ++expert) {
    double logit = 0;
    for (std::size_t h = 0; h < shape.hidden; ++h) {
      logit += double{call.weight[expert * shape.hidden + h]} * call.x[token * shape.hidden + h];
    }
    scores[expert] = shape.kind == RouterKind::sigmoid ? 1 / (1 + std::exp(-logit))
                                                       : std::sqrt(std::log(1 + std::exp(logit)));
    biased[expert] = scores[expert] + call.bias[expert];
  }
  Judged judged;
  const auto decide = [&](const std::vector<double>& values, std::size_t taken, bool in_order) {
    const auto order = sorted_by(values);
    for (std::size_t i = in_order ? 0 : taken - 1; i < taken && i + 1 < order.size(); ++i) {
      judged.gap = std::min(judged.gap, values[order[i]] - values[order[i + 1]]);
    }
    return std::vector<std::size_t>(order.begin(), order.begin() + static_cast<long>(taken));
  };
  if (shape.expert_groups > 1) {
    const std::size_t size = shape.experts / shape.expert_groups;
    std::vector<double> group_scores;
    for (std::size_t begin = 0; begin < shape.experts; begin += size) {
      std::vector<double> group(biased.begin() + static_cast<long>(begin),
                                biased.begin() + static_cast<long>(begin + size));
      std::ranges::sort(group, std::greater());
      group_scores.push_back(group[0] + group[1]);
    }
    const auto kept = decide(group_scores, shape.kept_groups, false);
    for (std::size_t expert = 0; expert < shape.experts; ++expert) {
      if (std::ranges::find(kept, expert / size) == kept.end()) biased[expert] = -INFINITY;
    }
  }
  judged.ids = decide(biased, shape.top_k, true);
  double sum = 0;
  for (const std::size_t id : judged.ids) sum += scores[id];
  for (const std::size_t id : judged.ids) {
    judged.weights.push_back(shape.routed_scaling * scores[id] / (shape.norm_topk ? sum : 1));
  }
  return judged;
}

class RouteOfKind : public testing::TestWithParam<RouterKind> {};

// The bound on a weight is 1e-6 of its scale: logits of at most 200 products of order one are
// within 1e-6, and neither score is steeper than 1/2.
TEST_P(RouteOfKind, AgreesWithAnotherImplementationInDouble) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  constexpr double kNearTie = 4e-6;
  std::uint64_t tokens = 0;
  std::uint64_t compared = 0;
  for (int round = 0; round < 150; ++round) {
    RouteCall call = random_call(random, random_shape(random, GetParam()), 1 + below(random, 9));
    call.threads = 1 + static_cast<unsigned>(below(random, 2));
    const RouterShape& shape = call.shape;
    const Routed routed = run(call);
    EXPECT_EQ(routed.flags, 0U);
    for (std::uint64_t token = 0; token < call.tokens(); ++token, ++tokens) {
      const Judged judged = judge(call, token);
      if (judged.gap < kNearTie) continue;
      ++compared;
      double sum = 0;
      for (std::uint64_t choice = 0; choice < shape.top_k; ++choice) {
        const std::uint64_t slot = token * shape.top_k + choice;
        ASSERT_EQ(routed.ids[slot], static_cast<std::int32_t>(judged.ids[choice]))
            << "round " << round << " token " << token << " choice " << choice;
        ASSERT_TRUE(std::fabs(routed.weights[slot] - judged.weights[choice]) <=
                    1e-6 * shape.routed_scaling)
            << routed.weights[slot] << " for " << judged.weights[choice];
        sum += routed.weights[slot];
      }
      // pit45: final once, so a token's weights add up to the scaling factor.
      if (shape.norm_topk) {
        ASSERT_TRUE(std::fabs(sum - shape.routed_scaling) <= 1e-6 * shape.routed_scaling) << sum;
      }
    }
  }
  EXPECT_GT(compared, tokens * 9 / 10) << "near-ties left too little to compare";
}

INSTANTIATE_TEST_SUITE_P(Kinds, RouteOfKind,
                         testing::Values(RouterKind::sqrt_softplus, RouterKind::sigmoid),
                         [](const auto& test) {
                           return test.param == RouterKind::sigmoid ? "Sigmoid" : "SqrtSoftplus";
                         });

// The rows [begin, begin + count) of a call.
RouteCall rows_of(const RouteCall& call, std::uint64_t begin, std::uint64_t count) {
  RouteCall part = call;
  const auto x = call.x.begin() + static_cast<long>(begin * call.shape.hidden);
  part.x.assign(x, x + static_cast<long>(count * call.shape.hidden));
  if (!call.token_ids.empty()) {
    const auto ids = call.token_ids.begin() + static_cast<long>(begin);
    part.token_ids.assign(ids, ids + static_cast<long>(count));
  }
  return part;
}

Routed slots_of(const Routed& routed, std::uint64_t begin, std::uint64_t count,
                std::uint64_t top_k) {
  const auto cut = [&](const auto& all) {
    const auto from = all.begin() + static_cast<long>(begin * top_k);
    return std::decay_t<decltype(all)>(from, from + static_cast<long>(count * top_k));
  };
  return {.ids = cut(routed.ids), .weights = cut(routed.weights)};
}

void expect_invariance(RouteCall call) {
  const std::uint64_t top_k = call.shape.top_k;
  call.threads = 1;
  const Routed whole = run(call);
  for (const unsigned threads : {2U, 3U}) {
    call.threads = threads;
    expect_same(run(call), whole);
  }
  for (std::uint64_t token = 0; token < call.tokens(); ++token) {
    expect_same(run(rows_of(call, token, 1)), slots_of(whole, token, 1, top_k));
  }
  for (const std::uint64_t count : {2U, 3U, 5U, 16U, 17U}) {
    const std::uint64_t begin = call.tokens() - count;
    expect_same(run(rows_of(call, begin, count)), slots_of(whole, begin, count, top_k));
  }
}

TEST(RouteInvariance, ATokenHasTheSameBitsAloneAndInABatchAndOnAnyThreads) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  for (const std::uint64_t hidden : {15U, 16U, 333U}) {
    expect_invariance(random_call(
        random, {.hidden = hidden, .experts = 67, .top_k = 6, .routed_scaling = 1.5F}, 129));
    expect_invariance(random_call(random,
                                  {.kind = RouterKind::sigmoid,
                                   .hidden = hidden,
                                   .experts = 64,
                                   .top_k = 8,
                                   .expert_groups = 8,
                                   .kept_groups = 4,
                                   .routed_scaling = 2.5F},
                                  129));
  }
}

TEST(RouteInvariance, HashRoutingHasTheBitsOfTheScoresOfAllExperts) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  RouteCall call =
      random_call(random, {.hidden = 301, .experts = 40, .top_k = 6, .routed_scaling = 1.5F}, 129);
  const Routed by_score = run(call);
  // A table whose entry for token t is what the scores chose.
  call.shape.vocab = call.tokens();
  call.table = by_score.ids;
  call.token_ids.resize(call.tokens());
  std::iota(call.token_ids.begin(), call.token_ids.end(), 0);
  expect_same(run(call), by_score);
  expect_invariance(call);
}

TEST(RouteInvariance, ABadTokenDoesNotTouchItsNeighbours) {  // S-02
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  RouteCall call =
      random_call(random, {.hidden = 64, .experts = 32, .top_k = 4, .routed_scaling = 1.5F}, 35);
  const Routed clean = run(call);
  const std::uint64_t bad = below(random, 35);
  call.x[bad * 64 + below(random, 64)] = kNan;
  const Routed routed = run(call);
  EXPECT_EQ(routed.flags, kFlagBadLogits);
  expect_same(slots_of(routed, 0, bad, 4), slots_of(clean, 0, bad, 4));
  expect_same(slots_of(routed, bad + 1, 34 - bad, 4), slots_of(clean, bad + 1, 34 - bad, 4));
  for (std::uint64_t slot = 4 * bad; slot < 4 * bad + 4; ++slot) {
    EXPECT_EQ(routed.ids[slot], -1);
    EXPECT_EQ(routed.weights[slot], 0.0F);
  }
}

}  // namespace
}  // namespace moxie

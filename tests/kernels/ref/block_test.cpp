// SPDX-License-Identifier: Apache-2.0
// The block as a plain residual, where it can be written down, and over ranks with virtual groups.
#include "kernels/ref/block.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "kernels/ref/attention_values.hpp"
#include "kernels/ref/fp8_weights.hpp"
#include "kernels/ref/rmsnorm.hpp"
#include "kernels/ref/rotary.hpp"

namespace moxie {
namespace {

using test::Fp8Weights;
using test::Part;

// DeepSeek-V4's pattern in small.
constexpr std::uint64_t kHidden = 12;
constexpr std::uint64_t kCopies = 4;
constexpr std::uint64_t kGroups = 8;
constexpr std::uint64_t kHeadsPerGroup = 2;
constexpr std::uint64_t kHeadDim = 8;
constexpr std::uint64_t kGroupRank = 4;
constexpr std::uint64_t kInter = 20;
constexpr std::uint64_t kTile = 4;
constexpr std::uint64_t kGroupWidth = kHeadsPerGroup * kHeadDim;
constexpr std::uint64_t kPosition = 77;

struct Hyper {
  explicit Hyper(std::mt19937_64& random)
      : fn(test::random_values(24 * kCopies * kHidden, random)),
        base(test::random_values(24, random)) {}
  [[nodiscard]] ref::HyperConnection view() const {
    return {.fn = fn, .scale = scale, .base = base};
  }
  std::vector<double> fn;
  std::vector<double> scale = {0.1, 0.2, 0.3};
  std::vector<double> base;
};

struct Model {
  std::mt19937_64 random{11};
  Hyper hc_attn{random};
  Hyper hc_ffn{random};
  std::vector<double> attn_norm = test::random_values(kHidden, random);
  std::vector<double> ffn_norm = test::random_values(kHidden, random);
  Fp8Weights wq = test::random_fp8(kGroups * kGroupWidth, kHidden, kTile, random);
  std::vector<double> kv = test::random_values(5 * kHeadDim, random);
  std::vector<double> sinks = test::random_values(kGroups * kHeadsPerGroup, random);
  Fp8Weights wo_a = test::random_fp8(kGroups * kGroupRank, kGroupWidth, kTile, random);
  Fp8Weights wo_b = test::random_fp8(kHidden, kGroups* kGroupRank, kTile, random);
  Fp8Weights w1 = test::random_fp8(kInter, kHidden, kTile, random);
  Fp8Weights w3 = test::random_fp8(kInter, kHidden, kTile, random);
  Fp8Weights w2 = test::random_fp8(kHidden, kInter, kTile, random);
  std::vector<double> frequencies = ref::rotary_frequencies({.theta = 10000, .dims = 4});
  std::vector<double> x = test::random_values(kCopies * kHidden, random);
};

// Queries are a plain product here; routed experts give a share of their input.
struct Rank {
  Rank(const Model& model, std::uint64_t tp, std::uint64_t index)
      : groups(test::part_of(kGroups, divide_up(kGroups, tp), index)),
        wq(model.wq.row_part(scaled(kGroupWidth))),
        wo_a(model.wo_a.row_part(scaled(kGroupRank))),
        wo_b(model.wo_b.column_part(scaled(kGroupRank))),
        inter(test::part_of(kInter, round_up(divide_up(kInter, tp), kTile), index)),
        w1(model.w1.row_part(inter)),
        w3(model.w3.row_part(inter)),
        w2(model.w2.column_part(inter)) {
    const Part heads = scaled(kHeadsPerGroup);
    sinks.resize(heads.local, -std::numeric_limits<double>::infinity());
    std::copy_n(model.sinks.begin() + static_cast<std::ptrdiff_t>(heads.first), heads.real,
                sinks.begin());
  }
  [[nodiscard]] Part scaled(std::uint64_t unit) const {
    return {.first = groups.first * unit, .real = groups.real * unit, .local = groups.local * unit};
  }
  [[nodiscard]] std::vector<double> attention(const Model& model, std::span<const double> x) const {
    std::vector<double> q;
    for (std::uint64_t row = 0; row < wq.rows; ++row)
      q.push_back(ref::row_product(wq.view(), row, x).sum);
    return ref::attention_values(q, sinks, {.head_dim = kHeadDim, .kv = model.kv});
  }
  [[nodiscard]] ref::BlockRank view(const Model& model, double share) const {
    return {.output_path = {.groups = groups.local,
                            .heads_per_group = kHeadsPerGroup,
                            .head_dim = kHeadDim,
                            .group_rank = kGroupRank,
                            .frequencies = model.frequencies,
                            .wo_a = wo_a.view(),
                            .wo_b = wo_b.view()},
            .shared = {.gate = w1.view(), .up = w3.view(), .down = w2.view()},
            .attention = [this, &model](std::span<const double> x) { return attention(model, x); },
            .routed =
                [share](std::span<const double> x) {
                  std::vector<double> y(x.begin(), x.end());
                  for (double& value : y) value *= share;
                  return y;
                }};
  }

  Part groups;
  Fp8Weights wq;
  Fp8Weights wo_a;
  Fp8Weights wo_b;
  Part inter;
  Fp8Weights w1;
  Fp8Weights w3;
  Fp8Weights w2;
  std::vector<double> sinks;
};

ref::BlockResult run(const Model& model, std::uint64_t tp) {
  std::vector<Rank> ranks;
  for (std::uint64_t index = 0; index < tp; ++index) ranks.emplace_back(model, tp, index);
  std::vector<ref::BlockRank> views;
  views.reserve(tp);
  for (const Rank& rank : ranks) views.push_back(rank.view(model, 1 / static_cast<double>(tp)));
  return ref::block({.hc_attn = model.hc_attn.view(),
                     .hc_ffn = model.hc_ffn.view(),
                     .attn_norm = model.attn_norm,
                     .ffn_norm = model.ffn_norm,
                     .ranks = views},
                    model.x, kPosition);
}

TEST(Block, RanksGiveTheBlockOfOneRank) {
  const Model model;
  const auto whole = run(model, 1);
  double largest = 0;
  for (const double value : whole.x) largest = std::max(largest, std::abs(value));
  for (const std::uint64_t tp : {2, 3, 5}) {
    const auto result = run(model, tp);
    // Two sublayers and the norm between them amplify roundings, by much less than 100.
    const std::vector<double> magnitude(whole.x.size(), 100 * largest);
    test::expect_same_sum(result.middle, whole.middle, magnitude);
    test::expect_same_sum(result.x, whole.x, magnitude);
  }
}

// The steps once more, from the parts.
TEST(Block, EachSublayerHasItsOwnMixAndSeesTheStreamAfterTheOneBefore) {
  const Model model;
  const Rank rank(model, 1, 0);
  const auto view = rank.view(model, 1);
  const auto result = run(model, 1);

  const auto first = ref::mix(model.hc_attn.view(), {}, model.x);
  const auto attn_input = ref::rmsnorm(ref::collapse(first.pre, model.x), model.attn_norm, 1e-6);
  EXPECT_EQ(result.attn_input, attn_input);
  const auto o = rank.attention(model, attn_input);
  const auto s = ref::output_path(view.output_path, o, kPosition).y;
  const auto middle = ref::expand(first, model.x, s);
  EXPECT_EQ(result.middle, middle);

  const auto second = ref::mix(model.hc_ffn.view(), {}, middle);
  EXPECT_NE(second.pre, first.pre);
  const auto ffn_input = ref::rmsnorm(ref::collapse(second.pre, middle), model.ffn_norm, 1e-6);
  EXPECT_EQ(result.ffn_input, ffn_input);
  std::vector<double> y = view.routed(ffn_input);
  test::add_to(y, ref::shared_expert(view.shared, ffn_input).y);
  EXPECT_EQ(result.ffn_output, y);
  EXPECT_EQ(result.x, ref::expand(second, middle, y));
}

TEST(Block, InThePlainSettingItIsTwoResidualsUpToTheEpsilons) {
  Model model;
  for (Hyper* hyper : {&model.hc_attn, &model.hc_ffn}) {
    hyper->scale = {0, 0, 0};
    std::ranges::fill(hyper->base, 0.0);
    for (std::size_t j = 0; j < kCopies; ++j) hyper->base[j] = -std::log(3.0);
  }
  for (std::size_t i = kHidden; i < model.x.size(); ++i) model.x[i] = model.x[i - kHidden];
  const auto result = run(model, 1);
  for (std::size_t i = 0; i < model.x.size(); ++i) {
    const double middle = model.x[i] + result.attn_output[i % kHidden];
    const double end = middle + result.ffn_output[i % kHidden];
    EXPECT_NEAR(result.middle[i], middle, 1.01e-6 * std::abs(model.x[i]));
    EXPECT_NEAR(result.x[i], end, 1.01e-6 * (std::abs(model.x[i]) + std::abs(middle)));
    EXPECT_EQ(result.x[i], result.x[i % kHidden]);
  }
}

TEST(Block, ANanInOneCopyReachesTheEnd) {
  Model model;
  model.x[5] = std::nan("");
  for (const double value : run(model, 3).x) EXPECT_TRUE(std::isnan(value));
}

}  // namespace
}  // namespace moxie

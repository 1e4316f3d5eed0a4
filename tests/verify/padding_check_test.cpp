// SPDX-License-Identifier: Apache-2.0
// Padding adds exactly nothing, the parts of all ranks add up, and one byte that breaks either is
// found by the byte proof and by the numbers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "kernels/ref/attention_values.hpp"
#include "moxie/verify.hpp"
#include "support/refusal.hpp"
#include "support/whole_set.hpp"

namespace moxie {
namespace {

using test::quarter_tiny;
using test::rank_folder;
using test::SyntheticWhole;
using test::widths_of;

TEST(PaddingCheck, PassesForEveryLayerAtAnyNumberOfRanks) {
  const SyntheticWhole model(synth_config("tiny"), 4);
  for (const unsigned tp : {1U, 2U, 3U, 7U, 8U}) {
    const auto set = model.pack(tp);
    const bool padded = tp == 3 || tp == 7;
    for (const int layer : {0, 1, 2, 3, 4}) {
      SCOPED_TRACE("tp " + std::to_string(tp) + " layer " + std::to_string(layer));
      const PaddingCheck check = check_padding(set, *model, {.layer = layer});
      EXPECT_TRUE(check.passed) << to_string(check.findings.at(0));
      EXPECT_EQ(check.layer, layer);
      EXPECT_EQ(check.virtual_heads, tp == 3 ? 2U : tp == 7 ? 12U : 0U);
      EXPECT_EQ(check.virtual_groups, tp == 3 ? 1U : tp == 7 ? 6U : 0U);
      EXPECT_EQ(check.virtual_columns, tp == 1              ? 0U
                                       : tp == 2 || tp == 3 ? 128U
                                       : tp == 7            ? 256U
                                                            : 384U);
      EXPECT_EQ(check.virtual_rows, tp == 3 ? 64U : tp == 7 ? 128U : 0U);
      EXPECT_GE(check.zero_products, tp == 1 ? 0U : padded ? 1000U : 500U);
      EXPECT_LT(check.max_err_over_bound, 0.1);
    }
    std::filesystem::remove_all(set);
  }
}

// What every rank holds, over one set of a plan.
class PaddedRanks : public testing::TestWithParam<unsigned> {
 protected:
  static constexpr std::uint64_t kPosition = 901;

  PaddedRanks() : plan_(make_plan(*model_, {.tp = GetParam()})), set_(model_.pack(GetParam())) {
    for (unsigned rank = 0; rank < plan_.tp; ++rank) {
      checkpoints_.push_back(open_checkpoint(rank_folder(set_, rank)));
    }
    for (const Checkpoint& checkpoint : checkpoints_)
      ranks_.emplace_back(checkpoint, model_.config(), widths_of(plan_), 0);
  }

  std::uint64_t real(Axis axis, unsigned rank) const {
    return slice_axis(*plan_.find(axis), rank).count.value;
  }
  // Numbers that are not zero.
  static std::vector<double> values(std::uint64_t count) {
    std::vector<double> list(count);
    for (std::uint64_t i = 0; i < count; ++i)
      list[i] = std::sin(0.7 * static_cast<double>(i)) + 1.5;
    return list;
  }
  // [heads, head_dim], each head on its own query from wq_b.
  std::vector<double> attend(const V4Weights& weights, const std::vector<double>& kv) const {
    const ref::Fp8Matrix wq_b = weights.wq_b();
    std::vector<double> q;
    for (std::uint64_t row = 0; row < wq_b.rows; ++row)
      q.push_back(ref::row_product(wq_b, row, values(wq_b.cols)).sum);
    const std::vector<float> stored = weights.sinks();
    const std::uint64_t width = model_.config().head_dim;
    const std::vector<double> sinks(
        stored.begin(), stored.begin() + static_cast<std::ptrdiff_t>(wq_b.rows / width));
    return ref::attention_values(q, sinks, {.head_dim = width, .kv = kv, .score_mul = 0.1});
  }

  SyntheticWhole model_{quarter_tiny()};
  ShardPlan plan_;
  std::filesystem::path set_;
  std::vector<Checkpoint> checkpoints_{};
  std::vector<V4Weights> ranks_{};
  std::vector<double> frequencies_ = rotary_of(model_->checkpoint.config(), model_.config(), 0);
};

TEST_P(PaddedRanks, VirtualHeadsHoldTheMeanOfTheValuesAndContributeExactlyZero) {
  const V4Config& v4 = model_.config();
  const std::vector<double> kv = values(3 * v4.head_dim);
  const V4Weights whole((*model_).checkpoint, v4, widths_of(v4), 0);
  const std::vector<double> o = attend(whole, kv);
  const auto expected = ref::output_path(whole.output_path(frequencies_), o, kPosition);
  std::vector<double> sum(v4.hidden);
  std::uint64_t virtual_heads = 0;
  for (unsigned rank = 0; rank < plan_.tp; ++rank) {
    const std::vector<double> part = attend(ranks_[rank], kv);
    for (std::uint64_t i = real(Axis::heads, rank) * v4.head_dim; i < part.size(); ++i) {
      const std::uint64_t column = i % v4.head_dim;
      const double mean =
          (kv[column] + kv[v4.head_dim + column] + kv[2 * v4.head_dim + column]) / 3;
      EXPECT_NEAR(part[i], mean, 1e-14);
      EXPECT_NE(part[i], 0);
      virtual_heads += column == 0 ? 1 : 0;
    }
    const auto share = ref::output_path(ranks_[rank].output_path(frequencies_), part, kPosition);
    const std::uint64_t groups = real(Axis::output_groups, rank);
    for (std::uint64_t i = groups * v4.hidden; i < share.contributions.size(); ++i)
      EXPECT_EQ(share.contributions[i], 0);
    if (groups == 0) {
      EXPECT_EQ(share.y, std::vector<double>(v4.hidden)) << "rank " << rank;
    }
    for (std::uint64_t i = 0; i < v4.hidden; ++i) sum[i] += share.y[i];
  }
  EXPECT_EQ(virtual_heads, plan_.find(Axis::heads)->virtual_global.value - v4.heads);
  for (std::uint64_t i = 0; i < v4.hidden; ++i) {
    EXPECT_NE(expected.y[i], 0);
    EXPECT_LE(std::abs(sum[i] - expected.y[i]), 0x1p-52 * 300 * expected.magnitude[i]) << i;
  }
}

TEST_P(PaddedRanks, SharedExpertsAddUpAndRanksWithoutColumnsAddNothing) {
  const V4Config& v4 = model_.config();
  const V4Weights whole((*model_).checkpoint, v4, widths_of(v4), 0);
  const std::vector<double> x = values(v4.hidden);
  const auto expected = ref::shared_expert(whole.shared_expert(10), x);
  std::vector<double> sum(v4.hidden);
  for (unsigned rank = 0; rank < plan_.tp; ++rank) {
    const auto share = ref::shared_expert(ranks_[rank].shared_expert(10), x);
    for (std::uint64_t i = real(Axis::shared_inter, rank); i < share.act.size(); ++i)
      EXPECT_EQ(share.act[i], 0);
    if (real(Axis::shared_inter, rank) == 0) {
      EXPECT_EQ(share.y, std::vector<double>(v4.hidden));
    }
    for (std::uint64_t i = 0; i < v4.hidden; ++i) sum[i] += share.y[i];
  }
  for (std::uint64_t i = 0; i < v4.hidden; ++i) {
    EXPECT_NE(expected.y[i], 0);
    EXPECT_LE(std::abs(sum[i] - expected.y[i]), 0x1p-52 * 200 * expected.magnitude[i]) << i;
  }
}

TEST_P(PaddedRanks, VirtualRowsOfTheVocabularyHaveNoLogitAndTheSameTokenWins) {
  const V4Config& v4 = model_.config();
  const V4Weights whole((*model_).checkpoint, v4, widths_of(v4), 0);
  const std::vector<std::uint16_t> head = whole.bf16_rows("head.weight");
  const std::vector<double> x = values(v4.hidden);
  const auto expected = ref::logits({.real_rows = v4.vocab, .hidden = v4.hidden, .rows = head}, x);
  std::vector<ref::ShardLogits> shards;
  std::vector<std::vector<std::uint16_t>> rows;
  for (unsigned rank = 0; rank < plan_.tp; ++rank) {
    rows.push_back(ranks_[rank].bf16_rows("head.weight"));
    const std::uint64_t real_rows = real(Axis::vocab, rank);
    const std::uint64_t local = plan_.find(Axis::vocab)->local.value;
    shards.push_back(ref::logits(
        {.first = rank * local, .real_rows = real_rows, .hidden = v4.hidden, .rows = rows.back()},
        x));
    for (std::uint64_t row = 0; row < local; ++row) {
      const double logit = shards.back().logits[row];
      if (row < real_rows) {
        EXPECT_EQ(logit, expected.logits[rank * local + row]);
      } else {
        EXPECT_EQ(logit, -std::numeric_limits<double>::infinity());
      }
    }
  }
  const auto chosen = ref::argmax(shards);
  ASSERT_TRUE(chosen.has_value());
  EXPECT_EQ(chosen, ref::argmax({&expected, 1}));
  EXPECT_LT(*chosen, v4.vocab);
}

INSTANTIATE_TEST_SUITE_P(Ranks, PaddedRanks, testing::Values(1, 2, 3, 7, 8));

TEST(PaddingCheck, TakesTheKernelLayoutAndSetsOfSomeLayers) {
  const SyntheticWhole model(quarter_tiny(), 2);
  const ShardPlan plan = make_plan(*model, {.tp = 3});
  pack_to_folder(*model, plan, {.out = model / "kernel", .layout = FileLayout::kernel});
  const PaddingCheck whole = check_padding(model / "kernel", *model, {.layer = 1});
  EXPECT_TRUE(whole.passed);
  EXPECT_EQ(whole.virtual_rows, 64U);
  pack_to_folder(*model, plan, {.out = model / "one", .layers = {1}});
  const PaddingCheck one = check_padding(model / "one", *model, {.layer = 1});
  EXPECT_TRUE(one.passed);
  EXPECT_FALSE(one.virtual_rows.has_value()) << "without the vocabulary";
  ASSERT_EQ(one.findings.size(), 1U);
  EXPECT_EQ(one.findings[0].code, "MOXIE-V008");
  EXPECT_EQ(one.findings[0].severity, Severity::note);
  EXPECT_TRUE(whole.findings.empty());
  EXPECT_EQ(one.zero_products, whole.zero_products - 2 * 64);
  test::expect_refusal([&] { check_padding(model / "one", *model); }, ErrorCode::unsupported,
                       "MOXIE-V011");
}

// The first byte is a real one: of a sum over the group's ranks, or of a rank's own values.
TEST(PaddingCheck, LooksAtTheRealPartsOfEveryGroupOfExperts) {
  const SyntheticWhole model(quarter_tiny());
  const auto set = model.pack(3, 2);
  ASSERT_TRUE(check_padding(set, *model).passed);
  for (const unsigned rank : {0U, 3U, 4U}) {
    const std::string sum = rank < 3 ? " of ranks 0 to 2" : " of ranks 3 to 5";
    for (const auto& [tensor, said] :
         {std::pair<std::string, std::string>{"layers.0.attn.wq_b.weight", "head 0"},
          {"layers.0.attn.wo_b.weight", "the output path" + sum},
          {"layers.0.ffn.shared_experts.w2.weight", "the shared expert" + sum},
          {"head.weight", "the logit of token"}}) {
      SCOPED_TRACE(tensor + " on rank " + std::to_string(rank));
      const test::PlantedByte planted(set, rank, tensor, 1, 0x35);
      const PaddingCheck check = check_padding(set, *model);
      EXPECT_FALSE(check.passed);
      ASSERT_FALSE(check.findings.empty());
      const Finding& finding = check.findings.front();
      EXPECT_EQ(finding.code, "MOXIE-V010");
      EXPECT_TRUE(finding.message.starts_with(said)) << finding.message;
      EXPECT_EQ(finding.where.rank.value_or(rank), rank);
    }
  }
  EXPECT_TRUE(check_padding(set, *model).passed);
}

TEST(PaddingCheck, RefusesSetsThatHoldNotAllOfTheModel) {
  const SyntheticWhole model(quarter_tiny());
  const auto set = model.pack(2);
  const auto expect_refused = [&](int layer) {
    test::expect_refusal([&] { check_padding(set, *model, {.layer = layer}); },
                         ErrorCode::unsupported, "MOXIE-V011");
  };
  expect_refused(-1);
  expect_refused(2);  // one layer and its draft block
  EXPECT_TRUE(check_padding(set, *model, {.layer = 1}).passed);
  std::filesystem::remove(rank_folder(set, 1) / "model-00000.safetensors");
  expect_refused(0);
}

}  // namespace
}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// A DeepSeek-V4 block from attention values to the chosen token: the checkpoint in double
// precision against packed ranks whose routed experts an engine computes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/parallel.hpp"
#include "formats/bf16.hpp"
#include "moxie/layer.hpp"
#include "moxie/verify.hpp"
#include "support/layer_rig.hpp"
#include "support/whole_set.hpp"
#include "v4_side.hpp"

namespace moxie {
namespace {

using test::BlockSide;
using test::kBlockLayer;
using test::PlantedByte;
using test::rank_folder;

constexpr std::uint64_t kTokens = 1000;
constexpr std::uint64_t kCandidates = 1050;
constexpr std::uint64_t kSeed = 1;
// Lead of a token's largest logit over what the bound allows to change. Of a candidate below it,
// one in two hundred, the bound does not clearly say what is chosen: it is no part of the thousand.
constexpr double kClearLead = 4;
// A block is some thousand roundings of double precision on numbers below 8.
constexpr double kDouble = 0x1p-40;

// What goes into the block, whatever the number of ranks.
struct Inputs {
  std::vector<double> residual;   // [copies, hidden]
  std::vector<double> attention;  // [heads with virtual ones, head_dim], nowhere 0
  std::uint64_t position = 0;
};

Inputs inputs_of(const V4Config& v4, std::uint64_t token) {
  ProbeValues values(kSeed, token);
  Inputs inputs{.residual = values(v4.copies * v4.hidden),
                .attention = values(2 * v4.heads * v4.head_dim),
                .position = 3 * token};
  // Small beside what the block adds: a sublayer that is missing is not lost in it.
  for (double& value : inputs.residual) value /= 32;
  return inputs;
}

// Keeps these rows of [tokens, ...].
template <class Value>
void keep_rows(std::vector<Value>& values, std::span<const std::uint64_t> kept) {
  const std::size_t width = values.size() / kCandidates;
  for (std::size_t i = 0; i < kept.size(); ++i)
    std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(kept[i] * width), width,
                values.begin() + static_cast<std::ptrdiff_t>(i * width));
  values.resize(kept.size() * width);
}

// What the routed experts add, [tokens, hidden], and how far an engine may be from it.
struct Routed {
  std::vector<double> y;
  std::vector<double> bound;
};

class V4Block : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    model_ = std::make_unique<test::SyntheticWhole>(test::quarter_tiny(), 2);
    const V4Config& v4 = model_->config();
    for (std::uint64_t token = 0; token < kCandidates; ++token)
      inputs_.push_back(inputs_of(v4, token));
    source_ = std::make_unique<BlockSide>(
        **model_, std::vector{(*model_)->checkpoint}, test::widths_of(v4),
        std::vector{UnitRange<Elems>{Elems{0}, Elems{v4.vocab}, Elems{v4.vocab}}});
    probe_ = routed_probe(ffn_inputs(*source_));
    const ShardPlan plan = make_plan(**model_, {.tp = 1});
    reference_ = make_reference(**model_, kBlockLayer, plan, spec(), probe_);
    expected_ = run(*source_, reference_.y);
    keep_clear_leads(plan);
  }
  static void TearDownTestSuite() {
    source_.reset();
    model_.reset();
    inputs_.clear();
    expected_.clear();
  }

  static void keep_clear_leads(const ShardPlan& plan) {
    const std::vector<float> y(reference_.y.begin(), reference_.y.end());
    const std::vector<double> bound = check_output(y, reference_, plan).bound;
    std::vector<double> leads(kCandidates);
    parallel_for(kCandidates, [&](std::uint64_t token) {
      leads[token] = source_->lead_over_change(expected_[token].x, residual_bound(token, bound));
    });
    std::vector<std::uint64_t> kept;
    std::uint64_t token = 0;
    for (; token < kCandidates && kept.size() < kTokens; ++token) {
      if (leads[token] > kClearLead) kept.push_back(token);
    }
    ASSERT_EQ(kept.size(), kTokens) << "too many candidates without a clear lead";
    std::printf("%u of %u tokens have no clear lead\n", static_cast<unsigned>(token - kTokens),
                static_cast<unsigned>(token));
    keep_rows(inputs_, kept);
    keep_rows(expected_, kept);
    keep_rows(probe_.x, kept);
    keep_rows(probe_.topk_ids, kept);
    keep_rows(probe_.topk_weights, kept);
    for (auto* array :
         {&reference_.y, &reference_.bound, &reference_.magnitude, &reference_.unquantised})
      keep_rows(*array, kept);
    probe_.tokens = reference_.tokens = kTokens;
  }

  static LayerSpec spec() { return spec_of((*model_)->config); }

  static std::vector<ref::BlockResult> run(const BlockSide& side, std::span<const double> routed) {
    const std::uint64_t hidden = model_->config().hidden;
    std::vector<ref::BlockResult> results(inputs_.size());
    parallel_for(results.size(), [&](std::uint64_t token) {
      const Inputs& inputs = inputs_[token];
      results[token] = side.run(inputs.residual, inputs.attention, inputs.position,
                                routed.empty() ? routed : routed.subspan(token * hidden, hidden));
    });
    return results;
  }

  // Normalised inputs of the second sublayer in bf16, as the model hands them to its experts.
  static std::vector<std::uint16_t> ffn_inputs(const BlockSide& side) {
    std::vector<std::uint16_t> x;
    for (const ref::BlockResult& result : run(side, {})) {
      for (const double value : result.ffn_input)
        x.push_back(encode_bf16(static_cast<float>(value)));
    }
    return x;
  }

  // Routed by the layer's own router.
  static Probe routed_probe(const std::vector<std::uint16_t>& x) {
    const MoeModel& model = **model_;
    Probe probe{
        .tokens = inputs_.size(), .hidden = model.config.hidden, .top_k = model.config.top_k};
    const auto bytes = std::as_bytes(std::span(x));
    probe.x.assign(bytes.begin(), bytes.end());
    probe.topk_ids.resize(inputs_.size() * probe.top_k);
    probe.topk_weights.resize(inputs_.size() * probe.top_k);
    const Router router(model, kBlockLayer, probe.top_k);
    std::vector<std::byte> workspace(router.workspace_size(inputs_.size()));
    std::uint32_t flags = 0;
    const RouteIo io{.x = probe.x_ref(),
                     .topk_ids = probe.topk_ids.data(),
                     .topk_weights = probe.topk_weights.data(),
                     .flags = &flags};
    EXPECT_EQ(router.route(io, workspace), CallStatus::ok);
    EXPECT_EQ(flags, 0U);
    return probe;
  }

  // The engine's own, from packed bytes.
  static Routed routed_by_engine(const std::filesystem::path& set, const ShardPlan& plan) {
    const PackedFolder folder = open_packed_folder(set);
    std::vector<BlobSource> sources;
    for (unsigned rank = 0; rank < plan.tp; ++rank)
      sources.push_back(blob_source(folder, rank, kBlockLayer));
    const MoeLayer layer(folder.plan, spec(), sources);
    const std::vector<float> y = test::run_layer(layer, probe_);
    LayerCheck check = check_output(y, reference_, plan);
    EXPECT_TRUE(check.passed) << to_string(check.findings.at(0));
    return {.y = {y.begin(), y.end()}, .bound = std::move(check.bound)};
  }

  static BlockSide side_of(const std::filesystem::path& set, const ShardPlan& plan) {
    std::vector<Checkpoint> ranks;
    std::vector<UnitRange<Elems>> rows;
    for (unsigned rank = 0; rank < plan.tp; ++rank) {
      ranks.push_back(open_checkpoint(rank_folder(set, rank)));
      rows.push_back(slice_axis(*plan.find(Axis::vocab), rank));
    }
    return {**model_, std::move(ranks), test::widths_of(plan), std::move(rows)};
  }

  // How far each value of a token's residual may be from the reference.
  static std::vector<double> residual_bound(std::uint64_t token, std::span<const double> routed) {
    const ref::BlockResult& expected = expected_[token];
    const std::uint64_t hidden = model_->config().hidden;
    std::vector<double> bound(expected.x.size());
    for (std::uint64_t i = 0; i < bound.size(); ++i)
      bound[i] = expected.ffn_mix.post[i / hidden] * routed[token * hidden + i % hidden] + kDouble;
    return bound;
  }

  static inline std::unique_ptr<test::SyntheticWhole> model_;
  static inline std::vector<Inputs> inputs_;
  static inline std::unique_ptr<BlockSide> source_;
  static inline Probe probe_;
  static inline LayerReference reference_;
  static inline std::vector<ref::BlockResult> expected_;
};

double largest_over_bound(std::span<const double> expected, std::span<const double> got,
                          std::span<const double> bound) {
  double largest = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double over = std::abs(got[i] - expected[i]) / bound[i];
    largest = over <= largest ? largest : over;
  }
  return largest;
}

TEST_F(V4Block, ResidualAndChosenTokenAreTheCheckpointsAtOneTwoAndThreeRanks) {
  for (const unsigned tp : {1U, 2U, 3U}) {
    SCOPED_TRACE("tp " + std::to_string(tp));
    const ShardPlan plan = make_plan(**model_, {.tp = tp});
    const auto set = model_->pack(tp);
    const BlockSide side = side_of(set, plan);
    // The same bits, so that routing and rounding of x are no part of the difference.
    const auto x = ffn_inputs(side);
    ASSERT_TRUE(std::ranges::equal(std::as_bytes(std::span(x)), probe_.x));
    const Routed routed = routed_by_engine(set, plan);
    const std::vector<ref::BlockResult> got = run(side, routed.y);

    std::vector<double> over(kTokens);
    std::vector<double> lead(kTokens);
    std::vector<std::optional<std::uint64_t>> chosen(kTokens);
    std::vector<std::optional<std::uint64_t>> due(kTokens);
    parallel_for(kTokens, [&](std::uint64_t token) {
      const std::vector<double> bound = residual_bound(token, routed.bound);
      over[token] = largest_over_bound(expected_[token].x, got[token].x, bound);
      due[token] = source_->choose(expected_[token].x);
      chosen[token] = side.choose(got[token].x);
      lead[token] = source_->lead_over_change(expected_[token].x, bound);
    });
    for (std::uint64_t token = 0; token < kTokens; ++token) {
      EXPECT_LE(over[token], 1) << token;
      ASSERT_TRUE(due[token].has_value()) << token;
      EXPECT_LT(*due[token], model_->config().vocab);
      EXPECT_EQ(chosen[token], due[token]) << token;
      EXPECT_GT(lead[token], 1) << "token " << token << " is a tie within the bound";
    }
    std::printf(
        "tp %u: residual at most %.3g of its bound; smallest lead %.3g of what may change\n", tp,
        *std::ranges::max_element(over), *std::ranges::min_element(lead));
    std::filesystem::remove_all(set);
  }
}

TEST_F(V4Block, ShowsWhatIsWrongInOnePart) {
  const ShardPlan plan = make_plan(**model_, {.tp = 3});
  const auto set = model_->pack(3);
  const Routed routed = routed_by_engine(set, plan);
  const auto over = [&](const BlockSide& side, std::span<const double> y) {
    const Inputs& inputs = inputs_[7];
    const std::uint64_t hidden = model_->config().hidden;
    const auto got =
        side.run(inputs.residual, inputs.attention, inputs.position, y.subspan(7 * hidden, hidden));
    return largest_over_bound(expected_[7].x, got.x, residual_bound(7, routed.bound));
  };
  EXPECT_LE(over(side_of(set, plan), routed.y), 1);
  EXPECT_GT(over(side_of(set, plan), std::vector<double>(routed.y.size())), 10) << "no experts";
  const std::string prefix = "layers." + std::to_string(kBlockLayer) + ".";
  const auto with = [&](unsigned rank, const std::string& tensor, std::uint64_t at, char value) {
    return std::make_unique<PlantedByte>(set, rank, prefix + tensor, at, value);
  };
  {  // A virtual head reaches the residual as soon as its group has a weight on both sides.
    const Checkpoint last = open_checkpoint(rank_folder(set, 2));
    const auto size = [&](const char* tensor) { return last.find(prefix + tensor)->bytes; };
    const auto row = with(2, "attn.wo_a.weight", size("attn.wo_a.weight") - 1, 0x7E);
    const auto row_scale = with(2, "attn.wo_a.scale", size("attn.wo_a.scale") - 1, 0x7F);
    EXPECT_LE(over(side_of(set, plan), routed.y), 1);
    const auto column = with(2, "attn.wo_b.weight", size("attn.wo_b.weight") - 1, 0x7E);
    const auto column_scale = with(2, "attn.wo_b.scale", size("attn.wo_b.scale") - 1, 0x7F);
    EXPECT_GT(over(side_of(set, plan), routed.y), 1);
  }
  {
    const auto real = with(1, "ffn.shared_experts.w2.weight", 0, 0x7E);
    EXPECT_GT(over(side_of(set, plan), routed.y), 1);
  }
  EXPECT_LE(over(side_of(set, plan), routed.y), 1);
}

}  // namespace
}  // namespace moxie

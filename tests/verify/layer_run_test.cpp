// SPDX-License-Identifier: Apache-2.0
// Layers that are run under the check: within the bound for every plan, and found when they hold
// other weights than the reference.
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "layer_case.hpp"
#include "moxie/layer.hpp"
#include "moxie/verify.hpp"

namespace moxie {
namespace {

using test::any_probe;
using test::clamped_spec;
using test::moderate;
using test::TinyModel;

MoeLayer layer_of(const MoeModel& model, const ShardPlan& plan, const LayerSpec& spec) {
  std::vector<PackedExperts> ranks;
  for (const RankPlan& rank : plan.ranks) ranks.push_back(pack(model, plan, rank.rank, 0));
  return MoeLayer(plan, spec, std::move(ranks));
}

TEST(LayerRun, IsWithinItsBoundForEveryPlanAndFormat) {
  for (const BlockFormat format : test::kFormats) {
    const TinyModel model(moderate(format));
    for (const ActFormat act_format : test::kPlainActFormats) {
      for (const auto& [tp, ep] : {std::pair{1U, 1U}, {2U, 1U}, {4U, 3U}}) {
        const ShardPlan plan =
            make_plan(*model, {.tp = tp, .ep = ep, .act_format = act_format, .kernel_align = 32});
        SCOPED_TRACE(test::describe(plan) + " " + std::string(name_of(act_format)));
        const Probe probe = any_probe(7, plan.hidden, plan.experts, 5);
        const auto reference = make_reference(*model, 0, plan, clamped_spec(), probe);
        const LayerCheck check =
            check_layer(layer_of(*model, plan, clamped_spec()), reference, probe);
        EXPECT_TRUE(check.passed);
        for (const Finding& finding : check.findings) ADD_FAILURE() << to_string(finding);
        EXPECT_GT(check.max_err_over_bound, 0);
        EXPECT_LE(check.max_err_over_bound, 1);
      }
    }
  }
}

TEST(LayerRun, FailsWithOtherWeightsThanTheReference) {
  const TinyModel model(moderate(BlockFormat::mxfp4));
  const ShardPlan plan = test::plan_of(*model, 2);
  Probe probe = any_probe(7, plan.hidden, plan.experts, 5);
  const auto reference = make_reference(*model, 0, plan, clamped_spec(), probe);
  MoeLayer layer = layer_of(*model, plan, clamped_spec());
  const auto used = static_cast<std::uint64_t>(probe.topk_ids[0]);
  const std::span<const std::byte> other = layer.blob(1, (used + 1) % plan.experts);
  layer.reload(1, used, std::vector<std::byte>(other.begin(), other.end()));
  const LayerCheck check = check_layer(layer, reference, probe);
  EXPECT_FALSE(check.passed);
  ASSERT_EQ(check.findings.size(), 1U);
  EXPECT_EQ(check.findings[0].code, "MOXIE-R010");
}

TEST(LayerRun, IdsOutsideTheModelAreFlaggedAndStillWithinTheBound) {
  const TinyModel model(moderate(BlockFormat::nvfp4));
  const ShardPlan plan = test::plan_of(*model, 1);
  Probe probe = any_probe(7, plan.hidden, plan.experts, 5);
  probe.topk_ids[0] = static_cast<std::int32_t>(plan.experts);
  probe.topk_ids[3] = -2;
  const auto reference = make_reference(*model, 0, plan, clamped_spec(), probe);
  const LayerCheck check = check_layer(layer_of(*model, plan, clamped_spec()), reference, probe);
  EXPECT_TRUE(check.passed);
  EXPECT_TRUE(check.findings.empty());
}

}  // namespace
}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// Layers with nvfp4 activations: every policy of their global scales against the judge, what the
// counters say, and what bits depend on.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "formats/act_quant.hpp"
#include "support/layer_rig.hpp"
#include "support/packed_model.hpp"
#include "support/refusal.hpp"

namespace moxie {
namespace {

using test::RigModel;

constexpr ActScale kPolicies[] = {ActScale::checkpoint, ActScale::warmup, ActScale::dynamic,
                                  ActScale::row};

std::vector<ActScale> policies_of(BlockFormat format) {
  std::vector<ActScale> policies(std::begin(kPolicies), std::end(kPolicies));
  if (format == BlockFormat::mxfp4) policies.erase(policies.begin());
  return policies;
}

ShardPlan plan_of(const MoeModel& model, ActScale policy, unsigned tp = 1, unsigned ep = 1) {
  return make_plan(
      model, {.tp = tp, .ep = ep, .act_format = ActFormat::nvfp4, .act_scale = policy});
}

// One call with everything that a caller may look at.
struct Call {
  std::vector<float> y;
  std::vector<float> taps;
  ActStats stats;
};

Call call(const MoeLayer& layer, const Probe& probe) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const ShardPlan& plan = layer.plan();
  Call result;
  result.y.assign(probe.tokens * probe.hidden, kNan);
  result.taps.assign(
      plan.ranks.size() * probe.tokens * probe.top_k * plan.inter().kernel.value, kNan);
  result.stats.x.blocks = 77;  // what was there before does not count
  std::vector<std::byte> workspace(layer.workspace_size(probe.tokens), std::byte{0xFF});
  std::uint32_t flags = 0;
  LayerIo io{.x = probe.x_ref(),
             .topk_ids = probe.topk_ids.data(),
             .topk_weights = probe.topk_weights.data(),
             .y = {.data = result.y.data(),
                   .dtype = DType::f32,
                   .rows = probe.tokens,
                   .cols = probe.hidden,
                   .row_stride = probe.hidden},
             .flags = &flags};
  io.act_tap = result.taps.data();
  io.act_stats = &result.stats;
  EXPECT_EQ(layer.forward(io, workspace), CallStatus::ok);
  return result;
}

std::vector<ActScales> measured(const MoeLayer& layer, const Probe& probe, double margin = 8) {
  std::vector<float> y(probe.tokens * probe.hidden, -1.0F);
  std::vector<std::byte> workspace(layer.workspace_size(probe.tokens), std::byte{0xFF});
  std::uint32_t flags = 0;
  const auto scales = layer.warm_up({.x = probe.x_ref(),
                                     .topk_ids = probe.topk_ids.data(),
                                     .topk_weights = probe.topk_weights.data(),
                                     .y = {.data = y.data(),
                                           .dtype = DType::f32,
                                           .rows = probe.tokens,
                                           .cols = probe.hidden,
                                           .row_stride = probe.hidden},
                                     .flags = &flags},
                                    workspace, margin);
  EXPECT_EQ(y, std::vector<float>(y.size(), -1.0F)) << "a warm-up wrote a result";
  EXPECT_EQ(flags, 0U);
  return scales;
}

// A layer that can be called: warmed up on `sample` where its policy asks for it.
MoeLayer ready_layer(const MoeModel& model, const ShardPlan& plan, const LayerSpec& spec,
                     const Probe& sample) {
  MoeLayer layer = test::layer_of(model, plan, spec);
  if (plan.act_scale == ActScale::warmup) layer.freeze(measured(layer, sample));
  return layer;
}

void expect_passes(const MoeModel& model, const MoeLayer& layer, const Probe& probe) {
  const ShardPlan& plan = layer.plan();
  SCOPED_TRACE(test::describe(plan) + " " + std::string(name_of(plan.act_scale)));
  const std::vector<ActScales> frozen = layer.act_scales();
  const Call got = call(layer, probe);
  const LayerReference whole =
      make_reference(model, 0, plan, layer.spec(), probe, {.act_scales = frozen});
  const LayerCheck check = check_output(got.y, whole, plan);
  EXPECT_TRUE(check.passed) << check.max_err_over_bound;
  const std::vector<float> act = joined_acts(plan, probe, got.taps);
  const LayerReference apart =
      make_reference(model, 0, plan, layer.spec(), probe, {.act = act, .act_scales = frozen});
  const LayerCheck stages = check_output(got.y, apart, plan);
  EXPECT_TRUE(stages.passed) << stages.max_err_over_bound;
  for (const Finding& finding : stages.findings) ADD_FAILURE() << to_string(finding);
  if (probe.tokens == 0) return;
  EXPECT_LT(stages.relative_l2, 1e-6);
  EXPECT_TRUE(check_layer(layer, whole, probe).passed);
}

TEST(Nvfp4Layer, PassesUnderEveryPolicyOnAnyRanks) {
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (const BlockFormat format : test::kFormats) {
    const RigModel model({.format = format, .seed = random()});
    LayerSpec spec = spec_of(model->config);
    spec.top_k = 3;
    for (const ActScale policy : policies_of(format)) {
      for (const auto& [tp, ep] : {std::pair{1U, 1U}, {3U, 1U}, {2U, 3U}, {8U, 1U}, {1U, 7U}}) {
        for (const std::uint64_t tokens : {0U, 1U, 20U}) {
          Probe probe = test::probe_of(*model, tokens, spec.top_k, {}, random());
          for (std::size_t slot = 0; slot < probe.topk_ids.size(); slot += 4)
            probe.topk_ids[slot] = -1;
          const ShardPlan plan = plan_of(*model, policy, tp, ep);
          expect_passes(*model, ready_layer(*model, plan, spec, probe), probe);
        }
      }
    }
  }
}

}  // namespace
}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// The stages judged apart: sharp enough to find one wrong code among millions at full width.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "support/layer_rig.hpp"
#include "support/packed_model.hpp"

namespace moxie {
namespace {

using test::RigModel;

struct Staged {
  LayerCheck whole;
  LayerCheck stages;
};

// Runs the layer with a tap and checks both ways against the checkpoint.
Staged check(const MoeModel& model, const MoeLayer& layer, const Probe& probe) {
  const ShardPlan& plan = layer.plan();
  const std::uint64_t slots = probe.tokens * probe.top_k;
  std::vector<float> y(probe.tokens * probe.hidden, -1.0F);
  std::vector<float> taps(plan.ranks.size() * slots * plan.inter().kernel.value,
                          std::numeric_limits<float>::quiet_NaN());
  std::vector<std::byte> workspace(layer.workspace_size(probe.tokens), std::byte{0xFF});
  std::uint32_t flags = 0;
  EXPECT_EQ(layer.forward({.x = probe.x_ref(),
                           .topk_ids = probe.topk_ids.data(),
                           .topk_weights = probe.topk_weights.data(),
                           .y = {.data = y.data(),
                                 .dtype = DType::f32,
                                 .rows = probe.tokens,
                                 .cols = probe.hidden,
                                 .row_stride = probe.hidden},
                           .flags = &flags,
                           .act_tap = taps.data()},
                          workspace),
            CallStatus::ok);
  const std::vector<float> act = joined_acts(plan, probe, taps);
  return {.whole = check_output(y, make_reference(model, 0, plan, layer.spec(), probe), plan),
          .stages = check_output(
              y, make_reference(model, 0, plan, layer.spec(), probe, {.act = act, .progress = {}}),
              plan)};
}

TEST(Stages, ACleanLayerPassesOnAnyRanksWithMaskedSlots) {
  for (const BlockFormat format : test::kFormats) {
    const RigModel model({.format = format});
    LayerSpec spec = spec_of(model->config);
    spec.top_k = 3;
    Probe probe = test::probe_of(*model, 20, 3);
    for (std::size_t slot = 0; slot < probe.topk_ids.size(); slot += 4) probe.topk_ids[slot] = -1;
    for (const ActFormat act : test::kPlainActFormats) {
      for (const PlanOptions& options :
           {PlanOptions{.tp = 1}, PlanOptions{.tp = 3, .kernel_align = 160},
            PlanOptions{.tp = 2, .ep = 3}, PlanOptions{.tp = 8}}) {
        PlanOptions with_act = options;
        with_act.act_format = act;
        const ShardPlan plan = make_plan(*model, with_act);
        const Staged checked = check(*model, test::layer_of(*model, plan, spec), probe);
        EXPECT_TRUE(checked.whole.passed && checked.stages.passed) << test::describe(plan);
        // From its own values on, an engine is as exact as fp32 sums are.
        EXPECT_LT(checked.stages.relative_l2, 1e-6);
      }
    }
  }
}

// One bit of one code of an expert, in each projection, at DeepSeek-V4-Flash's widths.
TEST(Stages, FindOneWrongCodeAtFullWidth) {
  const std::uint64_t seed = 20'261'130;
  std::mt19937_64 random(seed);
  for (const BlockFormat format : test::kFormats) {
    const RigModel model({.format = format, .hidden = 4096, .inter = 2048, .experts = 1});
    LayerSpec spec = spec_of(model->config);
    spec.top_k = 1;
    const ShardPlan plan = make_plan(*model, {});
    const Probe probe = test::probe_of(*model, 6, 1);
    std::vector<PackedExperts> clean = test::pack_all(*model, plan);
    EXPECT_TRUE(check(*model, MoeLayer(plan, spec, clean), probe).stages.passed);
    for (const Segment segment : {Segment::gate, Segment::up, Segment::down}) {
      const PackedSegment& at = *plan.layout.find(segment);
      std::vector<PackedExperts> planted = clean;
      // The sign of a code that is not zero; a zero has none.
      std::byte* byte = nullptr;
      do {
        byte = planted[0].blobs.data() + at.offset + random() % at.bytes();
      } while ((*byte & std::byte{7}) < std::byte{4});
      *byte ^= std::byte{8};
      const Staged found = check(*model, MoeLayer(plan, spec, std::move(planted)), probe);
      EXPECT_FALSE(found.stages.passed) << name_of(format) << " " << name_of(segment);
      ASSERT_FALSE(found.stages.findings.empty());
      EXPECT_EQ(found.stages.findings.back().code,
                segment == Segment::down ? "MOXIE-R010" : "MOXIE-R014");
    }
  }
}

TEST(Stages, ADeviationNamesItsPlace) {
  const RigModel model({});
  LayerSpec spec = spec_of(model->config);
  const ShardPlan plan = make_plan(*model, {});
  const Probe probe = test::probe_of(*model, 3, spec.top_k);
  const std::uint64_t inter = plan.inter().original.value;
  // What an engine without a fault would hold, from the reference's own interval: run one.
  const MoeLayer layer = test::layer_of(*model, plan, spec);
  std::vector<float> taps(probe.tokens * spec.top_k * plan.inter().kernel.value, 0.0F);
  std::vector<float> y(probe.tokens * probe.hidden);
  std::vector<std::byte> workspace(layer.workspace_size(3));
  std::uint32_t flags = 0;
  ASSERT_EQ(layer.forward({.x = probe.x_ref(),
                           .topk_ids = probe.topk_ids.data(),
                           .topk_weights = probe.topk_weights.data(),
                           .y = {.data = y.data(),
                                 .dtype = DType::f32,
                                 .rows = 3,
                                 .cols = probe.hidden,
                                 .row_stride = probe.hidden},
                           .flags = &flags,
                           .act_tap = taps.data()},
                          workspace),
            CallStatus::ok);
  std::vector<float> act = joined_acts(plan, probe, taps);
  EXPECT_EQ(make_reference(*model, 0, plan, spec, probe, {.act = act, .progress = {}}).act.outside,
            0U);
  act[(2 * spec.top_k + 1) * inter + 77] += 1;
  act[5] = std::numeric_limits<float>::quiet_NaN();
  const LayerReference reference =
      make_reference(*model, 0, plan, spec, probe, {.act = act, .progress = {}});
  EXPECT_EQ(reference.act.outside, 2U);
  EXPECT_EQ(reference.act.token, 0U) << "no number is farther out than any number";
  EXPECT_EQ(reference.act.column, 5U);
  act[5] = joined_acts(plan, probe, taps)[5];
  const LayerReference second =
      make_reference(*model, 0, plan, spec, probe, {.act = act, .progress = {}});
  EXPECT_EQ(second.act.outside, 1U);
  EXPECT_EQ(second.act.token, 2U);
  EXPECT_EQ(second.act.choice, 1U);
  EXPECT_EQ(second.act.column, 77U);
  EXPECT_GT(second.act.got, second.act.most);
}

}  // namespace
}  // namespace moxie

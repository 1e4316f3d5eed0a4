// SPDX-License-Identifier: Apache-2.0
// Layers with nvfp4 activations: every policy of their global scales against the judge, what the
// counters say, and what bits depend on.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
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
  return make_plan(model,
                   {.tp = tp, .ep = ep, .act_format = ActFormat::nvfp4, .act_scale = policy});
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
  result.taps.assign(plan.ranks.size() * probe.tokens * probe.top_k * plan.inter().kernel.value,
                     kNan);
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
  const auto scales =
      layer.warm_up(test::io_of(probe, y.data(), DType::f32, &flags), workspace, margin);
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

// Q at both ends must hold where rounding decides a scale: rows of few values, sums that cancel.
TEST(Nvfp4Layer, TheJudgeRaisesNoFalseAlarmOnManyLayers) {
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 60; ++round) {
    const BlockFormat format = test::kFormats[random() % 2];
    const Pattern pattern =
        std::vector{Pattern::normal, Pattern::outliers, Pattern::constant}[random() % 3];
    const RigModel model({.format = format,
                          .hidden = 32 * (1 + random() % 6),
                          .inter = 32 * (1 + random() % 6),
                          .experts = 1 + random() % 5,
                          .pattern = pattern,
                          .seed = random()});
    LayerSpec spec = spec_of(model->config);
    spec.top_k = 1 + random() % model->config.experts;
    if (random() % 2 == 0) spec.activation = Activation::oai_swiglu;
    spec.activation_limit = 0.05 + static_cast<double>(random() % 100) / 20;
    const Probe probe = test::probe_of(*model, 1 + random() % 12, spec.top_k, {}, random());
    const auto policies = policies_of(format);
    const ActScale policy = policies[random() % policies.size()];
    const ShardPlan plan = plan_of(*model, policy, static_cast<unsigned>(1 + random() % 4));
    expect_passes(*model, ready_layer(*model, plan, spec, probe), probe);
  }
}

// D-04, C17: the packed scales of the experts with these input scales, alike for all projections.
test::TinyOptions with_input_scales(const std::vector<float>& scales, std::uint64_t inter = 96) {
  test::TinyOptions options = test::tiny_options(BlockFormat::nvfp4, inter);
  options.experts = scales.size();
  for (std::size_t expert = 0; expert < scales.size(); ++expert) {
    for (const char* projection : {"w1", "w2", "w3"}) {
      options.edits.push_back(test::set_scalar(
          "layers.0.ffn.experts." + std::to_string(expert) + "." + projection + ".input_scale",
          scales[expert]));
    }
  }
  return options;
}

LayerSpec one_slot(const MoeModel& model) {
  LayerSpec spec = spec_of(model.config);
  spec.top_k = 1;
  spec.activation_limit = 10.0;
  return spec;
}

TEST(Nvfp4Layer, D04_InputScalesStayWithTheirExpertsOnEveryRank) {
  const test::TinyModel model(with_input_scales({0.1F, 0.2F, 0.4F, 0.3F}));
  const LayerSpec spec = one_slot(*model);
  Probe probe = test::probe_of(*model, 12, 1);
  for (std::size_t slot = 0; slot < 12; ++slot)
    probe.topk_ids[slot] = static_cast<std::int32_t>(slot % 4);
  const Call whole =
      call(test::layer_of(*model, plan_of(*model, ActScale::checkpoint), spec), probe);
  EXPECT_EQ(whole.stats.x.least_scale, 0.1F);
  EXPECT_EQ(whole.stats.x.most_scale, 0.4F);
  const ShardPlan plan = plan_of(*model, ActScale::checkpoint, 1, 2);
  EXPECT_EQ(test::bits_of(call(test::layer_of(*model, plan, spec), probe).y),
            test::bits_of(whole.y));
  LayerSpec alone = spec;
  alone.reduction = Reduction::caller;
  const std::pair<float, float> expected[] = {{0.1F, 0.2F}, {0.3F, 0.4F}};
  for (const unsigned rank : {0U, 1U}) {
    const MoeLayer layer(plan, alone, {pack(*model, plan, rank, 0)});
    std::vector<float> y(12 * plan.hidden);
    std::vector<std::byte> workspace(layer.workspace_size(12));
    std::uint32_t flags = 0;
    ActStats stats;
    ASSERT_EQ(layer.forward({.x = probe.x_ref(),
                             .topk_ids = probe.topk_ids.data(),
                             .topk_weights = probe.topk_weights.data(),
                             .y = {.data = y.data(),
                                   .dtype = DType::f32,
                                   .rows = 12,
                                   .cols = plan.hidden,
                                   .row_stride = plan.hidden},
                             .flags = &flags,
                             .act_stats = &stats},
                            workspace),
              CallStatus::ok);
    for (const ActStage& stage : {stats.x, stats.act}) {
      EXPECT_EQ(stage.least_scale, expected[rank].first);
      EXPECT_EQ(stage.most_scale, expected[rank].second);
    }
  }
}

// Gate and up read one x: the larger of their scales.
TEST(Nvfp4Layer, XIsQuantisedWithTheLargerScaleOfGateAndUp) {
  for (const char* larger : {"w1", "w3"}) {
    test::TinyOptions options = with_input_scales({0.1F, 0.1F, 0.1F});
    options.edits.push_back(
        test::set_scalar("layers.0.ffn.experts.1." + std::string(larger) + ".input_scale", 0.7F));
    const test::TinyModel model(options);
    Probe probe = test::probe_of(*model, 3, 1, {.kind = RoutingKind::one, .expert = 1});
    const MoeLayer layer =
        test::layer_of(*model, plan_of(*model, ActScale::checkpoint), one_slot(*model));
    const Call got = call(layer, probe);
    EXPECT_EQ(got.stats.x.least_scale, 0.7F);
    EXPECT_EQ(got.stats.x.most_scale, 0.7F);
    EXPECT_EQ(got.stats.act.most_scale, 0.1F);
    expect_passes(*model, layer, probe);
  }
}

// R-10, C17, Q-04: refused where it is consumed, by layer, projection and expert; of no account
// elsewhere.
TEST(Nvfp4Layer, R10_AnUnusableInputScaleStopsThePlansThatConsumeItAlone) {
  const std::string name = "layers.0.ffn.experts.2.w2.input_scale";
  std::vector<std::pair<test::TinyEdit, const char*>> edits = {
      {test::leave_out("experts.2.w2.input_scale"), "MOXIE-M006"}};
  for (const float value : {0.0F, -0.5F, std::numeric_limits<float>::quiet_NaN(),
                            std::numeric_limits<float>::infinity(), 1e-40F, 1e36F})
    edits.push_back({test::set_scalar(name, value), "MOXIE-M007"});
  for (const auto& [edit, code] : edits) {
    test::TinyOptions options = with_input_scales({0.1F, 0.2F, 0.4F, 0.3F});
    options.edits.push_back(edit);
    const test::TinyModel model(options);
    const LayerSpec spec = one_slot(*model);
    const ShardPlan stored = plan_of(*model, ActScale::checkpoint);
    const Error error = test::refusal_of([&] { (void)pack(*model, stored, 0, 0); });
    EXPECT_EQ(error.code(), ErrorCode::input);
    EXPECT_EQ(test::code_of(error), code);
    EXPECT_EQ(error.findings()[0].where.layer, 0);
    EXPECT_EQ(error.findings()[0].where.expert, 2U);
    EXPECT_TRUE(error.findings()[0].message.starts_with("down")) << error.what();
    // The experts before it are packed, and a layer that gets it by another way refuses it, too.
    const Probe probe = test::probe_of(*model, 9, 1);
    EXPECT_EQ(test::code_of(test::refusal_of([&] {
                (void)make_reference(
                    *model, 0, stored, spec,
                    test::probe_of(*model, 9, 1, {.kind = RoutingKind::one, .expert = 2}));
              })),
              code);
    std::vector<PackedExperts> ranks = test::pack_all(*model, make_plan(*model, {}));
    test::expect_refusal([&] { MoeLayer(stored, spec, ranks); }, ErrorCode::input, "MOXIE-R003");
    for (const ActScale policy : {ActScale::warmup, ActScale::dynamic, ActScale::row}) {
      const ShardPlan plan = plan_of(*model, policy);
      expect_passes(*model, ready_layer(*model, plan, spec, probe), probe);
    }
    EXPECT_TRUE(check_layer(test::layer_of(*model, make_plan(*model, {}), spec),
                            make_reference(*model, 0, make_plan(*model, {}), spec, probe), probe)
                    .passed);
  }
}

// C5, pit21: a scale calibrated on small inputs clips, and says so; measured ones do not.
TEST(Nvfp4Layer, C5_pit21_AScaleThatIsTooSmallIsCounted) {
  const RigModel model({});
  const LayerSpec spec = spec_of(model->config);
  const Probe probe = test::probe_of(*model, 10, spec.top_k);
  MoeLayer layer = test::layer_of(*model, plan_of(*model, ActScale::warmup), spec);
  layer.freeze(std::vector<ActScales>{{.x = 0.77F / 2688, .act = 1e-6F, .slots = 1}});
  const Call small = call(layer, probe);
  EXPECT_GT(small.stats.x.saturated, small.stats.x.blocks / 2);
  EXPECT_GT(small.stats.act.saturated, 0U);
  EXPECT_EQ(small.stats.x.blocks, 10 * 160 / 16);
  EXPECT_EQ(small.stats.act.blocks, 10 * spec.top_k * 352 / 16);
  expect_passes(*model, layer, probe);  // what is clipped is still what the format says
  layer.freeze(measured(layer, probe, 1));
  const Call warmed = call(layer, probe);
  EXPECT_EQ(warmed.stats.x.saturated + warmed.stats.act.saturated, 0U);
  for (const ActScale policy : {ActScale::dynamic, ActScale::row}) {
    const Call got = call(test::layer_of(*model, plan_of(*model, policy), spec), probe);
    EXPECT_EQ(got.stats.x.saturated + got.stats.act.saturated, 0U) << name_of(policy);
    EXPECT_EQ(got.stats.x.guarded + got.stats.act.guarded, 0U) << name_of(policy);
  }
  // And one that is too large drops small blocks.
  layer.freeze(std::vector<ActScales>{{.x = 1e5F, .act = 1e5F, .slots = 1}});
  const Call large = call(layer, probe);
  EXPECT_EQ(large.stats.x.underflowed, large.stats.x.blocks);
  EXPECT_EQ(large.y, std::vector<float>(large.y.size(), 0.0F));
}

TEST(Nvfp4Layer, WarmUpMeasuresTheMarginTimesWhatItSees) {
  const RigModel model({});
  const LayerSpec spec = spec_of(model->config);
  Probe probe = test::probe_of(*model, 10, spec.top_k);
  const MoeLayer layer = test::layer_of(*model, plan_of(*model, ActScale::warmup, 2, 3), spec);
  const std::vector<ActScales> one = measured(layer, probe, 1);
  const std::vector<ActScales> eight = measured(layer, probe, 8);
  ASSERT_EQ(one.size(), 6U);
  for (std::size_t rank = 0; rank < 6; ++rank) {
    EXPECT_EQ(eight[rank].x, 8 * one[rank].x);
    EXPECT_NEAR(eight[rank].act / one[rank].act, 8, 0.8) << "of the same values, quantised apart";
    // x of tokens with a slot on the rank, and of no other.
    float amax = 0;
    std::uint64_t slots = 0;
    const RankExperts experts = layer.plan().ranks[rank].experts;
    for (std::size_t slot = 0; slot < probe.topk_ids.size(); ++slot) {
      const auto id = static_cast<std::uint64_t>(probe.topk_ids[slot]);
      if (!experts.holds(id)) continue;
      ++slots;
      for (std::size_t i = 0; i < 160; ++i) {
        std::uint16_t bits = 0;
        std::memcpy(&bits, probe.x.data() + 2 * (slot / spec.top_k * 160 + i), sizeof bits);
        amax = std::max(amax, std::abs(decode_bf16(bits)));
      }
    }
    EXPECT_EQ(one[rank].slots, slots);
    EXPECT_EQ(one[rank].x, amax / 2688);
  }
}

// C13, pit61: ids of other ranks match nothing; the scale stays at the fallback and never is 0.
TEST(Nvfp4Layer, C13_pit61_AWarmUpWithoutASlotKeepsTheFallback) {
  const RigModel model({});
  const LayerSpec spec = spec_of(model->config);
  Probe nothing = test::probe_of(*model, 6, spec.top_k);
  std::ranges::fill(nothing.topk_ids, -1);
  MoeLayer layer = test::layer_of(*model, plan_of(*model, ActScale::warmup), spec);
  for (const Probe& sample : {nothing, test::probe_of(*model, 0, spec.top_k)}) {
    const std::vector<ActScales> scales = measured(layer, sample);
    ASSERT_EQ(scales.size(), 1U);
    EXPECT_EQ(scales[0].slots, 0U);
    EXPECT_EQ(scales[0].x, 1.0F / 2688);
    EXPECT_EQ(scales[0].act, 1.0F / 2688);
    layer.freeze(scales);
    const Probe probe = test::probe_of(*model, 6, spec.top_k);
    const Call got = call(layer, probe);
    EXPECT_GT(got.stats.x.saturated, 0U) << "N(0, 1) is larger than 1 somewhere";
    expect_passes(*model, layer, probe);
  }
  // A rank of its own that no id names.
  Probe first_rank = test::probe_of(*model, 6, 1, {.kind = RoutingKind::one, .expert = 0});
  const MoeLayer two =
      test::layer_of(*model, plan_of(*model, ActScale::warmup, 1, 2), one_slot(*model));
  const std::vector<ActScales> scales = measured(two, first_rank);
  EXPECT_EQ(scales[0].slots, 6U);
  EXPECT_EQ(scales[1].slots, 0U);
  EXPECT_EQ(scales[1].x, 1.0F / 2688);
}

TEST(Nvfp4Layer, C13_AWarmUpOnValuesOfNoUseSaysSo) {
  const RigModel model({});
  const LayerSpec spec = spec_of(model->config);
  const MoeLayer layer = test::layer_of(*model, plan_of(*model, ActScale::warmup), spec);
  Probe probe = test::probe_of(*model, 6, spec.top_k);
  EXPECT_FALSE(measured(layer, probe)[0].guarded);
  std::ranges::fill(probe.x, std::byte{0});
  const ActScales scales = measured(layer, probe)[0];
  EXPECT_TRUE(scales.guarded);
  EXPECT_GT(scales.slots, 0U);
  EXPECT_EQ(scales.x, 1.0F / 2688);
}

TEST(Nvfp4Layer, pit61_ScalesOfNoUseAreRefusedOrGuardedAndCounted) {
  const RigModel model({});
  const LayerSpec spec = spec_of(model->config);
  const Probe probe = test::probe_of(*model, 4, spec.top_k);
  MoeLayer layer = test::layer_of(*model, plan_of(*model, ActScale::warmup, 2), spec);
  const ActScales good{.x = 0.01F, .act = 0.02F, .slots = 1};
  const auto expect_refused = [&](const std::vector<ActScales>& scales) {
    test::expect_refusal([&] { layer.freeze(scales); }, ErrorCode::usage, "MOXIE-R017");
  };
  for (const float wrong : {0.0F, -1.0F, std::numeric_limits<float>::quiet_NaN(),
                            std::numeric_limits<float>::infinity(), 1e-40F, 1e37F}) {
    expect_refused({good, {.x = wrong, .act = 1, .slots = 1}});
    expect_refused({{.x = 0.01F, .act = wrong, .slots = 1}, good});
  }
  expect_refused({good});
  expect_refused({good, {.x = 0.02F, .act = 0.02F, .slots = 1}});  // the same x, two scales
  MoeLayer fixed = test::layer_of(*model, plan_of(*model, ActScale::row), spec);
  test::expect_refusal([&] { fixed.freeze(std::vector{good}); }, ErrorCode::usage, "MOXIE-R017");
  // Before it is frozen a layer runs with the fallback, and every row says so.
  const Call unready = call(layer, probe);
  EXPECT_EQ(unready.stats.x.guarded, 2 * 4U);
  EXPECT_EQ(unready.stats.act.guarded, 2 * 4 * spec.top_k);
  EXPECT_EQ(unready.stats.x.least_scale, 1.0F / 2688);
  expect_passes(*model, layer, probe);
}

// Q-04, S-01: nothing becomes 1/0.
TEST(Nvfp4Layer, ZeroRowsGiveExactZerosAndMaskedTokensToo) {
  const RigModel model({});
  const LayerSpec spec = spec_of(model->config);
  const Probe plain = test::probe_of(*model, 5, spec.top_k);
  Probe probe = plain;  // tokens 0 and 1 are zero, token 4 is masked
  std::fill_n(probe.x.begin(), 2 * 160 * 2, std::byte{0});
  std::fill_n(probe.topk_ids.begin() + static_cast<std::ptrdiff_t>(4 * spec.top_k), spec.top_k, -1);
  Probe zero = probe;
  std::ranges::fill(zero.x, std::byte{0});
  Probe masked = probe;
  std::ranges::fill(masked.topk_ids, -1);
  std::ranges::fill(masked.x, std::byte{0xFF});  // NaN that nobody may see
  for (const ActScale policy : policies_of(BlockFormat::mxfp4)) {
    const MoeLayer layer = ready_layer(*model, plan_of(*model, policy, 3), spec, plain);
    const Call got = call(layer, probe);
    for (std::size_t i = 0; i < got.y.size(); ++i) {
      const std::size_t token = i / 160;
      ASSERT_TRUE(std::isfinite(got.y[i]));
      ASSERT_TRUE(token == 2 || token == 3 || test::bits_of({got.y[i]})[0] == 0U) << i;
    }
    EXPECT_EQ(got.stats.x.guarded, policy == ActScale::row ? 3 * 2U : 0U);
    EXPECT_EQ(got.stats.x.blocks, 3 * 4 * 160 / 16U) << "the masked token's x is not looked at";
    expect_passes(*model, layer, probe);
    EXPECT_EQ(call(layer, zero).y, std::vector<float>(got.y.size(), 0.0F));
    const Call none = call(layer, masked);
    EXPECT_EQ(none.y, std::vector<float>(got.y.size(), 0.0F));
    EXPECT_EQ(none.stats.x.blocks + none.stats.act.blocks + none.stats.x.not_numbers, 0U);
    EXPECT_EQ(none.stats.x.most_scale, 0.0F);
  }
}

// pit24, pit48: E2M1 has no NaN, yet one is neither lost nor spread to other tokens.
TEST(Nvfp4Layer, pit24_ANanIsCountedAndReachesItsTokenAlone) {
  const RigModel model({});
  const LayerSpec spec = spec_of(model->config);
  Probe probe = test::probe_of(*model, 4, spec.top_k);
  probe.x[2 * (160 + 17)] = std::byte{0xFF};  // token 1, 0x7FFF
  probe.x[2 * (160 + 17) + 1] = std::byte{0x7F};
  for (const ActScale policy : policies_of(BlockFormat::mxfp4)) {
    const Call got = call(ready_layer(*model, plan_of(*model, policy), spec, probe), probe);
    EXPECT_EQ(got.stats.x.not_numbers, 1U);
    EXPECT_GT(got.stats.act.not_numbers, 0U);
    for (std::size_t i = 0; i < got.y.size(); ++i)
      ASSERT_EQ(std::isnan(got.y[i]), i / 160 == 1) << name_of(policy) << " " << i;
  }
}

Probe part_of(const Probe& probe, std::uint64_t token) {
  Probe part = probe;
  part.tokens = 1;
  const auto cut = [&](auto& values, std::uint64_t width) {
    const auto begin = values.begin() + static_cast<std::ptrdiff_t>(token * width);
    values = {begin, begin + static_cast<std::ptrdiff_t>(width)};
  };
  cut(part.x, probe.hidden * 2);
  cut(part.topk_ids, probe.top_k);
  cut(part.topk_weights, probe.top_k);
  return part;
}

// K-11: of the four policies one gives up batch invariance, as documented.
TEST(Nvfp4Layer, ATokenIsTheSameInEveryBatchUnlessScalesAreDynamic) {
  for (const BlockFormat format : test::kFormats) {
    const RigModel model({.format = format});
    const LayerSpec spec = spec_of(model->config);
    const Probe probe = test::probe_of(*model, 33, spec.top_k);
    for (const ActScale policy : policies_of(format)) {
      const MoeLayer layer = ready_layer(*model, plan_of(*model, policy, 2, 2), spec, probe);
      const auto whole = test::bits_of(call(layer, probe).y);
      bool same = true;
      for (std::uint64_t token = 0; token < 33; ++token) {
        const auto alone = test::bits_of(call(layer, part_of(probe, token)).y);
        same = same && std::equal(alone.begin(), alone.end(),
                                  whole.begin() + static_cast<std::ptrdiff_t>(token * 160));
      }
      EXPECT_EQ(same, policy != ActScale::dynamic) << name_of(policy);
    }
  }
}

TEST(Nvfp4Layer, ThreadsChangeNeitherBitsNorCounts) {
  for (const BlockFormat format : test::kFormats) {
    const RigModel model({.format = format, .hidden = 320});
    LayerSpec spec = spec_of(model->config);
    const Probe probe = test::probe_of(*model, 65, spec.top_k);
    for (const ActScale policy : policies_of(format)) {
      std::vector<std::uint32_t> expected;
      ActStats counts;
      for (const unsigned threads : {1U, 2U, 3U, 8U}) {
        spec.threads = threads;
        const MoeLayer layer = ready_layer(*model, plan_of(*model, policy, 2), spec, probe);
        for (int repeat = 0; repeat < 5; ++repeat) {
          const Call got = call(layer, probe);
          if (expected.empty()) expected = test::bits_of(got.y), counts = got.stats;
          ASSERT_EQ(test::bits_of(got.y), expected) << threads << " " << name_of(policy);
          ASSERT_EQ(std::memcmp(&got.stats, &counts, sizeof counts), 0) << threads;
        }
      }
    }
  }
}

// 16 divides every cut, so that stored scales give the same codes on any number of ranks: one
// reference bounds them all.
TEST(Nvfp4Layer, StoredScalesGiveTheSameOnOneRankAndOnThree) {
  const RigModel model({.format = BlockFormat::nvfp4});
  const LayerSpec spec = spec_of(model->config);
  const Probe probe = test::probe_of(*model, 15, spec.top_k);
  const ShardPlan one = plan_of(*model, ActScale::checkpoint);
  const LayerReference reference = make_reference(*model, 0, one, spec, probe);
  for (const auto& [tp, ep] : {std::pair{1U, 1U}, {3U, 1U}, {5U, 2U}, {8U, 7U}}) {
    const ShardPlan plan = plan_of(*model, ActScale::checkpoint, tp, ep);
    EXPECT_TRUE(group_boundaries(plan).empty());
    EXPECT_TRUE(check_layer(test::layer_of(*model, plan, spec), reference, probe).passed);
  }
  // A row's own scale is that of a rank's part of it: each count of ranks has its own reference.
  for (const unsigned tp : {1U, 3U}) {
    const ShardPlan plan = plan_of(*model, ActScale::row, tp);
    EXPECT_EQ(group_boundaries(plan).size(), tp);
    EXPECT_TRUE(check_layer(test::layer_of(*model, plan, spec),
                            make_reference(*model, 0, plan, spec, probe), probe)
                    .passed);
  }
}

// C7, pit60: the scales of one call, and of one product, do not stay for the next.
TEST(Nvfp4Layer, pit60_CallsLeaveNothingBehind) {
  const RigModel model({});
  const LayerSpec spec = spec_of(model->config);
  const Probe small = test::probe_of(*model, 3, spec.top_k, {}, 1);
  Probe large = test::probe_of(*model, 40, spec.top_k, {}, 2);
  for (std::size_t i = 1; i < large.x.size(); i += 2)
    large.x[i] ^= std::byte{0x04};  // sizes differ
  for (const ActScale policy : policies_of(BlockFormat::mxfp4)) {
    const MoeLayer layer = ready_layer(*model, plan_of(*model, policy), spec, small);
    std::vector<std::byte> workspace(layer.workspace_size(40), std::byte{0xFF});
    const auto run = [&](const Probe& probe) {
      std::vector<float> y(probe.tokens * 160, -1.0F);
      std::uint32_t flags = 0;
      EXPECT_EQ(layer.forward({.x = probe.x_ref(),
                               .topk_ids = probe.topk_ids.data(),
                               .topk_weights = probe.topk_weights.data(),
                               .y = {.data = y.data(),
                                     .dtype = DType::f32,
                                     .rows = probe.tokens,
                                     .cols = 160,
                                     .row_stride = 160},
                               .flags = &flags},
                              workspace),
                CallStatus::ok);
      return test::bits_of(y);
    };
    const auto first = run(small);
    EXPECT_EQ(first, test::bits_of(call(layer, small).y)) << "a poisoned workspace changes nothing";
    EXPECT_NE(run(large), first);
    EXPECT_EQ(run(small), first);
  }
}

// What an engine may get wrong, each found by the judge. The packed experts get wrong scalars.
TEST(Nvfp4Faults, WrongStoredScalesAreFound) {  // C6, B3
  const test::TinyModel model(with_input_scales({0.01F, 0.02F, 0.04F, 0.03F}));
  LayerSpec spec = one_slot(*model);
  spec.top_k = 2;
  const ShardPlan plan = plan_of(*model, ActScale::checkpoint);
  const Probe probe = test::probe_of(*model, 9, 2);
  const LayerReference reference = make_reference(*model, 0, plan, spec, probe);
  const auto passes = [&](const std::function<float(Segment, std::uint64_t, float)>& fault) {
    std::vector<PackedExperts> ranks = test::pack_all(*model, plan);
    for (std::uint64_t expert = 0; expert < 4; ++expert) {
      for (const Segment segment : {Segment::gate_act_dequant_mul, Segment::up_act_dequant_mul,
                                    Segment::down_act_dequant_mul}) {
        std::byte* at =
            ranks[0].blobs.data() + expert * plan.layout.stride + plan.layout.find(segment)->offset;
        float value = 0;
        std::memcpy(&value, at, sizeof value);
        value = fault(segment, expert, value);
        std::memcpy(at, &value, sizeof value);
      }
    }
    return check_layer(MoeLayer(plan, spec, std::move(ranks)), reference, probe).passed;
  };
  const float scales[] = {0.01F, 0.02F, 0.04F, 0.03F};
  EXPECT_TRUE(passes([](Segment, std::uint64_t, float value) { return value; }));
  EXPECT_FALSE(passes([&](Segment, std::uint64_t expert, float) {
    return scales[(expert + 1) % 4];  // the neighbour's
  }));
  EXPECT_FALSE(
      passes([&](Segment, std::uint64_t, float) { return 0.04F; }));  // the layer's maximum
  EXPECT_FALSE(passes([](Segment, std::uint64_t, float value) { return 1 / value; }));
  EXPECT_FALSE(passes([](Segment, std::uint64_t, float value) { return value * 1.03F; }));
  for (const Segment wrong : {Segment::gate_act_dequant_mul, Segment::down_act_dequant_mul}) {
    EXPECT_FALSE(passes([&](Segment segment, std::uint64_t, float value) {
      return segment == wrong ? 3 * value : value;
    })) << name_of(wrong);
  }
}

TEST(Nvfp4Faults, WrongMeasuredScalesAreFound) {  // C6, K-16
  for (const BlockFormat format : test::kFormats) {
    const RigModel model({.format = format});
    const LayerSpec spec = spec_of(model->config);
    const Probe probe = test::probe_of(*model, 9, spec.top_k);
    const ShardPlan plan = plan_of(*model, ActScale::warmup);
    MoeLayer layer = test::layer_of(*model, plan, spec);
    const std::vector<ActScales> right = measured(layer, probe);
    const LayerReference reference =
        make_reference(*model, 0, plan, spec, probe, {.act_scales = right});
    const auto passes = [&](ActScales scales) {
      layer.freeze(std::vector{scales});
      return check_layer(layer, reference, probe).passed;
    };
    EXPECT_TRUE(passes(right[0]));
    EXPECT_FALSE(passes({.x = right[0].x, .act = right[0].x, .slots = 1})) << "L1's scale in L2";
    EXPECT_FALSE(passes({.x = right[0].act, .act = right[0].act, .slots = 1}));
    EXPECT_FALSE(passes({.x = right[0].x * 1.03F, .act = right[0].act, .slots = 1}));
    EXPECT_FALSE(passes({.x = right[0].x, .act = right[0].act * 1.03F, .slots = 1}));
    EXPECT_FALSE(passes({.x = right[0].x / 16, .act = right[0].act, .slots = 1}));
    // K-16: the scale left out after the down product.
    layer.freeze(right);
    std::vector<float> y = call(layer, probe).y;
    EXPECT_TRUE(check_output(y, reference, plan).passed);
    for (float& value : y) value /= right[0].act;
    EXPECT_FALSE(check_output(y, reference, plan).passed);
  }
}

// An engine under one policy is not one under another. A margin that is a power of two, as the
// default, moves block scales by whole binades: dynamic scales then give the same values.
TEST(Nvfp4Faults, APolicyIsNotTakenForAnother) {
  const RigModel model({.format = BlockFormat::nvfp4});
  const LayerSpec spec = spec_of(model->config);
  const Probe probe = test::probe_of(*model, 9, spec.top_k);
  const auto layer_under = [&](ActScale policy) {
    MoeLayer layer = test::layer_of(*model, plan_of(*model, policy), spec);
    if (policy == ActScale::warmup) layer.freeze(measured(layer, probe, 5));
    return layer;
  };
  for (const ActScale planned : kPolicies) {
    const MoeLayer judged = layer_under(planned);
    const LayerReference reference = make_reference(judged, probe);
    for (const ActScale run : kPolicies) {
      const MoeLayer layer = layer_under(run);
      EXPECT_EQ(check_layer(layer, reference, probe).passed, run == planned)
          << name_of(run) << " for " << name_of(planned);
    }
  }
}

TEST(Nvfp4Layer, AReferenceUnderWarmUpNeedsTheScales) {
  const RigModel model({});
  const LayerSpec spec = spec_of(model->config);
  const Probe probe = test::probe_of(*model, 2, spec.top_k);
  test::expect_refusal(
      [&] { (void)make_reference(*model, 0, plan_of(*model, ActScale::warmup, 2), spec, probe); },
      ErrorCode::usage, "MOXIE-R017");
}

}  // namespace
}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// References from a checkpoint and from packed ranks: the same numbers, and the same refusals.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "layer_case.hpp"
#include "moxie/verify.hpp"
#include "support/refusal.hpp"
#include "support/threads.hpp"

namespace moxie {
namespace {

using test::any_probe;
using test::clamped_spec;
using test::code_of;
using test::moderate;
using test::plan_of;
using test::refusal_of;
using test::TinyModel;

std::vector<PackedExperts> pack_all(const MoeModel& model, const ShardPlan& plan) {
  std::vector<PackedExperts> ranks;
  for (const RankPlan& rank : plan.ranks) ranks.push_back(pack(model, plan, rank.rank, 0));
  return ranks;
}

Probe probe_of(const ShardPlan& plan, DType dtype = DType::bf16) {
  return any_probe(5, plan.hidden, plan.experts, 11, dtype);
}

TEST(LayerReference, PackedRanksGiveTheNumbersOfTheCheckpoint) {
  const test::Threads one(1);
  for (const BlockFormat format : test::kFormats) {
    const TinyModel model(moderate(format));
    for (const auto& [tp, ep] : {std::pair{1U, 1U}, {2U, 1U}, {4U, 1U}, {2U, 3U}}) {
      for (const ActFormat act_format : {ActFormat::bf16, ActFormat::fp8, ActFormat::mxfp8}) {
        ShardPlan plan = plan_of(*model, tp, ep);
        plan.act_format = act_format;
        SCOPED_TRACE(test::describe(plan));
        for (const DType dtype : {DType::bf16, DType::f32}) {
          const Probe probe = probe_of(plan, dtype);
          const auto stored = make_reference(*model, 0, plan, clamped_spec(), probe);
          const auto packed = make_reference(plan, pack_all(*model, plan), clamped_spec(), probe);
          EXPECT_EQ(stored.tokens, 5U);
          EXPECT_EQ(stored.hidden, 64U);
          EXPECT_EQ(stored.y, packed.y);
          EXPECT_EQ(stored.bound, packed.bound);
          EXPECT_EQ(stored.magnitude, packed.magnitude);
          EXPECT_EQ(stored.unquantised, packed.unquantised);
          EXPECT_GT(*std::ranges::max_element(stored.magnitude), 0);
        }
      }
    }
  }
}

// the same weights in the direct and in the inverse dialect are the same layer, from the
// checkpoint and from packed ranks.
TEST(LayerReference, R09_ReciprocalGlobalsGiveTheNumbersOfTheDirectOnes) {
  const auto options = [](test::TinyDialect dialect) {
    // Powers of two, so that either convention is exact.
    return test::TinyOptions{
        .dialect = dialect,
        .layers = 1,
        .edits = {[](test::TinyTensor& tensor) {
          const bool global = tensor.name.ends_with("weight_scale_2");
          if (!global && !tensor.name.ends_with("weight_global_scale")) return true;
          const float value = (tensor.name.find("up_proj") != std::string::npos     ? 0x1p-9F
                               : tensor.name.find("gate_proj") != std::string::npos ? 0x1p-7F
                                                                                    : 0x1p-12F);
          const float stored = global ? value : 1.0F / value;
          std::memcpy(tensor.bytes.data(), &stored, sizeof stored);
          return true;
        }}};
  };
  const TinyModel direct(options(test::TinyDialect::modelopt));
  const TinyModel inverse(options(test::TinyDialect::compressed_nvfp4));
  const ShardPlan plan = plan_of(*direct, 2);
  const Probe probe = probe_of(plan);
  const LayerSpec spec{.top_k = probe.top_k, .activation = Activation::silu};
  const auto expected = make_reference(*direct, 0, plan, spec, probe);
  const auto stored = make_reference(*inverse, 0, plan, spec, probe);
  const auto packed = make_reference(plan, pack_all(*inverse, plan), spec, probe);
  EXPECT_GT(*std::ranges::max_element(expected.magnitude), 0);
  EXPECT_EQ(stored.y, expected.y);
  EXPECT_EQ(stored.bound, expected.bound);
  EXPECT_EQ(packed.y, expected.y);
}

TEST(LayerReference, GroupsOfActivationsBeginWhereTheRanksPartsDo) {
  const TinyModel model(moderate(BlockFormat::mxfp4));
  ShardPlan plan = plan_of(*model, 2, 3);
  EXPECT_TRUE(group_boundaries(plan).empty());
  plan.act_format = ActFormat::fp8;
  EXPECT_EQ(group_boundaries(plan), (std::vector<std::uint64_t>{0, 96}));
  ShardPlan whole = plan_of(*model, 1);
  whole.act_format = ActFormat::fp8;
  EXPECT_EQ(group_boundaries(whole), (std::vector<std::uint64_t>{0}));
  // A rank that owns nothing begins nothing.
  ShardPlan many = plan_of(*model, 8);
  many.act_format = ActFormat::fp8;
  EXPECT_EQ(group_boundaries(many), (std::vector<std::uint64_t>{0, 32, 64, 96, 128, 160}));

  const Probe probe = probe_of(plan);
  const auto split = make_reference(*model, 0, plan, clamped_spec(), probe);
  const auto joined = make_reference(*model, 0, whole, clamped_spec(), probe);
  EXPECT_NE(split.y, joined.y);
  EXPECT_EQ(split.unquantised, joined.unquantised);
}

TEST(LayerReference, RefusesWhatItCanNotJudge) {
  const TinyModel model(moderate(BlockFormat::mxfp4));
  const ShardPlan plan = plan_of(*model, 1);
  const Probe probe = probe_of(plan);
  const auto refusal = [&](const ShardPlan& of, const LayerSpec& spec) {
    const Error stored = refusal_of([&] { make_reference(*model, 0, of, spec, probe); });
    const Error packed =
        refusal_of([&] { make_reference(of, pack_all(*model, plan), spec, probe); });
    EXPECT_EQ(code_of(stored), code_of(packed));
    EXPECT_EQ(stored.code(), ErrorCode::unsupported);
    return code_of(stored);
  };
  for (const Activation other : {Activation::relu2, Activation::oai_swiglu})  // no gate; no limit
    EXPECT_EQ(refusal(plan, {.top_k = 2, .activation = other}), "MOXIE-R001");
  EXPECT_EQ(refusal(plan, {.top_k = 2, .activation = Activation::clamped_swiglu}), "MOXIE-R001");
  ShardPlan of = plan;
  of.gated = false;
  EXPECT_EQ(refusal(of, clamped_spec()), "MOXIE-R001");
}

TEST(LayerReference, RefusesRanksThatAreNotThePlans) {
  const TinyModel model(moderate(BlockFormat::mxfp4));
  const ShardPlan plan = plan_of(*model, 2);
  const Probe probe = probe_of(plan);
  const auto code = [&](const std::vector<PackedExperts>& ranks) {
    return code_of(refusal_of([&] { make_reference(plan, ranks, clamped_spec(), probe); }));
  };
  auto ranks = pack_all(*model, plan);
  std::swap(ranks[0], ranks[1]);
  EXPECT_EQ(code(ranks), "MOXIE-R002");
  ranks.pop_back();
  EXPECT_EQ(code(ranks), "MOXIE-R002");
  EXPECT_EQ(code(pack_all(*model, plan_of(*model, 1))), "MOXIE-R002");
}

TEST(LayerReference, RefusesALayerOfAnotherFormat) {
  const TinyModel model(moderate(BlockFormat::mxfp4));
  const TinyModel other(moderate(BlockFormat::nvfp4));
  const ShardPlan plan = plan_of(*other, 1);
  EXPECT_EQ(
      code_of(refusal_of([&] { make_reference(*model, 0, plan, clamped_spec(), probe_of(plan)); })),
      "MOXIE-M009");
}

TEST(LayerReference, RefusesScalesThatAreNoNumbersAsPackDoes) {
  for (const char* name : {"w1", "w2", "w3"}) {
    const auto bad = test::poke("layers.0.ffn.experts.1." + std::string(name) + ".scale", 4, 0xFF);
    const TinyModel model(moderate(BlockFormat::mxfp4, {bad}));
    const ShardPlan plan = plan_of(*model, 1);
    Probe probe = probe_of(plan);
    std::ranges::fill(probe.topk_ids, 1);
    const Error stored =
        refusal_of([&] { make_reference(*model, 0, plan, clamped_spec(), probe); });
    const Error packing = refusal_of([&] { pack_all(*model, plan); });
    EXPECT_STREQ(stored.what(), packing.what());
    EXPECT_EQ(code_of(stored), "MOXIE-K003");
    // An expert that no slot asks for is not read.
    std::ranges::fill(probe.topk_ids, 0);
    EXPECT_NO_THROW(make_reference(*model, 0, plan, clamped_spec(), probe));
  }
}

TEST(LayerReference, RefusesPackedScalesAndGlobalsThatAreNoNumbers) {
  const TinyModel model(moderate(BlockFormat::nvfp4));
  const ShardPlan plan = plan_of(*model, 1);
  Probe probe = probe_of(plan);
  std::ranges::fill(probe.topk_ids, 1);
  const auto code = [&](Segment segment, std::vector<std::uint8_t> bytes) {
    auto ranks = pack_all(*model, plan);
    std::byte* blob = ranks[0].blobs.data() + plan.layout.stride;
    std::memcpy(blob + plan.layout.find(segment)->offset, bytes.data(), bytes.size());
    return code_of(refusal_of([&] { make_reference(plan, ranks, clamped_spec(), probe); }));
  };
  for (const Segment scales : {Segment::gate_scale, Segment::up_scale, Segment::down_scale}) {
    EXPECT_EQ(code(scales, {0x30, 0x7F}), "MOXIE-K003");
    EXPECT_EQ(code(scales, {0xB0}), "MOXIE-K003");
  }
  for (const Segment global :
       {Segment::gate_dequant_mul, Segment::up_dequant_mul, Segment::down_dequant_mul}) {
    EXPECT_EQ(code(global, {0, 0, 0xC0, 0x7F}), "MOXIE-M007");  // NaN
    EXPECT_EQ(code(global, {0, 0, 0, 0}), "MOXIE-M007");
    EXPECT_EQ(code(global, {0, 0, 0x80, 0xBF}), "MOXIE-M007");  // -1
    EXPECT_EQ(code(global, {0, 0, 0x80, 0x7F}), "MOXIE-M007");  // Inf
  }
}

TEST(LayerReference, C17_RefusesGlobalsThatAreAbsentOrNoNumbersAsPackDoes) {
  for (const float value : {0.0F, -1.0F, std::numeric_limits<float>::quiet_NaN(),
                            std::numeric_limits<float>::infinity()}) {
    const auto bad = test::set_scalar("layers.0.ffn.experts.1.w2.weight_scale_2", value);
    const TinyModel model(moderate(BlockFormat::nvfp4, {bad}));
    const ShardPlan plan = plan_of(*model, 1);
    Probe probe = probe_of(plan);
    std::ranges::fill(probe.topk_ids, 1);
    const Error stored =
        refusal_of([&] { make_reference(*model, 0, plan, clamped_spec(), probe); });
    EXPECT_EQ(code_of(stored), "MOXIE-M007");
    EXPECT_STREQ(stored.what(), refusal_of([&] { pack_all(*model, plan); }).what());
  }
}

TEST(LayerReference, TakesNoProbeThatIsNotRoutedOrOfAnotherLayer) {
  const TinyModel model(moderate(BlockFormat::mxfp4));
  const ShardPlan plan = plan_of(*model, 1);
  const auto refused = [&](const Probe& probe) {
    return refusal_of([&] { make_reference(*model, 0, plan, clamped_spec(), probe); }).code() ==
           ErrorCode::internal;
  };
  Probe probe = probe_of(plan);
  probe.topk_ids.clear();
  EXPECT_TRUE(refused(probe));
  probe = probe_of(plan);
  probe.topk_weights.pop_back();
  EXPECT_TRUE(refused(probe));
  EXPECT_TRUE(refused(any_probe(2, 96, plan.experts, 1)));
  probe = probe_of(plan);
  probe.x.pop_back();
  EXPECT_TRUE(refused(probe));
}

}  // namespace
}  // namespace moxie

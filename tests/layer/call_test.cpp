// SPDX-License-Identifier: Apache-2.0
// What a layer refuses, when it is bound and when it is called, and who sums the ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "support/layer_rig.hpp"
#include "support/packed_model.hpp"
#include "support/refusal.hpp"

namespace moxie {
namespace {

using test::RigModel;
using test::TinyModel;

// The result of one call into `y` with the given arguments changed.
struct Call {
  explicit Call(const MoeModel& model, unsigned tp = 1)
      : plan(make_plan(model, {.tp = tp})),
        spec(spec_of(model.config)),
        layer(test::layer_of(model, plan, spec)),
        probe(test::probe_of(model, 4, spec.top_k)),
        y(4 * plan.hidden, -1.0F),
        workspace(layer.workspace_size(4)) {
    io = {.x = probe.x_ref(),
          .topk_ids = probe.topk_ids.data(),
          .topk_weights = probe.topk_weights.data(),
          .y = {.data = y.data(),
                .dtype = DType::f32,
                .rows = 4,
                .cols = plan.hidden,
                .row_stride = plan.hidden},
          .flags = &flags};
  }
  CallStatus run() { return layer.forward(io, workspace); }
  bool untouched() const {
    return std::ranges::all_of(y, [](float v) { return v == -1.0F; }) && flags == 0;
  }

  ShardPlan plan;
  LayerSpec spec;
  MoeLayer layer;
  Probe probe;
  std::vector<float> y;
  std::vector<std::byte> workspace;
  std::uint32_t flags = 0;
  LayerIo io;
};

TEST(LayerCall, BadArgumentsAreAnsweredAndWriteNothing) {
  const RigModel model({});
  Call call(*model);
  const LayerIo good = call.io;
  const auto expect_bad = [&](const char* what) {
    EXPECT_EQ(call.run(), CallStatus::bad_argument) << what;
    EXPECT_TRUE(call.untouched()) << what;
    call.io = good;
  };
  call.io.x.data = nullptr, expect_bad("no x");
  call.io.x.cols = 159, expect_bad("x of another width");
  call.io.x.row_stride = 159, expect_bad("rows of x overlap");
  call.io.x.dtype = DType::f16, expect_bad("x of another type");
  call.io.y.data = nullptr, expect_bad("no y");
  call.io.y.rows = 3, expect_bad("y of another height");
  call.io.y.cols = 161, expect_bad("y of another width");
  call.io.y.row_stride = 100, expect_bad("rows of y overlap");
  call.io.y.dtype = DType::f64, expect_bad("y of another type");
  call.io.topk_ids = nullptr, expect_bad("no ids");
  call.io.topk_weights = nullptr, expect_bad("no weights");
  call.io.flags = nullptr, expect_bad("no flags");
  call.workspace.pop_back();
  EXPECT_EQ(call.run(), CallStatus::workspace_too_small);
  EXPECT_TRUE(call.untouched());
}

TEST(LayerCall, TheWorkspaceSizeIsAPureFunctionThatGrows) {  // pit67, C15
  const RigModel model({});
  for (const unsigned tp : {1U, 3U}) {
    const ShardPlan plan = make_plan(*model, {.tp = tp, .ep = 2});
    const LayerSpec spec = spec_of(model->config);
    std::uint64_t last = 0;
    for (std::uint64_t tokens = 0; tokens < 300; ++tokens) {
      const std::uint64_t size = workspace_size(plan, spec, tokens);
      EXPECT_EQ(size, workspace_size(plan, spec, tokens));
      EXPECT_GE(size, last);
      last = size;
    }
  }
}

TEST(LayerCall, MoreSlotsThanCanBeCountedAreRefused) {  // S-03, pit67
  const RigModel model({});
  Call call(*model);
  const std::uint64_t tokens = std::uint64_t{1} << 31;
  test::expect_refusal([&] { (void)call.layer.workspace_size(tokens); }, ErrorCode::usage,
                       "MOXIE-R008");
  call.io.x.rows = call.io.y.rows = tokens;
  EXPECT_EQ(call.run(), CallStatus::bad_argument);
  EXPECT_TRUE(call.untouched());
}

TEST(LayerCall, TopKHasNoDefault) {  // C10
  const RigModel model({});
  const ShardPlan plan = make_plan(*model, {});
  LayerSpec spec;
  test::expect_refusal([&] { MoeLayer(plan, spec, test::pack_all(*model, plan)); },
                       ErrorCode::usage, "MOXIE-R007");
}

TEST(LayerCall, AnActivationFunctionMustFitTheExpertsAndHaveItsLimit) {
  const RigModel model({});
  const ShardPlan plan = make_plan(*model, {});
  LayerSpec spec = spec_of(model->config);
  const auto bind = [&] { MoeLayer(plan, spec, test::pack_all(*model, plan)); };
  spec.activation = Activation::relu2;  // the experts have a gate
  test::expect_refusal(bind, ErrorCode::unsupported, "MOXIE-R001");
  for (const Activation clamping : {Activation::clamped_swiglu, Activation::oai_swiglu}) {
    spec.activation = clamping;
    for (const std::optional<double> limit : {std::optional<double>(), {0.0}, {-7.0}}) {
      spec.activation_limit = limit;
      test::expect_refusal(bind, ErrorCode::unsupported, "MOXIE-R001");
    }
  }
}

TEST(LayerCall, EitherTheLayerOrTheCallerSumsTheRanks) {  // D-02
  const RigModel model({});
  const ShardPlan plan = make_plan(*model, {.tp = 4});
  LayerSpec spec = spec_of(model->config);
  const auto bind = [&](std::vector<unsigned> ranks) {
    std::vector<PackedExperts> held;
    for (const unsigned rank : ranks) held.push_back(pack(*model, plan, rank, 0));
    return MoeLayer(plan, spec, std::move(held));
  };
  for (const auto& ranks : std::vector<std::vector<unsigned>>{{}, {0}, {0, 1, 2}, {0, 1, 2, 2}})
    test::expect_refusal([&] { bind(ranks); }, ErrorCode::unsupported, "MOXIE-R002");
  spec.reduction = Reduction::caller;
  for (const auto& ranks : std::vector<std::vector<unsigned>>{{}, {0, 1}, {0, 1, 2, 3}})
    test::expect_refusal([&] { bind(ranks); }, ErrorCode::unsupported, "MOXIE-R002");
  EXPECT_NO_THROW(bind({2}));
}

// Partial sums of every rank, added in rank order by the caller, are the layer's own result.
TEST(LayerCall, PartialSumsOfOddWorldsAddUpInRankOrder) {  // D-02, D-03, D-05
  for (const BlockFormat format : test::kFormats) {
    const RigModel model({.format = format});
    for (const unsigned world : {1U, 2U, 3U, 5U}) {
      for (const bool experts : {false, true}) {
        const ShardPlan plan =
            make_plan(*model, {.tp = experts ? 1 : world, .ep = experts ? world : 1});
        LayerSpec spec = spec_of(model->config);
        const MoeLayer whole = test::layer_of(*model, plan, spec);
        spec.reduction = Reduction::caller;
        std::vector<MoeLayer> parts;
        for (unsigned rank = 0; rank < world; ++rank) {
          std::vector<PackedExperts> held;
          held.push_back(pack(*model, plan, rank, 0));
          parts.emplace_back(plan, spec, std::move(held));
        }
        for (std::uint64_t step = 0; step < 20; ++step) {
          // Sizes change every time; some ranks have no work in some steps, some steps no tokens.
          const Routing one{.kind = RoutingKind::one, .expert = step % 7};
          const Probe probe = test::probe_of(*model, step * 3 % 8, spec.top_k,
                                             step % 2 == 0 ? Routing{} : one, step);
          std::vector<float> sum;
          for (const MoeLayer& part : parts) {
            const std::vector<float> partial = test::run_layer(part, probe);
            if (sum.empty()) {
              sum = partial;
            } else {
              std::ranges::transform(sum, partial, sum.begin(), std::plus());
            }
          }
          EXPECT_EQ(test::bits_of(test::run_layer(whole, probe)), test::bits_of(sum)) << world;
        }
      }
    }
  }
}

TEST(LayerCall, ARankWithoutRealColumnsContributesExactlyZero) {  // pit71
  const RigModel model({.hidden = 64, .inter = 96});
  const ShardPlan plan = make_plan(*model, {.tp = 5});
  ASSERT_EQ(plan.ranks[4].slice.rows.count, Elems{0});
  LayerSpec spec = spec_of(model->config);
  const Probe probe = test::probe_of(*model, 3, spec.top_k);
  spec.reduction = Reduction::caller;
  std::vector<PackedExperts> last;
  last.push_back(pack(*model, plan, 4, 0));
  EXPECT_EQ(test::run_layer(MoeLayer(plan, spec, std::move(last)), probe),
            std::vector<float>(3 * 64, 0.0F));
}

TEST(LayerCall, ScalarsOfARankAreItsOwnExperts) {  // D-04
  const TinyModel model(BlockFormat::nvfp4);
  const ShardPlan whole = make_plan(*model, {});
  const ShardPlan halves = make_plan(*model, {.ep = 2});
  for (const RankPlan& rank : halves.ranks) {
    const PackedExperts packed = pack(*model, halves, rank.rank, 0);
    for (const std::uint64_t expert : rank.experts.ids()) {
      for (const Segment scalar : {Segment::gate_act_dequant_mul, Segment::down_act_dequant_mul}) {
        const PackedSegment& at = *halves.layout.find(scalar);
        const test::Bytes alone = test::packed_blob(*model, whole, 0, expert);
        EXPECT_TRUE(test::same_bytes(std::span(alone).subspan(at.offset, 4),
                                     packed.blob(expert).subspan(at.offset, 4)));
      }
    }
  }
}

TEST(LayerCall, IdsOfTwoTokensStayWithTheirTokens) {  // S-09
  // Expert e's down projection is (e + 1) times a common one: one global says so.
  const RigModel model({.format = BlockFormat::nvfp4, .experts = 4});
  const ShardPlan plan = make_plan(*model, {});
  std::vector<PackedExperts> ranks = test::pack_all(*model, plan);
  const std::vector<std::byte> common(
      ranks[0].blobs.begin(),
      ranks[0].blobs.begin() + static_cast<std::ptrdiff_t>(plan.layout.stride));
  for (std::uint64_t e = 0; e < 4; ++e) {
    std::byte* blob = ranks[0].blobs.data() + e * plan.layout.stride;
    std::ranges::copy(common, blob);
    const float global = static_cast<float>(e + 1) / 64;
    std::memcpy(blob + plan.layout.find(Segment::down_dequant_mul)->offset, &global, sizeof global);
  }
  const auto run = [&](std::uint64_t tokens, std::uint64_t top_k, std::vector<std::int32_t> ids) {
    LayerSpec spec = spec_of(model->config);
    spec.top_k = top_k;
    Probe probe = test::probe_of(*model, tokens, top_k);
    probe.topk_weights.assign(ids.size(), 0.5F);
    probe.topk_ids = std::move(ids);
    return test::run_layer(MoeLayer(plan, spec, ranks), probe);
  };
  const std::vector<float> c = run(2, 1, {0, 0});  // half of each token's common result
  const auto expect_factor = [&](const std::vector<float>& y, std::size_t token, float factor) {
    for (std::size_t i = 0; i < 160; ++i) {
      const float expected = factor * c[token * 160 + i];
      EXPECT_NEAR(y[token * 160 + i], expected, std::abs(expected) * 1e-5F);
    }
  };
  const std::vector<float> two = run(2, 2, {0, 1, 2, 3});
  expect_factor(two, 0, 3);
  expect_factor(two, 1, 7);
  expect_factor(run(1, 2, {0, 1}), 0, 3);
  const std::vector<float> single = run(2, 1, {1, 3});
  expect_factor(single, 0, 2);
  expect_factor(single, 1, 4);
}

TEST(LayerCall, DistinctTokensGiveDistinctResults) {  // pit62
  const RigModel model({});
  LayerSpec spec = spec_of(model->config);
  const Probe probe =
      test::probe_of(*model, 8, spec.top_k, {.kind = RoutingKind::one, .expert = 2});
  const std::vector<float> y =
      test::run_layer(test::layer_of(*model, make_plan(*model, {}), spec), probe);
  for (std::ptrdiff_t t = 1; t < 8; ++t)
    EXPECT_FALSE(std::equal(y.begin(), y.begin() + 160, y.begin() + t * 160));
}

TEST(LayerCall, ExpertsWithUnusableNumbersAreRefusedByName) {  // C-05, C17, pit13, K-05
  for (const BlockFormat format : test::kFormats) {
    const RigModel model({.format = format});
    const ShardPlan plan = make_plan(*model, {.ep = 2});
    const LayerSpec spec = spec_of(model->config);
    MoeLayer layer = test::layer_of(*model, plan, spec);
    const Probe probe = test::probe_of(*model, 5, spec.top_k);
    const std::vector<float> before = test::run_layer(layer, probe);
    std::vector<std::pair<Segment, std::vector<std::byte>>> bad = {
        {Segment::up_scale, {std::byte{0xFF}}}, {Segment::down_scale, {std::byte{0xFF}}}};
    if (format == BlockFormat::nvfp4) {
      bad.push_back({Segment::gate_scale, {std::byte{0x7F}}});
      for (const float value : {0.0F, -1.0F, std::numeric_limits<float>::quiet_NaN(),
                                std::numeric_limits<float>::infinity()}) {
        std::vector<std::byte> bytes(sizeof value);
        std::memcpy(bytes.data(), &value, sizeof value);
        bad.push_back({Segment::up_dequant_mul, bytes});
      }
    }
    for (const auto& [segment, bytes] : bad) {
      const std::uint64_t at = plan.layout.find(segment)->offset;
      const auto named = [](const Finding& finding) {
        return finding.where.expert == 5U && finding.where.rank == 1U;
      };
      std::vector<PackedExperts> ranks = test::pack_all(*model, plan);
      std::ranges::copy(bytes, ranks[1].blobs.begin() +
                                   static_cast<std::ptrdiff_t>(
                                       *ranks[1].experts.slot_of(5) * plan.layout.stride + at));
      try {
        MoeLayer(plan, spec, std::move(ranks));
        FAIL() << name_of(segment);
      } catch (const Error& error) {
        EXPECT_EQ(error.findings()[0].code, "MOXIE-R003");
        EXPECT_TRUE(named(error.findings()[0])) << error.what();
      }
      test::Bytes blob = test::packed_blob(*model, plan, 1, 5);
      std::ranges::copy(bytes, blob.begin() + static_cast<std::ptrdiff_t>(at));
      test::expect_refusal([&] { layer.reload(1, 5, blob); }, ErrorCode::input, "MOXIE-R003");
    }
    EXPECT_EQ(test::run_layer(layer, probe), before) << "a refused reload changed the layer";
  }
}

TEST(LayerCall, BlobsOfAnotherPlanAreRefused) {
  const RigModel model({});
  const LayerSpec spec = spec_of(model->config);
  const ShardPlan plan = make_plan(*model, {.tp = 2});
  const ShardPlan other = make_plan(*model, {.tp = 2, .kernel_align = 160});
  test::expect_refusal([&] { MoeLayer(plan, spec, test::pack_all(*model, other)); },
                       ErrorCode::input, "MOXIE-R003");
  std::vector<PackedExperts> cut = test::pack_all(*model, plan);
  cut[1].blobs.pop_back();
  test::expect_refusal([&] { MoeLayer(plan, spec, std::move(cut)); }, ErrorCode::input,
                       "MOXIE-R003");
  MoeLayer layer = test::layer_of(*model, plan, spec);
  test::expect_refusal([&] { layer.reload(0, 1, test::packed_blob(*model, other, 0, 1)); },
                       ErrorCode::input, "MOXIE-R003");
  test::expect_refusal([&] { layer.reload(0, 7, test::packed_blob(*model, plan, 0, 1)); },
                       ErrorCode::usage, "MOXIE-R009");
  test::expect_refusal([&] { layer.reload(2, 1, test::packed_blob(*model, plan, 0, 1)); },
                       ErrorCode::usage, "MOXIE-R009");
}

TEST(LayerCall, OverheadOutsideTheProductsIsSmall) {
  // One token, one active expert, V4-Flash's hidden width.
  const RigModel model({.hidden = 4096, .inter = 512, .experts = 4});
  LayerSpec spec = spec_of(model->config);
  spec.top_k = 1;
  const MoeLayer layer = test::layer_of(*model, make_plan(*model, {}), spec);
  const Probe probe = test::probe_of(*model, 1, 1);
  std::vector<float> y(4096);
  std::vector<std::byte> workspace(layer.workspace_size(1));
  std::uint32_t flags = 0;
  Trace trace;
  const LayerIo io{
      .x = probe.x_ref(),
      .topk_ids = probe.topk_ids.data(),
      .topk_weights = probe.topk_weights.data(),
      .y = {.data = y.data(), .dtype = DType::f32, .rows = 1, .cols = 4096, .row_stride = 4096},
      .flags = &flags,
      .trace = &trace};
  std::uint64_t least = ~std::uint64_t{0};
  for (int repeat = 0; repeat < 200; ++repeat) {
    ASSERT_EQ(layer.forward(io, workspace), CallStatus::ok);
    least = std::min(least, trace.total_ns - trace[Stage::gate_up] - trace[Stage::down]);
  }
  RecordProperty("overhead_ns", std::to_string(least));
#if defined(NDEBUG) && !defined(__SANITIZE_ADDRESS__)
  EXPECT_LT(least, 20'000U);
#endif
}

}  // namespace
}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// What goes through moxie.h gives the bits of the C++ API, from a checkpoint and from a packed
// folder.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "capi/c_rig.hpp"
#include "formats/bf16.hpp"

namespace moxie {
namespace {

using test::bits_of;
using test::RigModel;

std::filesystem::path path_of(const RigModel& model) { return model->checkpoint.path(); }

TEST(CAbi, ForwardGivesTheBitsOfTheCppApi) {
  for (const BlockFormat format : {BlockFormat::mxfp4, BlockFormat::nvfp4}) {
    const RigModel model({.format = format});
    const test::ModelHandle handle = test::opened(path_of(model));
    for (const unsigned tp : {1U, 3U}) {
      moxie_plan_options options = test::plan_options();
      options.tp = tp;
      options.ep = 2;
      options.act_format = "mxfp8";
      options.kernel_align = 64;
      const test::LayerHandle layer = test::prepared(test::planned(handle.get(), options).get());
      const ShardPlan plan = make_plan(
          *model, {.tp = tp, .ep = 2, .act_format = ActFormat::mxfp8, .kernel_align = 64});
      const MoeLayer expected = test::layer_of(*model, plan, spec_of(model->config));
      for (const std::uint64_t tokens : {1U, 7U, 64U}) {
        const Probe probe = test::probe_of(*model, tokens, model->config.top_k);
        EXPECT_EQ(bits_of(test::c_forward(layer.get(), probe)),
                  bits_of(test::run_layer(expected, probe)))
            << name_of(format) << " tp " << tp << " tokens " << tokens;
      }
    }
  }
}

TEST(CAbi, RowsWithStridesAndBothElementTypesAreTaken) {
  const RigModel model({});
  const test::LayerHandle layer =
      test::prepared(test::planned(test::opened(path_of(model)).get()).get());
  const Probe probe = test::probe_of(*model, 5, model->config.top_k);
  const std::vector<float> dense = test::c_forward(layer.get(), probe);
  // The same rows as f32, three elements apart, and a bf16 result four apart.
  const std::uint64_t x_stride = probe.hidden + 3;
  const std::uint64_t y_stride = probe.hidden + 4;
  std::vector<float> x(probe.tokens * x_stride, std::numeric_limits<float>::quiet_NaN());
  std::vector<std::uint16_t> y(probe.tokens * y_stride, 0x1234);
  const auto* from = reinterpret_cast<const std::uint16_t*>(probe.x.data());
  for (std::uint64_t i = 0; i < probe.tokens * probe.hidden; ++i)
    x[i / probe.hidden * x_stride + i % probe.hidden] = decode_bf16(from[i]);
  test::CCall call(layer.get(), probe);
  call.args.x_dtype = MOXIE_DTYPE_F32;
  call.args.x = x.data();
  call.args.x_row_stride = x_stride;
  call.args.y_dtype = MOXIE_DTYPE_BF16;
  call.args.y = y.data();
  call.args.y_row_stride = y_stride;
  ASSERT_EQ(test::said(moxie_forward(layer.get(), &call.args)), "ok");
  for (std::uint64_t token = 0; token < probe.tokens; ++token) {
    for (std::uint64_t i = 0; i < y_stride; ++i) {
      const std::uint16_t got = y[token * y_stride + i];
      const std::uint16_t expected =
          i < probe.hidden ? encode_bf16(dense[token * probe.hidden + i]) : 0x1234;
      ASSERT_EQ(got, expected) << "token " << token << " element " << i;
    }
  }
}

TEST(CAbi, PartialSumsOfTheRanksAddUpToTheLayersSum) {
  const RigModel model({});
  const test::ModelHandle handle = test::opened(path_of(model));
  moxie_plan_options options = test::plan_options();
  options.tp = 3;
  const test::PlanHandle plan = test::planned(handle.get(), options);
  const Probe probe = test::probe_of(*model, 4, model->config.top_k);
  std::vector<float> sum;
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    moxie_prepare_options one = test::prepare_options();
    one.reduction = MOXIE_REDUCTION_CALLER;
    one.rank = rank;
    const std::vector<float> part = test::c_forward(test::prepared(plan.get(), one).get(), probe);
    if (rank == 0) {
      sum = part;
    } else {
      std::ranges::transform(sum, part, sum.begin(), std::plus<>());
    }
  }
  EXPECT_EQ(bits_of(sum), bits_of(test::c_forward(test::prepared(plan.get()).get(), probe)));
}

TEST(CAbi, APackedFolderGivesTheBitsOfItsCheckpoint) {
  const RigModel model({.format = BlockFormat::nvfp4});
  const test::TempFolder folder;
  for (const FileLayout layout : {FileLayout::logical, FileLayout::kernel}) {
    const std::filesystem::path out = folder.path() / std::string(name_of(layout));
    pack_to_folder(*model, make_plan(*model, {.tp = 3}), {.out = out, .layout = layout});
    const test::ModelHandle packed = test::opened(out);
    moxie_model_info info{.struct_size = sizeof(moxie_model_info)};
    ASSERT_EQ(test::said(moxie_describe_model(packed.get(), &info)), "ok");
    EXPECT_EQ(info.packed, 1U);
    moxie_plan_options options = test::plan_options();
    options.tp = 3;  // what it was packed for may be said
    options.target = "cpu";
    const test::PlanHandle plan = test::planned(packed.get(), options);
    const test::LayerHandle layer = test::prepared(plan.get());
    const Probe probe = test::probe_of(*model, 4, model->config.top_k);
    const MoeLayer expected =
        test::layer_of(*model, make_plan(*model, {.tp = 3}), spec_of(model->config));
    EXPECT_EQ(bits_of(test::c_forward(layer.get(), probe)),
              bits_of(test::run_layer(expected, probe)));
    // One expert of it, as the layer holds it.
    std::vector<std::byte> blob(expected.plan().layout.stride);
    ASSERT_EQ(test::said(moxie_pack_expert(plan.get(), 1, 0, 2, blob.data(), blob.size())), "ok");
    EXPECT_TRUE(std::ranges::equal(blob, expected.blob(1, 2)));
  }
}

TEST(CAbi, ThreadsAndTopKOfTheCallerCount) {
  const RigModel model({});
  const test::PlanHandle plan = test::planned(test::opened(path_of(model)).get());
  moxie_prepare_options options = test::prepare_options();
  options.threads = 1;
  options.max_sms = 8;  // of a GPU; nothing on the CPU
  options.top_k = model->config.top_k + 1;
  const test::LayerHandle layer = test::prepared(plan.get(), options);
  LayerSpec spec = spec_of(model->config);
  spec.top_k = model->config.top_k + 1;
  const MoeLayer expected = test::layer_of(*model, make_plan(*model, {}), spec);
  const Probe probe = test::probe_of(*model, 6, spec.top_k);
  EXPECT_EQ(bits_of(test::c_forward(layer.get(), probe)),
            bits_of(test::run_layer(expected, probe)));
}

TEST(CAbi, ReloadingOneExpertThereAndBackRestoresTheFirstBits) {
  const RigModel first({.seed = 3});
  const RigModel second({.seed = 4});
  moxie_plan_options options = test::plan_options();
  options.tp = 2;
  const test::PlanHandle plan = test::planned(test::opened(path_of(first)).get(), options);
  const test::PlanHandle other = test::planned(test::opened(path_of(second)).get(), options);
  const test::LayerHandle layer = test::prepared(plan.get());
  const Probe probe =
      test::probe_of(*first, 3, first->config.top_k, {.kind = RoutingKind::one, .expert = 5});
  const std::vector<float> before = test::c_forward(layer.get(), probe);
  moxie_plan_info info{.struct_size = sizeof(moxie_plan_info)};
  ASSERT_EQ(test::said(moxie_describe_plan(plan.get(), &info)), "ok");
  const auto reload = [&](const moxie_plan* from) {
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      std::vector<std::byte> blob(info.blob_bytes);
      ASSERT_EQ(test::said(moxie_pack_expert(from, rank, 0, 5, blob.data(), blob.size())), "ok");
      ASSERT_EQ(test::said(moxie_reload(layer.get(), rank, 5, blob.data(), blob.size())), "ok");
    }
  };
  reload(other.get());
  const test::LayerHandle fresh = test::prepared(other.get());
  EXPECT_EQ(bits_of(test::c_forward(layer.get(), probe)),
            bits_of(test::c_forward(fresh.get(), probe)));
  EXPECT_NE(bits_of(test::c_forward(layer.get(), probe)), bits_of(before));
  reload(plan.get());
  EXPECT_EQ(bits_of(test::c_forward(layer.get(), probe)), bits_of(before));
}

TEST(CAbi, WarmUpFreezesTheScalesOfTheCppApi) {
  const RigModel model({});
  moxie_plan_options options = test::plan_options();
  options.tp = 2;
  options.act_format = "nvfp4";
  options.act_scale = "warmup";
  options.act_margin = 2;
  const test::LayerHandle layer =
      test::prepared(test::planned(test::opened(path_of(model)).get(), options).get());
  const Probe probe = test::probe_of(*model, 9, model->config.top_k);
  test::CCall call(layer.get(), probe);
  std::uint32_t fallback_ranks = 77;
  ASSERT_EQ(test::said(moxie_warm_up(layer.get(), &call.args, &fallback_ranks)), "ok");
  EXPECT_EQ(fallback_ranks, 0U);
  EXPECT_TRUE(std::isnan(call.y.front())) << "a warm-up writes no result";
  MoeLayer expected = test::layer_of(*model,
                                     make_plan(*model, {.tp = 2,
                                                        .act_format = ActFormat::nvfp4,
                                                        .act_scale = ActScale::warmup,
                                                        .act_margin = 2}),
                                     spec_of(model->config));
  expected.freeze(expected.warm_up(test::io_of(probe, call.y.data(), DType::f32, &call.flags),
                                   call.workspace, 2));
  EXPECT_EQ(bits_of(test::c_forward(layer.get(), probe)),
            bits_of(test::run_layer(expected, probe)));
  // Nobody is routed anywhere: both ranks stay at the fallback, and the caller is told.
  const std::vector<std::int32_t> nowhere(probe.topk_ids.size(), -1);
  call.args.topk_ids = nowhere.data();
  ASSERT_EQ(test::said(moxie_warm_up(layer.get(), &call.args, &fallback_ranks)), "ok");
  EXPECT_EQ(fallback_ranks, 2U);
}

TEST(CAbi, BadExpertIdsRaiseTheFlagAndNothingElse) {
  const RigModel model({});
  const test::LayerHandle layer =
      test::prepared(test::planned(test::opened(path_of(model)).get()).get());
  Probe probe = test::probe_of(*model, 2, model->config.top_k);
  probe.topk_ids.front() = -1;
  const std::vector<float> masked = test::c_forward(layer.get(), probe);
  probe.topk_ids.front() = 1000;
  test::CCall call(layer.get(), probe);
  call.flags = 0x100;  // a call clears no bit
  ASSERT_EQ(test::said(moxie_forward(layer.get(), &call.args)), "ok");
  EXPECT_EQ(call.flags, 0x100U | MOXIE_FLAG_BAD_EXPERT_ID);
  EXPECT_EQ(bits_of(call.y), bits_of(masked));
}

TEST(CAbi, ConstantsAreThoseOfTheCppApi) {
  EXPECT_EQ(MOXIE_FLAG_BAD_EXPERT_ID, kFlagBadExpertId);
  EXPECT_EQ(MOXIE_FLAG_BAD_ROW_COUNT, kFlagBadRowCount);
  EXPECT_EQ(MOXIE_STATUS_VERDICT, static_cast<int>(ErrorCode::verdict));
  EXPECT_EQ(MOXIE_STATUS_USAGE, static_cast<int>(ErrorCode::usage));
  EXPECT_EQ(MOXIE_STATUS_INPUT, static_cast<int>(ErrorCode::input));
  EXPECT_EQ(MOXIE_STATUS_UNSUPPORTED, static_cast<int>(ErrorCode::unsupported));
  EXPECT_EQ(MOXIE_STATUS_ENVIRONMENT, static_cast<int>(ErrorCode::environment));
  EXPECT_EQ(MOXIE_STATUS_INTERNAL, static_cast<int>(ErrorCode::internal));
  EXPECT_EQ(std::string(moxie_version()), version());
}

}  // namespace
}  // namespace moxie

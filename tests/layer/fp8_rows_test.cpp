// SPDX-License-Identifier: Apache-2.0
// Dispatched rows in FP8 have the bits of their values in f32.
#include "support/fp8_rows.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "support/layer_rig.hpp"
#include "support/refusal.hpp"

namespace moxie {
namespace {

using test::DispatchedRows;
using test::Fp8Rows;
using test::RigModel;
using test::ScaleOrder;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

MoeLayer rank_layer(const MoeModel& model, const ShardPlan& plan, unsigned rank) {
  LayerSpec spec = spec_of(model.config);
  spec.reduction = Reduction::caller;
  std::vector<PackedExperts> one;
  one.push_back(pack(model, plan, rank, 0));
  return MoeLayer(plan, spec, std::move(one));
}

// One call with everything of its own; fields may be changed before run().
struct Call {
  Call(const MoeLayer& of, const DispatchedRows& rows, const MatrixRef& x, RowBlockScales scales)
      : layer(of),
        y(rows.rows * rows.hidden, kNan),
        workspace(layer.rows_workspace_size(rows.rows, x.dtype), std::byte{0xFF}) {
    io = {.x = x,
          .x_scales = scales,
          .rows_of_expert = rows.counts.data(),
          .rows_apart = rows.apart,
          .row_scales = rows.scales.data(),
          .y = test::rows_ref(rows, y.data(), DType::f32),
          .flags = &flags};
  }
  Call(const MoeLayer& of, const DispatchedRows& rows, const Fp8Rows& fp8)
      : Call(of, rows, fp8.ref(rows, fp8.codes.data()), fp8.scales_at(fp8.scales.data())) {}
  Call(const MoeLayer& of, const DispatchedRows& rows)
      : Call(of, rows, test::rows_ref(rows, rows.x.data()), {}) {}
  CallStatus run() { return layer.forward_rows(io, workspace); }

  const MoeLayer& layer;
  std::vector<float> y;
  std::vector<std::byte> workspace;
  std::uint32_t flags = 0;
  RowsIo io;
};

std::vector<float> y_of(Call call) {
  EXPECT_EQ(call.run(), CallStatus::ok);
  EXPECT_EQ(call.flags, 0U);
  return call.y;
}

// `most`: rows of an expert.
void expect_equal_bits(const MoeModel& model, const PlanOptions& options, unsigned rank,
                       std::mt19937_64& random, std::uint64_t most = 5) {
  const ShardPlan plan = make_plan(model, options);
  const MoeLayer layer = rank_layer(model, plan, rank);
  for (const bool apart : {false, true}) {
    for (const ScaleOrder order : {ScaleOrder::rows, ScaleOrder::columns}) {
      DispatchedRows rows = test::dispatched_rows(plan, rank, most, apart, random);
      const Fp8Rows fp8 = test::fp8_rows(rows, order, random() % 3 * 5, random);
      const std::vector<float> y = y_of({layer, rows, fp8});
      EXPECT_TRUE(std::ranges::none_of(y, [](float v) { return v != v; }))
          << "rows of nobody hold NaN, and nobody looks at them";
      EXPECT_EQ(test::bits_of(y), test::bits_of(y_of({layer, rows})))
          << plan.kernel << ", hidden " << plan.hidden << (apart ? ", apart" : "")
          << (order == ScaleOrder::columns ? ", columns" : "");
    }
  }
}

TEST(Fp8Rows, HaveTheBitsOfTheirValues) {
  std::mt19937_64 random(std::random_device{}());
  const RigModel model({});
  for (const ActFormat act : {ActFormat::bf16, ActFormat::fp8, ActFormat::mxfp8})
    expect_equal_bits(*model, {.act_format = act}, 0, random);
  expect_equal_bits(*model, {.tp = 3, .ep = 2}, 4, random);
  expect_equal_bits(*model, {.tp = 13}, 12, random);  // without a real part
  // Scales that all rows of a call have in common.
  expect_equal_bits(*model, {.act_format = ActFormat::nvfp4, .act_scale = ActScale::dynamic}, 0,
                    random);
}

TEST(Fp8Rows, MayEndInFewerThan128Columns) {
  std::mt19937_64 random(std::random_device{}());
  for (const std::uint64_t hidden : {64U, 128U, 2880U}) {
    for (const BlockFormat format : {BlockFormat::mxfp4, BlockFormat::nvfp4})
      expect_equal_bits(*RigModel({.format = format, .hidden = hidden, .inter = 64, .experts = 3}),
                        {}, 0, random);
  }
}

TEST(Fp8Rows, MayBeManyEnoughForSeveralThreads) {
  std::mt19937_64 random(std::random_device{}());
  expect_equal_bits(*RigModel({.hidden = 2880, .inter = 64, .experts = 3}), {}, 0, random, 80);
}

// Memory that is theirs ends with what somebody owns: a sanitizer sees who looks farther.
TEST(Fp8Rows, OfNobodyNeedNoMemory) {
  std::mt19937_64 random(std::random_device{}());
  const RigModel model({});
  const ShardPlan plan = make_plan(*model, {});
  const MoeLayer layer = rank_layer(*model, plan, 0);
  DispatchedRows rows = test::dispatched_rows(plan, 0, 4, false, random);
  const Fp8Rows fp8 = test::fp8_rows(rows, ScaleOrder::rows, 0, random);
  const auto owned = static_cast<std::uint64_t>(
      std::ranges::count_if(rows.ids, [](std::int32_t id) { return id >= 0; }));
  Fp8Rows trimmed = fp8;
  trimmed.codes = {fp8.codes.begin(),
                   fp8.codes.begin() + static_cast<std::ptrdiff_t>(owned * fp8.stride)};
  const std::uint64_t scales = owned == 0 ? 1 : fp8.scale_of(rows, owned - 1, 1) + 1;
  trimmed.scales = {fp8.scales.begin(), fp8.scales.begin() + static_cast<std::ptrdiff_t>(scales)};
  trimmed.codes.resize(std::max<std::size_t>(trimmed.codes.size(), 1));
  trimmed.codes.shrink_to_fit();
  trimmed.scales.shrink_to_fit();
  EXPECT_EQ(test::bits_of(y_of({layer, rows, trimmed})), test::bits_of(y_of({layer, rows})));
}

TEST(Fp8Rows, ThatAreNoNumbersGiveNone) {
  std::mt19937_64 random(std::random_device{}());
  const RigModel model({});
  const ShardPlan plan = make_plan(*model, {});
  const MoeLayer layer = rank_layer(*model, plan, 0);
  DispatchedRows rows = test::dispatched_rows(plan, 0, 9, true, random);
  rows.counts.assign(rows.counts.size(), 8);
  for (std::uint64_t row = 0; row < rows.rows; ++row)
    rows.ids[row] = row % rows.apart < 8 ? static_cast<std::int32_t>(row / rows.apart) : -1;
  Fp8Rows fp8 = test::fp8_rows(rows, ScaleOrder::columns, 0, random);
  const std::uint64_t at[] = {0, rows.apart + 1, 2 * rows.apart + 2, 3 * rows.apart + 3};
  fp8.codes[at[0] * fp8.stride + 7] = 0x7F;
  fp8.codes[at[1] * fp8.stride + 159] = 0xFF;
  fp8.scales[fp8.scale_of(rows, at[2], 1)] = kNan;
  fp8.scales[fp8.scale_of(rows, at[3], 0)] = -kInfinity;
  fp8.codes[at[3] * fp8.stride] = 0;  // 0 * Inf
  for (const std::uint64_t row : at) {
    for (std::uint64_t column = 0; column < rows.hidden; ++column)
      rows.x[row * rows.hidden + column] = decode_e4m3(fp8.codes[row * fp8.stride + column]) *
                                           fp8.scales[fp8.scale_of(rows, row, column / 128)];
  }
  const std::vector<float> y = y_of({layer, rows, fp8});
  const std::vector<float> expected = y_of({layer, rows});
  for (std::uint64_t i = 0; i < y.size(); ++i) {
    const bool hurt = std::ranges::find(at, i / rows.hidden) != std::end(at);
    ASSERT_EQ(std::isnan(y[i]), hurt) << i / rows.hidden << ", " << i % rows.hidden;
    ASSERT_TRUE(hurt ? std::isnan(expected[i]) : y[i] == expected[i]);
  }
}

TEST(Fp8Rows, OfBadArgumentsAreAnsweredAndWriteNothing) {
  std::mt19937_64 random(std::random_device{}());
  const RigModel model({});
  const ShardPlan plan = make_plan(*model, {});
  const MoeLayer layer = rank_layer(*model, plan, 0);
  DispatchedRows rows = test::dispatched_rows(plan, 0, 4, false, random);
  const Fp8Rows fp8 = test::fp8_rows(rows, ScaleOrder::rows, 0, random);
  const auto expect = [&](CallStatus status, const auto& change) {
    Call call(layer, rows, fp8);
    change(call);
    EXPECT_EQ(call.run(), status);
    EXPECT_TRUE(std::ranges::all_of(call.y, [](float v) { return v != v; }));
    EXPECT_EQ(call.flags, 0U);
  };
  expect(CallStatus::bad_argument, [](Call& call) { call.io.x_scales.data = nullptr; });
  expect(CallStatus::bad_argument, [](Call& call) { call.io.x_scales.row_stride = 0; });
  expect(CallStatus::bad_argument, [](Call& call) { call.io.x_scales.block_stride = 0; });
  expect(CallStatus::bad_argument, [](Call& call) { call.io.x.row_stride -= 1; });
  expect(CallStatus::bad_argument, [](Call& call) { call.io.x.data = nullptr; });
  expect(CallStatus::bad_argument, [](Call& call) { call.io.x.dtype = DType::f8_e5m2; });
  expect(CallStatus::bad_argument, [](Call& call) { call.io.x.dtype = DType::f8_e4m3fnuz; });
  expect(CallStatus::bad_argument, [](Call& call) { call.io.y.dtype = DType::f8_e4m3; });
  expect(CallStatus::workspace_too_small, [](Call& call) { call.workspace.pop_back(); });
  expect(CallStatus::ok, [](Call& call) {
    call.io.x = {.dtype = DType::f8_e4m3, .cols = call.io.x.cols, .row_stride = call.io.x.cols};
    call.io.x_scales.data = nullptr;
    call.io.y.rows = 0;
  });
  // Scales of what needs none: whoever gives them means something else.
  Call wide(layer, rows);
  wide.io.x_scales = fp8.scales_at(fp8.scales.data());
  EXPECT_EQ(wide.run(), CallStatus::bad_argument);
}

TEST(Fp8Rows, NeedAWorkspaceForTheirValues) {
  const RigModel model({});
  for (const ActFormat act : {ActFormat::bf16, ActFormat::fp8}) {
    const ShardPlan plan = make_plan(*model, {.act_format = act});
    const MoeLayer layer = rank_layer(*model, plan, 0);
    const std::uint64_t bytes = layer.rows_workspace_size(64);
    const std::uint64_t element_bytes = act == ActFormat::bf16 ? 2 : 4;
    EXPECT_EQ(layer.rows_workspace_size(64, DType::bf16), bytes);
    EXPECT_EQ(layer.rows_workspace_size(64, DType::f8_e4m3),
              bytes + 64 * plan.hidden * element_bytes);
    test::expect_refusal([&] { (void)layer.rows_workspace_size(64, DType::f8_e5m2); },
                         ErrorCode::usage, "MOXIE-R008");
  }
}

}  // namespace
}  // namespace moxie

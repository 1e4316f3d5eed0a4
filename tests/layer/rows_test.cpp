// SPDX-License-Identifier: Apache-2.0
// Rows that somebody else has dispatched have the bits of choices of their own.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>

#include "formats/bf16.hpp"
#include "support/dispatched_rows.hpp"
#include "support/layer_rig.hpp"
#include "support/refusal.hpp"

namespace moxie {
namespace {

using test::DispatchedRows;
using test::RigModel;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

MoeLayer rank_layer(const MoeModel& model, const ShardPlan& plan, unsigned rank,
                    std::uint64_t top_k) {
  LayerSpec spec = spec_of(model.config);
  spec.top_k = top_k;
  spec.reduction = Reduction::caller;
  std::vector<PackedExperts> one;
  one.push_back(pack(model, plan, rank, 0));
  return MoeLayer(plan, spec, std::move(one));
}

// One call with everything of its own; fields may be changed before run().
struct Call {
  Call(const MoeLayer& of, const DispatchedRows& rows)
      : layer(of),
        y(rows.rows * rows.hidden, kNan),
        workspace(layer.rows_workspace_size(rows.rows), std::byte{0xFF}) {
    io = {.x = test::rows_ref(rows, rows.x.data()),
          .rows_of_expert = rows.counts.data(),
          .rows_apart = rows.apart,
          .y = test::rows_ref(rows, y.data(), DType::f32),
          .flags = &flags};
  }
  CallStatus run() { return layer.forward_rows(io, workspace); }

  const MoeLayer& layer;
  std::vector<float> y;
  std::vector<std::byte> workspace;
  std::uint32_t flags = 0;
  RowsIo io;
};

// The rows as tokens with one choice each.
std::vector<float> as_choices(const MoeLayer& top_1, const DispatchedRows& rows,
                              const std::vector<float>& weights) {
  std::vector<float> y(rows.rows * rows.hidden, kNan);
  std::vector<std::byte> workspace(top_1.workspace_size(rows.rows));
  std::uint32_t flags = 0;
  const LayerIo io{.x = test::rows_ref(rows, rows.x.data()),
                   .topk_ids = rows.ids.data(),
                   .topk_weights = weights.data(),
                   .y = test::rows_ref(rows, y.data(), DType::f32),
                   .flags = &flags};
  EXPECT_EQ(top_1.forward(io, workspace), CallStatus::ok);
  EXPECT_EQ(flags, 0U);
  return y;
}

struct Case {
  unsigned tp;
  unsigned ep;
  PlacementKind placement;
};
constexpr Case kCases[] = {{1, 1, PlacementKind::contiguous},
                           {3, 1, PlacementKind::contiguous},
                           {2, 2, PlacementKind::interleaved},
                           {13, 1, PlacementKind::contiguous}};  // ranks without a real part

TEST(DispatchedRows, HaveTheBitsOfTokensWithOneChoice) {
  std::mt19937_64 random(std::random_device{}());
  const RigModel model({});
  for (const Case& row : kCases) {
    const ShardPlan plan = make_plan(
        *model, {.tp = row.tp, .ep = row.ep, .placement = {.kind = row.placement, .map = {}}});
    for (unsigned rank = 0; rank < plan.ranks.size(); rank += row.tp == 13 ? 6 : 1) {
      const MoeLayer layer = rank_layer(*model, plan, rank, 3);
      const MoeLayer top_1 = rank_layer(*model, plan, rank, 1);
      for (const bool apart : {false, true}) {
        const DispatchedRows rows = test::dispatched_rows(plan, rank, 9, apart, random);
        Call plain(layer, rows);
        EXPECT_EQ(plain.run(), CallStatus::ok);
        EXPECT_EQ(plain.flags, 0U);
        EXPECT_EQ(test::bits_of(plain.y),
                  test::bits_of(as_choices(top_1, rows, std::vector(rows.rows, 1.0F))))
            << "tp " << row.tp << ", rank " << rank << (apart ? ", apart" : "");
        Call scaled(layer, rows);
        scaled.io.row_scales = rows.scales.data();
        EXPECT_EQ(scaled.run(), CallStatus::ok);
        EXPECT_EQ(test::bits_of(scaled.y), test::bits_of(as_choices(top_1, rows, rows.scales)));
      }
    }
  }
}

TEST(DispatchedRows, GoIntoRowsOfBf16ThatAreFartherApart) {
  std::mt19937_64 random(std::random_device{}());
  const RigModel model({});
  const ShardPlan plan = make_plan(*model, {});
  const MoeLayer layer = rank_layer(*model, plan, 0, 2);
  const DispatchedRows rows = test::dispatched_rows(plan, 0, 5, false, random);
  Call wide(layer, rows);
  EXPECT_EQ(wide.run(), CallStatus::ok);
  const std::uint64_t stride = rows.hidden + 7;
  std::vector<std::uint16_t> y(rows.rows * stride, 0xABCDU);
  Call call(layer, rows);
  call.io.y = test::rows_ref(rows, y.data(), DType::bf16);
  call.io.y.row_stride = stride;
  EXPECT_EQ(call.run(), CallStatus::ok);
  for (std::uint64_t row = 0; row < rows.rows; ++row) {
    for (std::uint64_t column = 0; column < stride; ++column) {
      const std::uint16_t expected =
          column < rows.hidden ? encode_bf16(wide.y[row * rows.hidden + column]) : 0xABCDU;
      ASSERT_EQ(y[row * stride + column], expected) << row << ", " << column;
    }
  }
}

TEST(DispatchedRows, BeyondTheirRoomAreFlaggedAndSkipped) {
  std::mt19937_64 random(std::random_device{}());
  const RigModel model({});
  const ShardPlan plan = make_plan(*model, {});
  const MoeLayer layer = rank_layer(*model, plan, 0, 2);
  for (const bool apart : {false, true}) {
    const DispatchedRows rows = test::dispatched_rows(plan, 0, 4, apart, random);
    for (const bool negative : {false, true}) {
      std::vector<std::int32_t> counts = rows.counts;
      // The last expert asks for more than there is, or for less than nothing.
      counts.back() = negative ? -5 : 100;
      Call call(layer, rows);
      call.io.rows_of_expert = counts.data();
      EXPECT_EQ(call.run(), CallStatus::ok);
      EXPECT_EQ(call.flags, kFlagBadRowCount);
      EXPECT_TRUE(std::ranges::none_of(call.y, [](float v) { return v != v; }));
      // What came before is what it was.
      Call good(layer, rows);
      EXPECT_EQ(good.run(), CallStatus::ok);
      const std::int64_t sum = std::accumulate(counts.begin(), counts.end() - 1, std::int64_t{0});
      const std::int64_t before =
          apart ? static_cast<std::int64_t>((counts.size() - 1) * rows.apart) : sum;
      const auto end = before * static_cast<std::ptrdiff_t>(rows.hidden);
      EXPECT_TRUE(std::equal(good.y.begin(), good.y.begin() + end, call.y.begin()));
    }
  }
}

TEST(DispatchedRows, OfBadArgumentsAreAnsweredAndWriteNothing) {
  std::mt19937_64 random(std::random_device{}());
  const RigModel model({});
  const ShardPlan plan = make_plan(*model, {});
  const MoeLayer layer = rank_layer(*model, plan, 0, 2);
  const DispatchedRows rows = test::dispatched_rows(plan, 0, 4, false, random);
  const auto expect = [&](CallStatus status, const auto& change) {
    Call call(layer, rows);
    change(call);
    EXPECT_EQ(call.run(), status);
    EXPECT_TRUE(std::ranges::all_of(call.y, [](float v) { return v != v; }));
  };
  expect(CallStatus::bad_argument, [](Call& call) { call.io.rows_of_expert = nullptr; });
  expect(CallStatus::bad_argument, [](Call& call) { call.io.x.data = nullptr; });
  expect(CallStatus::bad_argument, [](Call& call) { call.io.x.cols -= 1; });
  expect(CallStatus::bad_argument, [](Call& call) { call.io.y.rows -= 1; });
  expect(CallStatus::bad_argument, [](Call& call) { call.io.y.dtype = DType::f16; });
  expect(CallStatus::bad_argument, [](Call& call) { call.io.flags = nullptr; });
  expect(CallStatus::workspace_too_small, [](Call& call) { call.workspace.pop_back(); });
  expect(CallStatus::ok, [](Call& call) { call.io.x.rows = call.io.y.rows = 0; });
}

TEST(DispatchedRows, AreForALayerOfOneRank) {
  const RigModel model({});
  const ShardPlan plan = make_plan(*model, {.tp = 2});
  const MoeLayer both = test::layer_of(*model, plan, spec_of(model->config));
  test::expect_refusal([&] { (void)both.rows_workspace_size(4); }, ErrorCode::usage, "MOXIE-R008");
  std::uint32_t flags = 0;
  const std::int32_t counts[7] = {};
  EXPECT_EQ(both.forward_rows({.rows_of_expert = counts, .flags = &flags}, {}),
            CallStatus::bad_argument);
}

}  // namespace
}  // namespace moxie

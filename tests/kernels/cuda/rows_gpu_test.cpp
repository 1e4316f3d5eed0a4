// SPDX-License-Identifier: Apache-2.0
// Dispatched rows on a GPU have the bits of tokens with one choice, eagerly and in a graph.
#include <gtest/gtest.h>

#include <random>

#include "kernels/cuda/gpu_layer.hpp"
#include "support/dispatched_rows.hpp"

namespace moxie {
namespace {

using namespace test;

class GpuRows : public OnGpu {
 protected:
  MoeLayer rank_layer(const MoeModel& model, const ShardPlan& plan, std::uint64_t top_k) const {
    LayerSpec spec = spec_of(model.config);
    spec.top_k = top_k;
    spec.reduction = Reduction::caller;
    std::vector<PackedExperts> one;
    one.push_back(pack(model, plan, 0, 0));
    return MoeLayer(plan, spec, std::move(one));
  }

  void compare(const RigModel& model, const PlanOptions& options, std::uint64_t most);

  std::mt19937_64 random_{std::random_device{}()};
};

std::vector<float> as_choices(const MoeLayer& top_1, const DispatchedRows& rows) {
  std::vector<float> y(rows.rows * rows.hidden);
  std::uint32_t flags = 0;
  HostCall call(top_1, rows.rows);
  EXPECT_EQ(call.forward({.x = rows_ref(rows, rows.x.data()),
                          .topk_ids = rows.ids.data(),
                          .topk_weights = rows.scales.data(),
                          .y = rows_ref(rows, y.data(), DType::f32),
                          .flags = &flags}),
            CallStatus::ok);
  return y;
}

// What every replay of one captured call gives for other counts.
void GpuRows::compare(const RigModel& model, const PlanOptions& options, std::uint64_t most) {
  const ShardPlan plan = make_plan(*model, options);
  const MoeLayer layer = rank_layer(*model, plan, 3);
  const MoeLayer top_1 = rank_layer(*model, plan, 1);
  const DispatchedRows first = dispatched_rows(plan, 0, most, true, random_);
  DeviceMemory x{std::span<const float>(first.x)};
  DeviceMemory counts{std::span<const std::int32_t>(first.counts)};
  DeviceMemory scales{std::span<const float>(first.scales)};
  const DeviceMemory y(first.x.size() * sizeof(float));
  const DeviceMemory flags(sizeof(std::uint32_t), std::byte{0});
  const DeviceMemory workspace(layer.rows_workspace_size(first.rows), std::byte{0xFF}, 3);
  const RowsIo io{.x = rows_ref(first, x.data()),
                  .rows_of_expert = counts.as<std::int32_t>(),
                  .rows_apart = first.apart,
                  .row_scales = scales.as<float>(),
                  .y = rows_ref(first, y.data(), DType::f32),
                  .flags = flags.as<std::uint32_t>()};
  device::Stream stream;
  device::Graph graph(stream);
  EXPECT_EQ(layer.forward_rows(io, workspace.span(), stream.handle()), CallStatus::ok);
  graph.end();
  for (int replay = 0; replay < 5; ++replay) {
    const DispatchedRows rows = replay == 0 ? first : dispatched_rows(plan, 0, most, true, random_);
    x.put(std::span(rows.x));
    counts.put(std::span(rows.counts));
    scales.put(std::span(rows.scales));
    graph.launch();
    stream.wait();
    EXPECT_EQ(canonical_bits(y.values<float>()), canonical_bits(as_choices(top_1, rows)))
        << plan.kernel << ", replay " << replay;
  }
  EXPECT_EQ(flags.values<std::uint32_t>()[0], 0U);
  for (const DeviceMemory* memory :
       std::initializer_list<const DeviceMemory*>{&x, &counts, &scales, &y, &flags, &workspace})
    EXPECT_TRUE(memory->intact());
}

TEST_F(GpuRows, HaveTheBitsOfTokensWithOneChoiceInEveryReplay) {
  for (const std::uint64_t hidden : {160U, 192U}) {  // the portable kernel, and others
    for (const ActFormat act : {ActFormat::bf16, ActFormat::fp8}) {
      for (const std::uint64_t most : {1U, 20U, 700U}) {
        compare(RigModel({.hidden = hidden}), {.target = target_, .act_format = act}, most);
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(GpuRows, OfThousandsOfExpertsOneBehindTheOtherAreFound) {
  const RigModel model({.hidden = 64, .inter = 64, .experts = 2500});
  const ShardPlan plan = make_plan(*model, {.target = target_});
  const MoeLayer layer = rank_layer(*model, plan, 2);
  const MoeLayer top_1 = rank_layer(*model, plan, 1);
  const DispatchedRows rows = dispatched_rows(plan, 0, 3, false, random_);
  const DeviceMemory x{std::span<const float>(rows.x)};
  const DeviceMemory counts{std::span<const std::int32_t>(rows.counts)};
  const DeviceMemory scales{std::span<const float>(rows.scales)};
  const DeviceMemory y(rows.x.size() * sizeof(float));
  const DeviceMemory flags(sizeof(std::uint32_t), std::byte{0});
  const DeviceMemory workspace(layer.rows_workspace_size(rows.rows));
  RowsIo io{.x = rows_ref(rows, x.data()),
            .rows_of_expert = counts.as<std::int32_t>(),
            .row_scales = scales.as<float>(),
            .y = rows_ref(rows, y.data(), DType::f32),
            .flags = flags.as<std::uint32_t>()};
  const device::Stream stream;
  EXPECT_EQ(layer.forward_rows(io, workspace.span(), stream.handle()), CallStatus::ok);
  stream.wait();
  EXPECT_EQ(canonical_bits(y.values<float>()), canonical_bits(as_choices(top_1, rows)));
  EXPECT_EQ(flags.values<std::uint32_t>()[0], 0U);
  io.x.rows = io.y.rows = rows.rows - 7;  // the last experts have no room
  EXPECT_EQ(layer.forward_rows(io, workspace.span(), stream.handle()), CallStatus::ok);
  stream.wait();
  EXPECT_EQ(flags.values<std::uint32_t>()[0], kFlagBadRowCount);
}

}  // namespace
}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// A layer on a GPU against the same layer on the host and against its reference.
#include <gtest/gtest.h>

#include <random>

#include "support/device_memory.hpp"
#include "support/layer_rig.hpp"

namespace moxie {
namespace {

using namespace test;

struct Case {
  BlockFormat format;
  unsigned tp;
  unsigned ep;
  ActFormat act_format;
  std::optional<ActScale> act_scale;
};
constexpr Case kCases[] = {
    {BlockFormat::mxfp4, 1, 1, ActFormat::bf16, {}},
    {BlockFormat::nvfp4, 3, 1, ActFormat::bf16, {}},
    {BlockFormat::mxfp4, 3, 2, ActFormat::fp8, {}},
    {BlockFormat::mxfp4, 13, 1, ActFormat::mxfp8, {}},  // ranks without a real part
    {BlockFormat::nvfp4, 3, 2, ActFormat::nvfp4, ActScale::warmup},
    {BlockFormat::nvfp4, 3, 1, ActFormat::nvfp4, ActScale::row},
    {BlockFormat::nvfp4, 2, 1, ActFormat::nvfp4, ActScale::checkpoint}};

class GpuLayer : public OnGpu {
 protected:
  PlanOptions options(const Case& row, Target target) const {
    PlanOptions options{.tp = row.tp, .ep = row.ep, .target = target, .act_format = row.act_format};
    options.act_scale = row.act_scale;
    return options;
  }
};

LayerIo io_of(const Probe& probe, std::vector<float>& y, std::uint32_t& flags) {
  return {.x = probe.x_ref(),
          .topk_ids = probe.topk_ids.data(),
          .topk_weights = probe.topk_weights.data(),
          .y = {.data = y.data(),
                .rows = probe.tokens,
                .cols = probe.hidden,
                .row_stride = probe.hidden},
          .flags = &flags};
}

// Into rows that are farther apart than they are wide.
struct Output {
  Output(const Probe& probe, DType type)
      : dtype(type),
        stride(probe.hidden + 5),
        bytes(probe.tokens * stride * bits_of(type) / 8, std::byte{0xFF}) {}
  MutableMatrixRef ref(const Probe& probe) {
    return {.data = bytes.data(),
            .dtype = dtype,
            .rows = probe.tokens,
            .cols = probe.hidden,
            .row_stride = stride};
  }
  DType dtype;
  std::uint64_t stride;
  std::vector<std::byte> bytes;
};

TEST_F(GpuLayer, HasTheHostsBitsForEveryPlan) {
  for (const Case& row : kCases) {
    const RigModel model({.format = row.format});
    LayerSpec spec = spec_of(model->config);
    spec.top_k = 3;
    const ShardPlan host_plan = make_plan(*model, options(row, Target::cpu));
    const ShardPlan gpu_plan = make_plan(*model, options(row, target_));
    EXPECT_EQ(gpu_plan.kernel, "cuda.portable.experts");
    MoeLayer host = layer_of(*model, host_plan, spec);
    MoeLayer gpu = layer_of(*model, gpu_plan, spec);
    for (const std::uint64_t tokens : {0U, 1U, 40U}) {
      const Probe probe = probe_of(*model, tokens, spec.top_k, {}, std::random_device{}());
      HostCall host_call(host, tokens);
      HostCall gpu_call(gpu, tokens);
      if (row.act_scale == ActScale::warmup && tokens > 0) {
        std::vector<float> y(tokens * probe.hidden);
        std::uint32_t flags = 0;
        const LayerIo io = io_of(probe, y, flags);
        const auto expected = host_call.warm_up(io, 8);
        const auto got = gpu_call.warm_up(io, 8);
        ASSERT_EQ(got.size(), expected.size());
        for (std::size_t i = 0; i < got.size(); ++i) {
          EXPECT_EQ(got[i].x, expected[i].x);
          EXPECT_EQ(got[i].act, expected[i].act);
          EXPECT_EQ(got[i].slots, expected[i].slots);
        }
        host.freeze(expected);
        gpu.freeze(got);
      }
      for (const DType dtype : {DType::f32, DType::bf16}) {
        Output expected(probe, dtype);
        Output got(probe, dtype);
        std::uint32_t host_flags = 0;
        std::uint32_t gpu_flags = 0;
        ActStats host_stats;
        ActStats gpu_stats;
        LayerIo io{.x = probe.x_ref(),
                   .topk_ids = probe.topk_ids.data(),
                   .topk_weights = probe.topk_weights.data(),
                   .y = expected.ref(probe),
                   .flags = &host_flags,
                   .act_stats = &host_stats};
        EXPECT_EQ(host_call.forward(io), CallStatus::ok);
        io.y = got.ref(probe);
        io.flags = &gpu_flags;
        io.act_stats = &gpu_stats;
        EXPECT_EQ(gpu_call.forward(io), CallStatus::ok);
        EXPECT_EQ(got.bytes, expected.bytes)
            << name_of(row.format) << ", tp " << row.tp << ", ep " << row.ep << ", "
            << name_of(row.act_format) << ", tokens " << tokens << ", " << name_of(dtype);
        EXPECT_EQ(gpu_flags, host_flags);
        EXPECT_EQ(gpu_stats.act.blocks, host_stats.act.blocks);
        EXPECT_EQ(gpu_stats.x.most_scale, host_stats.x.most_scale);
        EXPECT_EQ(gpu_stats.act.least_scale, host_stats.act.least_scale);
      }
    }
  }
}

TEST_F(GpuLayer, IsWithinTheBoundOfItsReference) {
  for (const Case& row : kCases) {
    const RigModel model({.format = row.format});
    const LayerSpec spec = spec_of(model->config);
    MoeLayer gpu = layer_of(*model, make_plan(*model, options(row, target_)), spec);
    const Probe probe = probe_of(*model, 17, spec.top_k);
    if (row.act_scale == ActScale::warmup) {
      std::vector<float> y(probe.tokens * probe.hidden);
      std::uint32_t flags = 0;
      gpu.freeze(HostCall(gpu, probe.tokens).warm_up(io_of(probe, y, flags), 8));
    }
    const LayerCheck check = check_layer(gpu, make_reference(gpu, probe), probe);
    EXPECT_TRUE(check.passed) << check.max_err_over_bound;
  }
}

TEST_F(GpuLayer, ReadsBackAndReplacesItsBlobs) {
  const RigModel model({});
  const LayerSpec spec = spec_of(model->config);
  const ShardPlan plan = make_plan(*model, {.tp = 2, .target = target_});
  const std::vector<PackedExperts> packed = pack_all(*model, plan);
  MoeLayer layer(plan, spec, packed);
  for (const PackedExperts& rank : packed) {
    for (std::uint64_t e = rank.experts.first; e < rank.experts.end; ++e) {
      const auto blob = layer.blob(rank.rank, e);
      EXPECT_TRUE(std::ranges::equal(blob, rank.blob(e))) << "expert " << e;
    }
  }
  layer.reload(1, 2, packed[1].blob(5));
  EXPECT_TRUE(std::ranges::equal(layer.blob(1, 2), packed[1].blob(5)));
  EXPECT_TRUE(std::ranges::equal(layer.blob(1, 3), packed[1].blob(3)));
}

TEST_F(GpuLayer, ACapturedGraphSeesAReloadedExpert) {  // K-13
  const RigModel model({});
  const LayerSpec spec = spec_of(model->config);
  const ShardPlan plan = make_plan(*model, {.target = target_});
  std::vector<PackedExperts> packed = pack_all(*model, plan);
  MoeLayer layer(plan, spec, packed);
  const Probe probe = probe_of(*model, 9, spec.top_k, {.kind = RoutingKind::one});
  const DeviceMemory x(std::span<const std::byte>(probe.x));
  const DeviceMemory ids(std::span<const std::int32_t>(probe.topk_ids));
  const DeviceMemory weights(std::span<const float>(probe.topk_weights));
  const DeviceMemory y(probe.tokens * probe.hidden * sizeof(float));
  const DeviceMemory flags(4, std::byte{0});
  const DeviceMemory workspace(layer.workspace_size(probe.tokens), std::byte{0xFF}, 3);
  LayerIo io{.x = probe.x_ref(),
             .topk_ids = ids.as<std::int32_t>(),
             .topk_weights = weights.as<float>(),
             .y = {.data = y.data(),
                   .rows = probe.tokens,
                   .cols = probe.hidden,
                   .row_stride = probe.hidden},
             .flags = flags.as<std::uint32_t>()};
  io.x.data = x.data();
  device::Stream stream;
  device::Graph graph(stream);
  EXPECT_EQ(layer.forward(io, workspace.span(), stream.handle()), CallStatus::ok);
  graph.end();
  const auto replayed = [&] {
    graph.launch();
    stream.wait();
    EXPECT_TRUE(y.intact() && workspace.intact());
    return canonical_bits(y.values<float>());
  };
  const auto expected = [&] {
    MoeLayer host(make_plan(*model, {}), spec, packed);
    return canonical_bits(run_layer(host, probe));
  };
  const auto before = replayed();
  EXPECT_EQ(before, expected());
  const auto used = static_cast<std::uint64_t>(probe.topk_ids[0]);
  const std::uint64_t other = used == 0 ? 1 : 0;
  const auto from = packed[0].blob(other);
  const std::vector<std::byte> blob(from.begin(), from.end());
  layer.reload(0, used, blob);
  std::ranges::copy(
      blob, packed[0].blobs.begin() + static_cast<std::ptrdiff_t>(used * packed[0].layout.stride));
  const auto after = replayed();
  EXPECT_EQ(after, expected());
  EXPECT_NE(after, before);
}

TEST_F(GpuLayer, RefusesASmallWorkspaceAndTouchesNothing) {
  const RigModel model({});
  const LayerSpec spec = spec_of(model->config);
  const MoeLayer layer = layer_of(*model, make_plan(*model, {.target = target_}), spec);
  const Probe probe = probe_of(*model, 9, spec.top_k);
  HostCall small(layer, 3);
  std::vector<float> y(probe.tokens * probe.hidden, -1.0F);
  std::uint32_t flags = 0;
  EXPECT_EQ(small.forward({.x = probe.x_ref(),
                           .topk_ids = probe.topk_ids.data(),
                           .topk_weights = probe.topk_weights.data(),
                           .y = {.data = y.data(),
                                 .rows = probe.tokens,
                                 .cols = probe.hidden,
                                 .row_stride = probe.hidden},
                           .flags = &flags}),
            CallStatus::workspace_too_small);
  EXPECT_EQ(y, std::vector<float>(y.size(), -1.0F));
}

}  // namespace
}  // namespace moxie

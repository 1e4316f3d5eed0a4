// SPDX-License-Identifier: Apache-2.0
// A layer on a GPU against the same layer on the host and against its reference.
#include <gtest/gtest.h>

#include <random>

#include "kernels/cuda/gpu_layer.hpp"
#include "support/forced_kernels.hpp"

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

// hidden 160 is no multiple of 64: only the portable kernel, which has the host's bits, takes it.
TEST_F(GpuLayer, HasTheHostsBitsWhereThePortableKernelIsPlanned) {
  for (const Case& row : kCases) {
    const RigModel model({.format = row.format});
    LayerSpec spec = spec_of(model->config);
    spec.top_k = 3;
    const ShardPlan host_plan = [&] {
      const PortableKernel forced;
      return make_plan(*model, options(row, Target::cpu));
    }();
    const ShardPlan gpu_plan = make_plan(*model, options(row, target_));
    ASSERT_EQ(gpu_plan.kernel, "cuda.portable.experts");
    MoeLayer host = layer_of(*model, host_plan, spec);
    MoeLayer gpu = layer_of(*model, gpu_plan, spec);
    for (const std::uint64_t tokens : {0U, 1U, 40U}) {
      const Probe probe = probe_of(*model, tokens, spec.top_k, {}, std::random_device{}());
      HostCall host_call(host, tokens);
      HostCall gpu_call(gpu, tokens);
      if (row.act_scale == ActScale::warmup && tokens > 0) {
        std::vector<float> y(tokens * probe.hidden);
        std::uint32_t flags = 0;
        const LayerIo io = io_of(probe, y.data(), DType::f32, &flags);
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

TEST_F(GpuLayer, IsWithinTheBoundOfItsReferenceWhateverKernelIsPlanned) {
  for (const Case& row : kCases) {
    for (const std::uint64_t hidden : {160U, 192U, 704U}) {
      const RigModel model({.format = row.format, .hidden = hidden});
      const LayerSpec spec = spec_of(model->config);
      const ShardPlan plan = make_plan(*model, options(row, target_));
      if (target_ == Target::sm90 && hidden % 64 == 0 && row.act_format != ActFormat::nvfp4) {
        const bool fp8 = row.act_format == ActFormat::fp8 && row.format == BlockFormat::mxfp4;
        EXPECT_EQ(plan.kernel, fp8 ? "cuda.sm90.experts.fp8" : "cuda.sm90.experts.fp16");
      }
      MoeLayer gpu = layer_of(*model, plan, spec);
      for (const std::uint64_t tokens : {1U, 17U, 130U}) {
        const Probe probe = probe_of(*model, tokens, spec.top_k, {}, std::random_device{}());
        if (row.act_scale == ActScale::warmup) {
          std::vector<float> y(probe.tokens * probe.hidden);
          std::uint32_t flags = 0;
          gpu.freeze(
              HostCall(gpu, probe.tokens).warm_up(io_of(probe, y.data(), DType::f32, &flags), 8));
        }
        const LayerCheck check = check_layer(gpu, make_reference(gpu, probe), probe);
        EXPECT_TRUE(check.passed) << plan.kernel << ", " << name_of(row.format) << ", "
                                  << name_of(row.act_format) << ", tp " << row.tp << ", hidden "
                                  << hidden << ", tokens " << tokens << ", error / bound "
                                  << check.max_err_over_bound;
      }
    }
  }
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

// SPDX-License-Identifier: Apache-2.0
// cuda.portable.route against cpu.portable.route, bit for bit.
#include <gtest/gtest.h>

#include <array>
#include <random>
#include <span>
#include <string>

#include "kernels/cpu/route_call.hpp"
#include "kernels/cuda/portable/kernels.hpp"
#include "support/device_memory.hpp"

namespace moxie {
namespace {

using namespace test;

// Rows of `cols` elements, `cols` + 2 apart, as bytes of this type.
std::vector<std::byte> rows_of(const std::vector<float>& values, std::uint64_t cols, DType dtype) {
  const std::size_t elem = bits_of(dtype) / 8;
  std::vector<std::byte> bytes(values.size() / cols * (cols + 2) * elem, std::byte{0xFF});
  for (std::uint64_t i = 0; i < values.size(); ++i) {
    const std::uint16_t narrow = encode_bf16(values[i]);
    std::memcpy(bytes.data() + (i / cols * (cols + 2) + i % cols) * elem,
                elem == 2 ? static_cast<const void*>(&narrow) : &values[i], elem);
  }
  return bytes;
}

Routed run_on_device(const RouteCall& call) {
  const RouteKernel& kernel = *cuda::portable::route_kernel();
  const std::uint64_t hidden = call.shape.hidden;
  const std::uint64_t slots = call.tokens() * call.shape.top_k;
  const auto weight_bytes = rows_of(call.weight, hidden, call.weight_type);
  const auto x_bytes = rows_of(call.x, hidden, call.x_type);
  const DeviceMemory weight(std::span<const std::byte>{weight_bytes});
  const DeviceMemory x(std::span<const std::byte>{x_bytes});
  const DeviceMemory bias(std::span<const float>{call.bias});
  const DeviceMemory expert_scale(std::span<const float>{call.expert_scale});
  const DeviceMemory table(std::span<const std::int32_t>{call.table});
  const DeviceMemory token_ids(std::span<const std::int64_t>{call.token_ids});
  const DeviceMemory ids(slots * 4);
  const DeviceMemory weights(slots * 4);
  const std::array<std::uint32_t, 1> caller_bit = {0x80000000U};
  const DeviceMemory flags(std::span<const std::uint32_t>{caller_bit});
  const DeviceMemory workspace(kernel.workspace_bytes(call.shape, call.tokens()), std::byte{0xFF},
                               1);
  device::Stream stream;
  int launch_error = 0;
  kernel.run({.shape = call.shape,
              .weight = {.data = weight.data(),
                         .dtype = call.weight_type,
                         .rows = call.shape.experts,
                         .cols = hidden,
                         .row_stride = hidden + 2},
              .bias = call.bias.empty() ? nullptr : bias.as<float>(),
              .expert_scale = call.expert_scale.empty() ? nullptr : expert_scale.as<float>(),
              .token_table = call.table.empty() ? nullptr : table.as<std::int32_t>(),
              .tokens = call.tokens(),
              .x = {.data = x.data(),
                    .dtype = call.x_type,
                    .rows = call.tokens(),
                    .cols = hidden,
                    .row_stride = hidden + 2},
              .token_ids = call.token_ids.empty() ? nullptr : token_ids.as<std::int64_t>(),
              .topk_ids = ids.as<std::int32_t>(),
              .topk_weights = weights.as<float>(),
              .workspace = workspace.data(),
              .flags = flags.as<std::uint32_t>(),
              .stream = stream.handle(),
              .launch_error = &launch_error});
  stream.wait();
  EXPECT_EQ(launch_error, 0) << device::error_text(launch_error);
  for (const DeviceMemory* memory : {&weight, &x, &ids, &weights, &flags, &workspace})
    EXPECT_TRUE(memory->intact()) << "the kernel wrote outside a buffer";
  const std::uint32_t word = flags.values<std::uint32_t>()[0];
  EXPECT_NE(word & 0x80000000U, 0U) << "a bit of the caller was cleared";
  return {.ids = ids.values<std::int32_t>(),
          .weights = weights.values<float>(),
          .flags = word & 0x7FFFFFFFU};
}

class PortableGpuRoute : public OnGpu {
 protected:
  void SetUp() override {
    OnGpu::SetUp();
    seed_ = std::random_device{}();
    random_.seed(seed_);
  }
  RouteCall random_call(RouterKind kind, std::uint64_t tokens, std::uint64_t experts,
                        std::uint64_t top_k, std::uint64_t hidden) {
    RouteCall call{.shape = {.kind = kind, .hidden = hidden, .experts = experts, .top_k = top_k},
                   .weight_type = random_() % 2 == 0 ? DType::bf16 : DType::f32,
                   .x_type = random_() % 2 == 0 ? DType::bf16 : DType::f32};
    call.shape.norm_topk = random_() % 2 == 0;
    call.shape.routed_scaling = 1.5F;
    call.shape.norm_eps = 1e-6F;
    std::normal_distribution<float> normal;
    for (std::uint64_t i = 0; i < experts * hidden; ++i) call.weight.push_back(normal(random_) / 8);
    for (std::uint64_t i = 0; i < tokens * hidden; ++i) call.x.push_back(normal(random_));
    if (kind != RouterKind::softmax_topk && kind != RouterKind::scaled_softmax) {
      for (std::uint64_t i = 0; i < experts; ++i) call.bias.push_back(normal(random_) / 4);
    }
    if (kind == RouterKind::scaled_softmax) {
      for (std::uint64_t i = 0; i < experts; ++i) call.expert_scale.push_back(normal(random_));
    }
    return call;
  }
  std::uint64_t seed_ = 0;
  std::mt19937_64 random_;
};

constexpr RouterKind kKinds[] = {RouterKind::sqrt_softplus, RouterKind::sigmoid,
                                 RouterKind::softmax_topk, RouterKind::topk_softmax,
                                 RouterKind::scaled_softmax};

TEST_F(PortableGpuRoute, HasTheHostsBitsForEveryKind) {
  for (const RouterKind kind : kKinds) {
    for (const std::uint64_t tokens : {1U, 2U, 7U, 65U}) {
      for (const std::uint64_t hidden : {32U, 100U, 513U}) {
        SCOPED_TRACE(std::string(name_of(kind)) + ", seed " + std::to_string(seed_));
        const RouteCall call = random_call(kind, tokens, 37, 6, hidden);
        expect_same(run_on_device(call), run(call));
      }
    }
  }
}

TEST_F(PortableGpuRoute, HasTheHostsBitsWithGroups) {
  for (int i = 0; i < 10; ++i) {
    RouteCall call = random_call(RouterKind::sigmoid, 33, 64, 8, 96);
    call.shape.expert_groups = 8;
    call.shape.kept_groups = 4;
    expect_same(run_on_device(call), run(call));
  }
}

TEST_F(PortableGpuRoute, HasTheHostsBitsWithATokenTableAndMaskedTokens) {
  RouteCall call = random_call(RouterKind::sqrt_softplus, 40, 37, 6, 96);
  call.bias.clear();
  call.shape.vocab = 11;
  for (std::uint64_t i = 0; i < call.shape.vocab * call.shape.top_k; ++i)
    call.table.push_back(static_cast<std::int32_t>(random_() % 37));
  for (std::uint64_t i = 0; i < call.tokens(); ++i)
    call.token_ids.push_back(static_cast<std::int64_t>(random_() % 14) - 2);
  const Routed got = run_on_device(call);
  expect_same(got, run(call));
  EXPECT_EQ(got.flags, run(call).flags);
}

TEST_F(PortableGpuRoute, GivesATokenWithoutEnoughNumbersNoExpert) {
  RouteCall call = random_call(RouterKind::sigmoid, 9, 12, 4, 64);
  call.x[3 * 64 + 5] = kNan;
  for (std::uint64_t expert = 0; expert < 3; ++expert) call.weight[expert * 64 + 7] = kInfinity;
  const Routed got = run_on_device(call);
  expect_same(got, run(call));
  EXPECT_EQ(got.flags, run(call).flags);
  EXPECT_EQ(got.flags, kFlagBadLogits);
}

}  // namespace
}  // namespace moxie

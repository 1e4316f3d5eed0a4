// SPDX-License-Identifier: Apache-2.0
// What a stack of layers costs the host: graphs of many batch sizes, and calls.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <deque>
#include <vector>

#include "kernels/cuda/gpu_layer.hpp"

namespace moxie {
namespace {

using namespace test;

constexpr int kLayers = 43;
constexpr std::uint64_t kMostTokens = 512;

class GpuStack : public OnGpu {
 protected:
  static double seconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
};

// 1, 2, 4 and all multiples of 8 up to 256, of 32 up to 512 and a few between: 51 in all.
std::vector<std::uint64_t> batch_sizes() {
  std::vector<std::uint64_t> sizes = {1, 2, 4};
  for (std::uint64_t size = 8; size <= 256; size += 8) sizes.push_back(size);
  for (std::uint64_t size = 272; size <= kMostTokens; size += 16) sizes.push_back(size);
  return sizes;
}

TEST_F(GpuStack, IsCapturedForAllBatchSizesInSecondsAndCalledInMicroseconds) {
  const RigModel model({.hidden = 4096, .inter = 2048, .experts = 8});
  const ShardPlan plan = make_plan(*model, {.target = target_});
  LayerSpec spec = spec_of(model->config);
  spec.top_k = 6;
  const std::vector<std::uint64_t> sizes = batch_sizes();
  ASSERT_EQ(sizes.size(), 51U);
  const auto start = std::chrono::steady_clock::now();
  // A call's cost does not depend on which weights it reads: all layers of the stack share theirs.
  const MoeLayer layer = layer_of(*model, plan, spec);
  const double bound_s = seconds_since(start);
  const Probe probe = probe_of(*model, kMostTokens, spec.top_k);
  const DeviceMemory x{std::span<const std::byte>(probe.x)};
  const DeviceMemory ids{std::span<const std::int32_t>(probe.topk_ids)};
  const DeviceMemory weights{std::span<const float>(probe.topk_weights)};
  const DeviceMemory y(kMostTokens * plan.hidden * 2);
  const DeviceMemory flags(sizeof(std::uint32_t), std::byte{0});
  const DeviceMemory workspace(layer.workspace_size(kMostTokens));
  const auto call = [&](std::uint64_t tokens, void* stream) {
    LayerIo io = io_of(probe, y.data(), DType::bf16, flags.as<std::uint32_t>());
    io.x.data = x.data();
    io.x.rows = io.y.rows = tokens;
    io.topk_ids = ids.as<std::int32_t>();
    io.topk_weights = weights.as<float>();
    return layer.forward(io, workspace.span(), stream);
  };
  const auto begin = std::chrono::steady_clock::now();
  device::Stream stream;
  std::deque<device::Graph> graphs;
  for (const std::uint64_t tokens : sizes) {
    graphs.emplace_back(stream);
    for (int i = 0; i < kLayers; ++i) ASSERT_EQ(call(tokens, stream.handle()), CallStatus::ok);
    graphs.back().end();
  }
  const double captured_s = seconds_since(begin);
  for (device::Graph& graph : graphs) graph.launch();
  stream.wait();
  constexpr int kCalls = 100;  // fewer than a stream has room for
  double call_us = 1e9;
  for (int round = 0; round < 10; ++round) {
    const auto first = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) (void)call(1, stream.handle());
    call_us = std::min(call_us, seconds_since(first) * 1e6 / kCalls);
    stream.wait();
  }
  std::printf("bound in %.2f s, %zu graphs of %d layers captured in %.2f s, %.2f us a call\n",
              bound_s, graphs.size(), kLayers, captured_s, call_us);
  EXPECT_LT(bound_s + captured_s, 5);
  EXPECT_LT(call_us, 20) << "the aim is 5";
  // At most 160 MB for 8192 tokens, with a piece at a time.
  EXPECT_LE(layer.workspace_size(8192), 160'000'000U);
}

}  // namespace
}  // namespace moxie

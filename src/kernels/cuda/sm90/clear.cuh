// SPDX-License-Identifier: Apache-2.0
// What runs in front of a small call.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/sm90/call.hpp"
#include "kernels/cuda/sm90/ptx.cuh"
#include "kernels/cuda/sm90/values.cuh"

namespace moxie::cuda::sm90 {

inline constexpr std::uint32_t kClearThreads = 128;  // they fit beside a block of experts
inline constexpr std::uint32_t kClearBytes = 4 * 16 * kClearThreads;  // of a block
inline std::uint64_t unwritten_bytes(const Call& call) {
  return static_cast<std::uint64_t>(reinterpret_cast<const std::byte*>(call.work.down) -
                                    call.work.act) +
         std::uint64_t{call.slots} * call.args.shape.hidden * sizeof(float);
}
// What the experts kernel reads first is on its way to the second-level cache.
__device__ inline void prefetch(const void* from, std::uint64_t bytes, std::uint64_t thread,
                                std::uint64_t threads) {
  constexpr std::uint64_t kLine = 128;
  for (std::uint64_t at = thread * kLine; at < bytes; at += threads * kLine)
    prefetch_line(static_cast<const std::byte*>(from) + at);
}

// No chunk is taken, no value of the products is written.
__global__ void __launch_bounds__(kClearThreads)
    clear_call(const __grid_constant__ Call call, std::uint64_t bytes) {
  launch_dependents();
  wait_for_previous();
  const std::uint64_t thread = std::uint64_t{blockIdx.x} * kClearThreads + threadIdx.x;
  if (thread == 0) call.work.progress->ticket = 0;
  const std::uint64_t threads = std::uint64_t{gridDim.x} * kClearThreads;
  const ExpertsArgs& args = call.args;
  prefetch(args.topk_ids, call.slots * sizeof(std::int32_t), thread, threads);
  prefetch(args.weights.local_of_expert, args.shape.experts * sizeof(std::int32_t), thread,
           threads);
  prefetch(
      args.x.data,
      ((args.tokens - 1) * args.x.row_stride + args.x.cols) * (args.x.dtype == DType::f32 ? 4 : 2),
      thread, threads);
  const uint4 unwritten = make_uint4(kUnwritten, kUnwritten, kUnwritten, kUnwritten);
  for (std::uint64_t at = thread * 16; at < bytes; at += threads * 16)
    *reinterpret_cast<uint4*>(call.work.act + at) = unwritten;
}

}  // namespace moxie::cuda::sm90

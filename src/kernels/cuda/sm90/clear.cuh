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
// No chunk is taken, no value of the products is written.
__global__ void __launch_bounds__(kClearThreads) clear_call(const __grid_constant__ Call call,
                                                            std::uint64_t bytes) {
  launch_dependents();
  wait_for_previous();
  const std::uint64_t thread = std::uint64_t{blockIdx.x} * kClearThreads + threadIdx.x;
  if (thread == 0) call.work.progress->ticket = 0;
  const std::uint64_t apart = std::uint64_t{gridDim.x} * kClearThreads * 16;
  const uint4 unwritten = make_uint4(kUnwritten, kUnwritten, kUnwritten, kUnwritten);
  for (std::uint64_t at = thread * 16; at < bytes; at += apart)
    *reinterpret_cast<uint4*>(call.work.act + at) = unwritten;
}

}  // namespace moxie::cuda::sm90

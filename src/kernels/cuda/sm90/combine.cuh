// SPDX-License-Identifier: Apache-2.0
// The last phase: weighted sums over a token's slots, in their order; masked slots are skipped.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/sm90/call.hpp"
#include "kernels/cuda/sm90/schedule.cuh"

namespace moxie::cuda::sm90 {

__device__ __forceinline__ void store_y(const MutableMatrixRef& y, std::uint64_t at,
                                        const float4& sum) {
  const float values[4] = {sum.x, sum.y, sum.z, sum.w};
  if (y.dtype == DType::f32) {
    auto* to = static_cast<float*>(y.data) + at;
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i] = values[i];
    return;
  }
  auto* to = static_cast<__nv_bfloat16*>(y.data) + at;
  if (reinterpret_cast<std::uint64_t>(to) % 8 == 0) {
    const __nv_bfloat162 pairs[2] = {__floats2bfloat162_rn(sum.x, sum.y),
                                     __floats2bfloat162_rn(sum.z, sum.w)};
    *reinterpret_cast<uint2*>(to) = reinterpret_cast<const uint2&>(pairs);
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) to[i] = __float2bfloat16_rn(values[i]);
}

// Units are kCombineColumns columns of a token; by kThreads threads. The loads of kAtOnce choices
// of kUnits units are on their way together.
template <std::uint32_t kUnits>
__device__ __forceinline__ void combine_units(const Call& call, std::uint32_t first,
                                              std::uint32_t thread) {
  constexpr std::uint32_t kAtOnce = 8 / kUnits;
  const auto hidden = static_cast<std::uint32_t>(call.args.shape.hidden);
  const auto top_k = static_cast<std::uint32_t>(call.args.shape.top_k);
  const std::uint32_t parts = (hidden + kCombineColumns - 1) / kCombineColumns;
  float4 sum[kUnits] = {};
  for (std::uint32_t base = 0; base < top_k; base += kAtOnce) {
    float weight[kUnits][kAtOnce];
    float4 value[kUnits][kAtOnce];
#pragma unroll
    for (std::uint32_t u = 0; u < kUnits; ++u) {
      const std::uint32_t token = (first + u) / parts;
      const std::uint32_t column = (first + u) % parts * kCombineColumns + thread * 4;
#pragma unroll
      for (std::uint32_t i = 0; i < kAtOnce; ++i) {
        const std::uint32_t slot = token * top_k + base + i;
        const bool counts = base + i < top_k && column < hidden &&
                            call.work.expert_of_slot[slot] >= 0;
        // Minus zero adds nothing to any sum, not even to another minus zero.
        weight[u][i] = 1.0F;
        value[u][i] = make_float4(-0.0F, -0.0F, -0.0F, -0.0F);
        if (!counts) continue;
        weight[u][i] = call.args.topk_weights[slot];
        value[u][i] = __ldcg(reinterpret_cast<const float4*>(
            call.work.down + std::uint64_t{slot} * hidden + column));
      }
    }
#pragma unroll
    for (std::uint32_t u = 0; u < kUnits; ++u) {
#pragma unroll
      for (std::uint32_t i = 0; i < kAtOnce; ++i) {
        sum[u].x += weight[u][i] * value[u][i].x;
        sum[u].y += weight[u][i] * value[u][i].y;
        sum[u].z += weight[u][i] * value[u][i].z;
        sum[u].w += weight[u][i] * value[u][i].w;
      }
    }
  }
#pragma unroll
  for (std::uint32_t u = 0; u < kUnits; ++u) {
    const std::uint32_t token = (first + u) / parts;
    const std::uint32_t column = (first + u) % parts * kCombineColumns + thread * 4;
    if (column < hidden)
      store_y(call.args.final_y, token * call.args.final_y.row_stride + column, sum[u]);
  }
}

__device__ inline void combine(const Call& call, std::uint32_t first, std::uint32_t end,
                               std::uint32_t thread) {
  for (; first + 2 <= end; first += 2) combine_units<2>(call, first, thread);
  if (first < end) combine_units<1>(call, first, thread);
}

}  // namespace moxie::cuda::sm90

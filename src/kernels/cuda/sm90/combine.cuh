// SPDX-License-Identifier: Apache-2.0
// The last phase: weighted sums over a token's slots, in their order; masked slots are skipped.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/sm90/call.hpp"
#include "kernels/cuda/sm90/schedule.cuh"
#include "kernels/cuda/sm90/values.cuh"

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

// All rows of down lie there, for all threads that combine.
__device__ __forceinline__ void wait_for_down(const Call& call, std::uint32_t thread) {
  const Progress& progress = *call.work.progress;
  if (thread == 0) wait_for_count(&progress.down_units, progress.items * call.experts.down.units);
  synchronise<1, kThreads>();
}

// Units are kCombineColumns columns of a token; by kThreads threads. The loads of kAtOnce choices
// of kUnits units are on their way together; which choices count, and for how much, is known
// before the rows are there. In a small call every value is waited for by whom it is added up.
template <bool kSmall, std::uint32_t kUnits>
__device__ __forceinline__ void combine_units(const Call& call, const std::int32_t* expert_of_slot,
                                              std::uint32_t first, std::uint32_t thread,
                                              bool waits) {
  constexpr std::uint32_t kAtOnce = 8 / kUnits;
  const auto hidden = static_cast<std::uint32_t>(call.args.shape.hidden);
  const auto top_k = static_cast<std::uint32_t>(call.args.shape.top_k);
  const std::uint32_t parts = (hidden + kCombineColumns - 1) / kCombineColumns;
  float4 sum[kUnits] = {};
  for (std::uint32_t base = 0; base < top_k; base += kAtOnce) {
    float weight[kUnits][kAtOnce];
    std::uint32_t counts = 0;  // a bit for each
    float4 value[kUnits][kAtOnce];
#pragma unroll
    for (std::uint32_t u = 0; u < kUnits; ++u) {
      const std::uint32_t token = (first + u) / parts;
      const std::uint32_t column = (first + u) % parts * kCombineColumns + thread * 4;
#pragma unroll
      for (std::uint32_t i = 0; i < kAtOnce; ++i) {
        const std::uint32_t slot = token * top_k + base + i;
        const bool there = base + i < top_k && column < hidden;
        weight[u][i] = there ? call.args.topk_weights[slot] : 1.0F;
        if (there && expert_of_slot[slot] >= 0) counts |= 1U << (u * kAtOnce + i);
      }
    }
    if (!kSmall && waits && base == 0) wait_for_down(call, thread);
#pragma unroll
    for (std::uint32_t u = 0; u < kUnits; ++u) {
      const std::uint32_t token = (first + u) / parts;
      const std::uint32_t column = (first + u) % parts * kCombineColumns + thread * 4;
#pragma unroll
      for (std::uint32_t i = 0; i < kAtOnce; ++i) {
        const std::uint32_t slot = token * top_k + base + i;
        value[u][i] = make_float4(-0.0F, -0.0F, -0.0F, -0.0F);
        if ((counts >> (u * kAtOnce + i) & 1U) == 0) continue;
        const float* from = call.work.down + std::uint64_t{slot} * hidden + column;
        value[u][i] = kSmall ? look_floats(from) : __ldcg(reinterpret_cast<const float4*>(from));
      }
    }
    // All that are still missing are looked for at once.
    for (bool again = kSmall; again;) {
#pragma unroll
      for (std::uint32_t u = 0; u < kUnits; ++u) {
        const std::uint32_t token = (first + u) / parts;
        const std::uint32_t column = (first + u) % parts * kCombineColumns + thread * 4;
#pragma unroll
        for (std::uint32_t i = 0; i < kAtOnce; ++i) {
          const std::uint32_t slot = token * top_k + base + i;
          if (!has_unwritten(value[u][i])) continue;
          value[u][i] = look_floats(call.work.down + std::uint64_t{slot} * hidden + column);
        }
      }
      again = false;
#pragma unroll
      for (std::uint32_t i = 0; i < kUnits * kAtOnce; ++i)
        again |= has_unwritten(value[i / kAtOnce][i % kAtOnce]);
      again = __any_sync(0xFFFFFFFFU, again);
    }
#pragma unroll
    for (std::uint32_t u = 0; u < kUnits; ++u) {
#pragma unroll
      for (std::uint32_t i = 0; i < kAtOnce; ++i) {
        // Minus zero adds nothing to any sum, not even to another minus zero.
        const float factor = (counts >> (u * kAtOnce + i) & 1U) != 0 ? weight[u][i] : 1.0F;
        sum[u].x += factor * value[u][i].x;
        sum[u].y += factor * value[u][i].y;
        sum[u].z += factor * value[u][i].z;
        sum[u].w += factor * value[u][i].w;
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

template <bool kSmall>
__device__ inline void combine(const Call& call, const std::int32_t* expert_of_slot,
                               std::uint32_t first, std::uint32_t end, std::uint32_t thread) {
  bool waits = true;
  for (; first + 2 <= end; first += 2, waits = false)
    combine_units<kSmall, 2>(call, expert_of_slot, first, thread, waits);
  if (first < end) combine_units<kSmall, 1>(call, expert_of_slot, first, thread, waits);
}

}  // namespace moxie::cuda::sm90

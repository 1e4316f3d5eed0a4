// SPDX-License-Identifier: Apache-2.0
// Before the products: ids to items, and the largest magnitude of every x.
//
// Block 0 sorts the slots by expert; in which order those of one expert stand does not matter,
// since no row's result depends on its neighbours. The other blocks look at x.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/sm90/call.hpp"
#include "kernels/cuda/sm90/rows.cuh"

namespace moxie::cuda::sm90 {

inline constexpr unsigned kSlotThreads = 1024;
inline constexpr unsigned kTokensAtOnce = 2;  // of a block that looks at x

// Inclusive sums over the block of two counts.
__device__ inline uint2 running_sums(uint2 value) {
  __shared__ uint2 of_warp[32];
  const unsigned lane = threadIdx.x % 32;
  const unsigned warp = threadIdx.x / 32;
  for (unsigned step = 1; step < 32; step *= 2) {
    const unsigned x = __shfl_up_sync(0xFFFFFFFFU, value.x, step);
    const unsigned y = __shfl_up_sync(0xFFFFFFFFU, value.y, step);
    if (lane >= step) value.x += x, value.y += y;
  }
  __syncthreads();
  if (lane == 31) of_warp[warp] = value;
  __syncthreads();
  for (unsigned w = 0; w < warp; ++w) value.x += of_warp[w].x, value.y += of_warp[w].y;
  return value;
}

// counts: [local experts] in shared memory; holds the experts' first rows afterwards.
__device__ inline void make_items(const Call& call, std::uint32_t* counts) {
  __shared__ uint2 total;  // rows and items so far
  const auto experts = static_cast<std::uint32_t>(call.args.shape.local_experts);
  // Wide items read weights once for 16 rows but leave less memory to what is in flight: they are
  // worth it where 8 rows would read noticeably more.
  __shared__ std::uint32_t narrow_items;
  __shared__ std::uint32_t wide_items;
  if (threadIdx.x == 0) narrow_items = wide_items = 0, total = make_uint2(0, 0);
  __syncthreads();
  for (std::uint32_t expert = threadIdx.x; expert < experts; expert += kSlotThreads) {
    const std::uint32_t count = counts[expert];
    if (count == 0) continue;
    atomicAdd(&narrow_items, (count + kRowsOfTile - 1) / kRowsOfTile);
    atomicAdd(&wide_items, (count + 2 * kRowsOfTile - 1) / (2 * kRowsOfTile));
  }
  __syncthreads();
  const bool wide = call.wide_fits && narrow_items > wide_items + wide_items / 8;
  const std::uint32_t item_rows = wide ? 2 * kRowsOfTile : kRowsOfTile;
  for (std::uint32_t first = 0; first < experts; first += kSlotThreads) {
    const std::uint32_t expert = first + threadIdx.x;
    const std::uint32_t count = expert < experts ? counts[expert] : 0;
    const std::uint32_t items = (count + item_rows - 1) / item_rows;
    const uint2 before = total;
    uint2 sums = running_sums(make_uint2(count, items));
    sums.x += before.x, sums.y += before.y;
    const std::uint32_t row = sums.x - count;
    for (std::uint32_t i = 0; i < items; ++i) {
      const std::uint32_t left = count - i * item_rows;
      const std::uint32_t item = sums.y - items + i;
      call.work.items[item] = {expert, row + i * item_rows, left < item_rows ? left : item_rows, 0};
      call.work.gate_up_units[item] = 0;
    }
    if (expert < experts) counts[expert] = row;
    __syncthreads();
    if (threadIdx.x == kSlotThreads - 1) total = sums;
    __syncthreads();
  }
  if (threadIdx.x == 0) *call.work.progress = {total.y, wide ? 1U : 0U, 0, 0};
}

__device__ inline void sort_slots(const Call& call) {
  extern __shared__ std::uint32_t counts[];
  const auto experts = static_cast<std::uint32_t>(call.args.shape.local_experts);
  for (std::uint32_t expert = threadIdx.x; expert < experts; expert += kSlotThreads)
    counts[expert] = 0;
  __syncthreads();
  for (std::uint32_t slot = threadIdx.x; slot < call.slots; slot += kSlotThreads) {
    const std::int32_t id = call.args.topk_ids[slot];
    const bool known = id >= 0 && static_cast<std::uint64_t>(id) < call.args.shape.experts;
    if (!known && id != -1) atomicOr(call.args.flags, kFlagBadExpertId);
    const std::int32_t expert = known ? call.args.weights.local_of_expert[id] : -1;
    call.work.expert_of_slot[slot] = expert;
    call.work.act_amax[slot] = 0;
    if (expert >= 0) call.work.place_of_slot[slot] = atomicAdd(&counts[expert], 1U);
  }
  __syncthreads();
  make_items(call, counts);
  __syncthreads();
  for (std::uint32_t slot = threadIdx.x; slot < call.slots; slot += kSlotThreads) {
    const std::int32_t expert = call.work.expert_of_slot[slot];
    if (expert >= 0) call.work.slot_of_row[counts[expert] + call.work.place_of_slot[slot]] = slot;
  }
}

// Half of a block's threads a token: all its loads are on their way at once.
__device__ inline void measure_x(const Call& call) {
  __shared__ std::uint32_t largest[kTokensAtOnce];
  constexpr unsigned kOfToken = kSlotThreads / kTokensAtOnce;
  const unsigned at = threadIdx.x / kOfToken;
  const RowsOf x = rows_of_x(call);
  for (std::uint32_t first = (blockIdx.x - 1) * kTokensAtOnce; first < call.tokens;
       first += (gridDim.x - 1) * kTokensAtOnce) {
    const std::uint32_t token = first + at;
    if (threadIdx.x < kTokensAtOnce) largest[threadIdx.x] = 0;
    __syncthreads();
    std::uint32_t amax = 0;
    for (std::uint32_t column = threadIdx.x % kOfToken * kChunk;
         token < call.tokens && column < x.columns; column += kOfToken * kChunk) {
      float values[kChunk];
      x.load(token, column, values);
#pragma unroll
      for (unsigned i = 0; i < kChunk; ++i) amax = max(amax, magnitude_bits(values[i]));
    }
    amax = __reduce_max_sync(0xFFFFFFFFU, amax);
    if (threadIdx.x % 32 == 0) atomicMax(&largest[at], amax);
    __syncthreads();
    if (threadIdx.x % kOfToken == 0 && token < call.tokens) call.work.x_amax[token] = largest[at];
  }
}

// Grid: 1 + tokens / kTokensAtOnce, or fewer.
__global__ void __launch_bounds__(kSlotThreads) prepare_slots(const __grid_constant__ Call call) {
  launch_dependents();
  wait_for_previous();
  if (blockIdx.x == 0) {
    sort_slots(call);
  } else {
    measure_x(call);
  }
}

}  // namespace moxie::cuda::sm90

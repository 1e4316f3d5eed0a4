// SPDX-License-Identifier: Apache-2.0
// Before the products: ids to items, by one block. In which order the slots of one expert stand
// does not matter, since no row's result depends on its neighbours.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/sm90/call.hpp"
#include "kernels/cuda/sm90/ptx.cuh"
#include "kernels/cuda/sm90/sheet_rows.cuh"

namespace moxie::cuda::sm90 {

inline constexpr std::uint32_t kSlotThreads = 1024;

// Inclusive sums over the block.
__device__ inline std::uint32_t running_sum(std::uint32_t value) {
  __shared__ std::uint32_t of_warp[32];
  const unsigned lane = threadIdx.x % 32;
  const unsigned warp = threadIdx.x / 32;
  for (unsigned step = 1; step < 32; step *= 2) {
    const std::uint32_t before = __shfl_up_sync(0xFFFFFFFFU, value, step);
    if (lane >= step) value += before;
  }
  __syncthreads();
  if (lane == 31) of_warp[warp] = value;
  __syncthreads();
  std::uint32_t sum = lane < warp ? of_warp[lane] : 0;
  for (unsigned step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xFFFFFFFFU, sum, step);
  return value + sum;
}

// Wide items, which run as sheets, read weights once for more rows: they are worth it where 8 rows
// would read noticeably more. They also are where experts have enough of them, since nothing is put
// into place for an item and no sums meet in memory.
__device__ inline bool wants_wide(const Call& call, const std::uint32_t* counts,
                                  std::uint32_t experts) {
  __shared__ std::uint32_t narrow;
  __shared__ std::uint32_t wide;
  if (call.wide_rows == 0 || call.tokens <= kRowsOfTile) return false;
  __shared__ std::uint32_t rows;
  __shared__ std::uint32_t busy;
  if (threadIdx.x == 0) narrow = wide = rows = busy = 0;
  __syncthreads();
  for (std::uint32_t expert = threadIdx.x; expert < experts; expert += kSlotThreads) {
    const std::uint32_t count = counts[expert];
    if (count == 0) continue;
    atomicAdd(&narrow, (count + kRowsOfTile - 1) / kRowsOfTile);
    atomicAdd(&wide, (count + call.wide_rows - 1) / call.wide_rows);
    atomicAdd(&rows, count);
    atomicAdd(&busy, 1U);
  }
  __syncthreads();
  if (narrow > wide + wide / 8) return true;
  return 10 * rows >= call.sheets_from * busy;
}

// counts: [local experts] in shared memory; holds the experts' first items afterwards. Returns the
// rows of an item.
__device__ inline std::uint32_t make_items(const Call& call, std::uint32_t* counts) {
  __shared__ std::uint32_t before;
  const auto experts = static_cast<std::uint32_t>(call.args.shape.local_experts);
  const bool wide = wants_wide(call, counts, experts);
  const std::uint32_t item_rows = wide ? call.wide_rows : kRowsOfTile;
  if (threadIdx.x == 0) before = 0;
  if (threadIdx.x < kFirstExperts) call.work.progress->first_experts[threadIdx.x] = 0;
  __syncthreads();
  for (std::uint32_t first = 0; first < experts; first += kSlotThreads) {
    const std::uint32_t expert = first + threadIdx.x;
    const std::uint32_t count = expert < experts ? counts[expert] : 0;
    const std::uint32_t items = (count + item_rows - 1) / item_rows;
    const std::uint32_t end = before + running_sum(items);
    for (std::uint32_t i = 0; i < items; ++i) {
      const std::uint32_t item = end - items + i;
      const std::uint32_t left = count - i * item_rows;
      call.work.items[item].expert = expert;
      if (item < kFirstExperts) call.work.progress->first_experts[item] = expert;
      const std::uint32_t rows = left < item_rows ? left : item_rows;
      call.work.items[item].rows = rows;
      // Sheets read them before they know how many count.
      for (std::uint32_t place = rows; place < item_rows; ++place)
        call.work.items[item].slot[place] = 0;
      call.work.gate_up_units[item] = 0;
    }
    if (expert < experts) counts[expert] = end - items;
    __syncthreads();
    if (threadIdx.x == kSlotThreads - 1) before = end;
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    Progress& progress = *call.work.progress;
    progress.items = before, progress.wide = wide ? 1 : 0;
    progress.ticket = progress.down_units = 0;
  }
  return item_rows;
}

__device__ inline std::int32_t expert_of(const Call& call, std::uint32_t slot) {
  const std::int32_t id = call.args.topk_ids[slot];
  const bool known = id >= 0 && static_cast<std::uint64_t>(id) < call.args.shape.experts;
  if (!known && id != -1) atomicOr(call.args.flags, kFlagBadExpertId);
  return known ? call.args.weights.local_of_expert[id] : -1;
}

__device__ inline void put_slot(const Call& call, const std::uint32_t* first_items,
                                std::uint32_t item_rows, std::uint32_t slot, std::int32_t expert,
                                std::uint32_t place) {
  if (expert < 0) return;
  call.work.items[first_items[expert] + place / item_rows].slot[place % item_rows] = slot;
}

// So many warps of a block that makes rows of x take a part of one: more would wait for each other.
__host__ __device__ constexpr std::uint32_t row_warps(RowForm form) {
  return form == RowForm::fp16 ? 8 : kSlotThreads / 32;
}
inline std::uint32_t row_blocks(RowForm form, std::uint32_t tokens, std::uint32_t hidden) {
  return (tokens * parts_of_x(form, hidden) + row_warps(form) - 1) / row_warps(form);
}

// One block; where sheets want rows, others behind it make them.
template <RowForm kForm>
__global__ void __launch_bounds__(kSlotThreads) prepare_slots(const __grid_constant__ Call call) {
  extern __shared__ std::uint32_t counts[];
  launch_dependents();
  if constexpr (kForm != RowForm::none) {
    if (blockIdx.x > 0) {
      wait_for_previous();
      const std::uint32_t warp = threadIdx.x / 32;
      const auto hidden = static_cast<std::uint32_t>(call.args.shape.hidden);
      const std::uint32_t parts = parts_of_x(kForm, hidden);
      if (warp >= row_warps(kForm)) return;
#pragma unroll 1
      for (std::uint32_t part = (blockIdx.x - 1) * row_warps(kForm) + warp;
           part < call.tokens * parts; part += (gridDim.x - 1) * row_warps(kForm))
        make_x_part<kForm>(call, part / parts, part % parts);
      return;
    }
  }
  const auto experts = static_cast<std::uint32_t>(call.args.shape.local_experts);
  for (std::uint32_t expert = threadIdx.x; expert < experts; expert += kSlotThreads)
    counts[expert] = 0;
  __syncthreads();
  wait_for_previous();
  // A thread keeps its first slot; what it finds out about others lies in the workspace.
  const std::uint32_t slot = threadIdx.x;
  std::int32_t expert = -1;
  std::uint32_t place = 0;
  if (slot < call.slots) {
    expert = expert_of(call, slot);
    call.work.expert_of_slot[slot] = expert;
    if (expert >= 0) place = atomicAdd(&counts[expert], 1U);
  }
  for (std::uint32_t more = slot + kSlotThreads; more < call.slots; more += kSlotThreads) {
    const std::int32_t found = expert_of(call, more);
    call.work.expert_of_slot[more] = found;
    if (found >= 0) call.work.place_of_slot[more] = atomicAdd(&counts[found], 1U);
  }
  __syncthreads();
  const std::uint32_t item_rows = make_items(call, counts);
  put_slot(call, counts, item_rows, slot, expert, place);
  for (std::uint32_t more = slot + kSlotThreads; more < call.slots; more += kSlotThreads)
    put_slot(call, counts, item_rows, more, call.work.expert_of_slot[more],
             call.work.place_of_slot[more]);
}

}  // namespace moxie::cuda::sm90

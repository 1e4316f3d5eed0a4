// SPDX-License-Identifier: Apache-2.0
// Ids to rows: a stable counting sort of the slots by local expert, without atomics, so that the
// rows are the same in every run.
#pragma once

#include <cstdint>

#include "kernels/cuda/portable/call.hpp"

namespace moxie::cuda::portable {

inline constexpr unsigned kSlotThreads = 256;
inline constexpr unsigned kScanThreads = 1024;

// One thread a slot: its local expert. Grid: slots / kSlotThreads.
__global__ void __launch_bounds__(kSlotThreads) classify_slots(const __grid_constant__ Call call) {
  const std::uint64_t slot = std::uint64_t{blockIdx.x} * kSlotThreads + threadIdx.x;
  if (slot >= call.slots) return;
  const std::int32_t id = call.args.topk_ids[slot];
  const bool known = id >= 0 && static_cast<std::uint64_t>(id) < call.args.shape.experts;
  if (!known && id != -1) atomicOr(call.args.flags, kFlagBadExpertId);
  call.work.expert_of_slot[slot] = known ? call.args.weights.local_of_expert[id] : -1;
  call.work.row_of_slot[slot] = -1;
}

// One block a local expert: how many slots it has. Grid: local_experts.
__global__ void __launch_bounds__(kSlotThreads) count_slots(const __grid_constant__ Call call) {
  const auto expert = static_cast<std::int32_t>(blockIdx.x);
  std::uint32_t count = 0;
  for (std::uint64_t first = 0; first < call.slots; first += kSlotThreads) {
    const std::uint64_t slot = first + threadIdx.x;
    const bool mine = slot < call.slots && call.work.expert_of_slot[slot] == expert;
    count += static_cast<std::uint32_t>(__syncthreads_count(mine ? 1 : 0));
  }
  if (threadIdx.x == 0) call.work.counts[blockIdx.x] = count;
}

// One block: running sums of rows and tiles, kScanThreads experts at a time.
__global__ void __launch_bounds__(kScanThreads) sum_counts(const __grid_constant__ Call call) {
  __shared__ std::uint32_t rows[kScanThreads];
  __shared__ std::uint32_t tiles[kScanThreads];
  const unsigned thread = threadIdx.x;
  const std::uint64_t experts = call.args.shape.local_experts;
  std::uint32_t rows_before = 0;
  std::uint32_t tiles_before = 0;
  for (std::uint64_t first = 0; first < experts; first += kScanThreads) {
    const std::uint64_t expert = first + thread;
    const std::uint32_t count = expert < experts ? call.work.counts[expert] : 0;
    rows[thread] = count;
    tiles[thread] = (count + kTileRows - 1) / kTileRows;
    __syncthreads();
    for (unsigned step = 1; step < kScanThreads; step *= 2) {
      const std::uint32_t more_rows = thread >= step ? rows[thread - step] : 0;
      const std::uint32_t more_tiles = thread >= step ? tiles[thread - step] : 0;
      __syncthreads();
      rows[thread] += more_rows;
      tiles[thread] += more_tiles;
      __syncthreads();
    }
    if (expert < experts) {
      call.work.with0[expert + 1] = rows_before + rows[thread];
      call.work.tiles0[expert + 1] = tiles_before + tiles[thread];
    }
    rows_before += rows[kScanThreads - 1];
    tiles_before += tiles[kScanThreads - 1];
    __syncthreads();
  }
  if (thread == 0) call.work.with0[0] = call.work.tiles0[0] = 0;
}

// One block a local expert: its rows in the order of the slots, and its tiles. Grid: local_experts.
__global__ void __launch_bounds__(kSlotThreads) place_slots(const __grid_constant__ Call call) {
  constexpr unsigned kWarps = kSlotThreads / 32;
  __shared__ std::uint32_t of_warp[kWarps];
  const Workspace& work = call.work;
  const auto expert = static_cast<std::int32_t>(blockIdx.x);
  if (work.counts[blockIdx.x] == 0) return;
  const unsigned warp = threadIdx.x / 32;
  const unsigned lane = threadIdx.x % 32;
  std::uint32_t row = work.with0[blockIdx.x];
  for (std::uint32_t tile = work.tiles0[blockIdx.x] + threadIdx.x;
       tile < work.tiles0[blockIdx.x + 1]; tile += kSlotThreads) {
    work.expert_of_tile[tile] = blockIdx.x;
    work.row_of_tile[tile] =
        row + (tile - work.tiles0[blockIdx.x]) * static_cast<std::uint32_t>(kTileRows);
  }
  for (std::uint64_t first = 0; first < call.slots; first += kSlotThreads) {
    const std::uint64_t slot = first + threadIdx.x;
    const bool mine = slot < call.slots && work.expert_of_slot[slot] == expert;
    const unsigned votes = __ballot_sync(0xFFFFFFFFU, mine);
    if (lane == 0) of_warp[warp] = static_cast<std::uint32_t>(__popc(votes));
    __syncthreads();
    std::uint32_t before = row + static_cast<std::uint32_t>(__popc(votes & ((1U << lane) - 1)));
    for (unsigned w = 0; w < kWarps; ++w) {
      if (w < warp) before += of_warp[w];
      row += of_warp[w];
    }
    if (mine) {
      work.row_of_slot[slot] = static_cast<std::int32_t>(before);
      work.slot_of_row[before] = static_cast<std::uint32_t>(slot);
    }
    __syncthreads();
  }
}

}  // namespace moxie::cuda::portable

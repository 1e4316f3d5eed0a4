// SPDX-License-Identifier: Apache-2.0
// Calls of few slots, which are start and hand-over more than streaming: every block finds out the
// items itself, and waits for values instead of counters (see values.cuh).
#pragma once

#include <cstdint>

#include "kernels/cuda/sm90/call.hpp"
#include "kernels/cuda/sm90/ptx.cuh"

namespace moxie::cuda::sm90 {

// The slots of one expert, at most one of a token.
struct SmallItem {
  static constexpr std::uint32_t kNone = 0xFF;
  std::uint32_t expert;            // local
  std::uint8_t slot[kRowsOfTile];  // of token 0, 1, ..
};
struct SmallItems {
  std::uint32_t count;
  std::int32_t expert_of_slot[kSmallSlots];
  SmallItem items[kSmallSlots];

  __device__ std::uint32_t expert(std::uint32_t item) const { return items[item].expert; }
};

// Memory that a warp needs to find them.
struct SmallScratch {
  std::int32_t local_of_expert[kSmallExperts];
  std::uint32_t slots_of_expert[2][kSmallExperts];  // a bit each
};

// By one warp, before the ids may be read.
__device__ inline void reset_items(SmallItems& items, SmallScratch& scratch) {
  const std::uint32_t lane = threadIdx.x % 32;
  auto* masks = reinterpret_cast<uint4*>(scratch.slots_of_expert);
  for (std::uint32_t i = lane; i < sizeof(scratch.slots_of_expert) / 16; i += 32)
    masks[i] = make_uint4(0, 0, 0, 0);
  for (std::uint32_t item = lane; item < kSmallSlots; item += 32) {
    for (std::uint32_t token = 0; token < kRowsOfTile; ++token)
      items.items[item].slot[token] = SmallItem::kNone;
  }
  __syncwarp();
}

// Of an expert's slots those of a token that come before `slot`. They go to items of their own,
// since an item has one place for a token.
__device__ __forceinline__ std::uint32_t turn_of(std::uint64_t slots, std::uint32_t slot,
                                                 std::uint32_t top_k) {
  const std::uint32_t first = slot / top_k * top_k;
  return static_cast<std::uint32_t>(__popcll(slots >> first & ((1ULL << (slot - first)) - 1)));
}
// The first of an expert's slots that share the item of `slot`.
__device__ __forceinline__ std::uint32_t leader_of(std::uint64_t slots, std::uint32_t slot,
                                                   std::uint32_t top_k) {
  const std::uint32_t turn = turn_of(slots, slot, top_k);
  auto leader = static_cast<std::uint32_t>(__ffsll(static_cast<long long>(slots)) - 1);
  if (turn == 0) return leader;  // as the lowest of them has
  for (leader = 0; leader < slot; ++leader) {
    if ((slots >> leader & 1) != 0 && turn_of(slots, leader, top_k) == turn) break;
  }
  return leader;
}

// By one warp, once the ids may be read: every block finds the same. Without slots it reads none.
__device__ inline void find_items(const Call& call, std::uint32_t slots, SmallItems& items,
                                  SmallScratch& scratch) {
  const std::uint32_t lane = threadIdx.x % 32;
  const auto top_k = static_cast<std::uint32_t>(call.args.shape.top_k);
  const auto experts = slots == 0 ? 0 : static_cast<std::uint32_t>(call.args.shape.experts);
  // The table is on its way together with the ids.
  constexpr std::uint32_t kOfLane = kSmallExperts / 32;
  std::int32_t id[2];
#pragma unroll
  for (std::uint32_t i = 0; i < 2; ++i) {
    const std::uint32_t slot = i * 32 + lane;
    id[i] = slot < slots ? __ldcg(call.args.topk_ids + slot) : -1;
  }
  std::int32_t local[kOfLane];
#pragma unroll
  for (std::uint32_t i = 0; i < kOfLane; ++i) {
    const std::uint32_t expert = i * 32 + lane;
    local[i] = expert < experts ? __ldcg(call.args.weights.local_of_expert + expert) : -1;
  }
#pragma unroll
  for (std::uint32_t i = 0; i < kOfLane; ++i) scratch.local_of_expert[i * 32 + lane] = local[i];
  __syncwarp();
  std::int32_t expert[2];
#pragma unroll
  for (std::uint32_t i = 0; i < 2; ++i) {
    const bool known = id[i] >= 0 && id[i] < static_cast<std::int32_t>(experts);
    expert[i] = known ? scratch.local_of_expert[id[i]] : -1;
    items.expert_of_slot[i * 32 + lane] = expert[i];
    if (expert[i] >= 0) atomicOr(&scratch.slots_of_expert[i][expert[i]], 1U << lane);
    if (blockIdx.x > 0) continue;
    // For whoever comes after this kernel.
    if (!known && id[i] != -1) atomicOr(call.args.flags, kFlagBadExpertId);
    if (i * 32 + lane < slots) call.work.expert_of_slot[i * 32 + lane] = expert[i];
  }
  __syncwarp();
  std::uint32_t leader[2];
  std::uint32_t leads[2];
#pragma unroll
  for (std::uint32_t i = 0; i < 2; ++i) {
    const std::uint32_t slot = i * 32 + lane;
    leader[i] = kSmallSlots;
    if (expert[i] >= 0) {
      const std::uint64_t of_expert = std::uint64_t{scratch.slots_of_expert[1][expert[i]]} << 32 |
                                      scratch.slots_of_expert[0][expert[i]];
      leader[i] = leader_of(of_expert, slot, top_k);
    }
    leads[i] = __ballot_sync(0xFFFFFFFFU, leader[i] == slot);
  }
#pragma unroll
  for (std::uint32_t i = 0; i < 2; ++i) {
    if (expert[i] < 0) continue;
    const std::uint32_t slot = i * 32 + lane;
    const std::uint64_t all = std::uint64_t{leads[1]} << 32 | leads[0];
    const auto item = static_cast<std::uint32_t>(__popcll(all & ((1ULL << leader[i]) - 1)));
    items.items[item].slot[slot / top_k] = static_cast<std::uint8_t>(slot);
    if (leader[i] == slot) items.items[item].expert = static_cast<std::uint32_t>(expert[i]);
  }
  if (lane == 0) items.count = static_cast<std::uint32_t>(__popc(leads[0]) + __popc(leads[1]));
  __syncwarp();
}

}  // namespace moxie::cuda::sm90

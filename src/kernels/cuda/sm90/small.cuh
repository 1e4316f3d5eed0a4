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

// The layer's table, on its way before the ids may be read; by one warp.
class LocalOfExpert {
 public:
  __device__ explicit LocalOfExpert(const Call& call) {
    const std::uint32_t lane = threadIdx.x % 32;
    const auto experts = static_cast<std::uint32_t>(call.args.shape.experts);
#pragma unroll
    for (std::uint32_t i = 0; i < kOfLane; ++i) {
      const std::uint32_t expert = i * 32 + lane;
      local_[i] = expert < experts ? load_constant(call.args.weights.local_of_expert + expert) : -1;
    }
  }
  __device__ void put(SmallScratch& scratch) const {
    const std::uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (std::uint32_t i = 0; i < kOfLane; ++i) scratch.local_of_expert[i * 32 + lane] = local_[i];
    __syncwarp();
  }

 private:
  static constexpr std::uint32_t kOfLane = kSmallExperts / 32;
  std::int32_t local_[kOfLane];
};

// By one warp, before the ids may be read.
__device__ inline void reset_items(std::uint32_t tokens, SmallItems& items, SmallScratch& scratch) {
  const std::uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (std::uint32_t item = 0; item < kSmallSlots; item += 32) {
    auto* slots = reinterpret_cast<std::uint32_t*>(items.items[item + lane].slot);
    slots[0] = slots[1] = ~0U;  // kNone
  }
  if (tokens > 1) {
    auto* masks = reinterpret_cast<uint4*>(scratch.slots_of_expert);
    for (std::uint32_t i = lane; i < sizeof(scratch.slots_of_expert) / 16; i += 32)
      masks[i] = make_uint4(0, 0, 0, 0);
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

// By one warp, once the ids may be read: every block finds the same.
class ItemFinder {
 public:
  __device__ ItemFinder(const Call& call, const LocalOfExpert& local, SmallItems& items,
                        SmallScratch& scratch)
      : call_(call), items_(items), scratch_(scratch), lane_(threadIdx.x % 32) {
    const auto experts = static_cast<std::int32_t>(call.args.shape.experts);
    std::int32_t id[2];
#pragma unroll
    for (std::uint32_t i = 0; i < 2; ++i)
      id[i] = slot(i) < call.slots ? __ldcg(call.args.topk_ids + slot(i)) : -1;
    local.put(scratch);
#pragma unroll
    for (std::uint32_t i = 0; i < 2; ++i) {
      const bool known = id[i] >= 0 && id[i] < experts;
      expert_[i] = known ? scratch.local_of_expert[id[i]] : -1;
      items.expert_of_slot[slot(i)] = expert_[i];
      if (blockIdx.x > 0) continue;
      // For whoever comes after this kernel.
      if (!known && id[i] != -1) atomicOr(call.args.flags, kFlagBadExpertId);
      if (slot(i) < call.slots) call.work.expert_of_slot[slot(i)] = expert_[i];
    }
  }

  __device__ void find() {
    if (call_.tokens == 1) {
      find_of_one();
    } else {
      find_of_many();
    }
    __syncwarp();
  }

 private:
  __device__ __forceinline__ std::uint32_t slot(std::uint32_t i) const { return i * 32 + lane_; }

  // Items of the slots that lead one.
  __device__ __forceinline__ void count(const bool (&leads)[2]) {
    const std::uint32_t low = __ballot_sync(0xFFFFFFFFU, leads[0]);
    const std::uint32_t high = __ballot_sync(0xFFFFFFFFU, leads[1]);
    leads_ = std::uint64_t{high} << 32 | low;
    if (lane_ == 0) items_.count = static_cast<std::uint32_t>(__popcll(leads_));
  }
  __device__ __forceinline__ SmallItem& item_of(std::uint32_t leader) {
    return items_.items[__popcll(leads_ & ((1ULL << leader) - 1))];
  }

  // Every slot of a token has an item of its own.
  __device__ __forceinline__ void find_of_one() {
    const bool leads[2] = {expert_[0] >= 0, expert_[1] >= 0};
    count(leads);
#pragma unroll
    for (std::uint32_t i = 0; i < 2; ++i) {
      if (!leads[i]) continue;
      SmallItem& item = item_of(slot(i));
      item.slot[0] = static_cast<std::uint8_t>(slot(i));
      item.expert = static_cast<std::uint32_t>(expert_[i]);
    }
  }

  __device__ __forceinline__ void find_of_many() {
    const auto top_k = static_cast<std::uint32_t>(call_.args.shape.top_k);
#pragma unroll
    for (std::uint32_t i = 0; i < 2; ++i) {
      if (expert_[i] >= 0) atomicOr(&scratch_.slots_of_expert[i][expert_[i]], 1U << lane_);
    }
    __syncwarp();
    std::uint32_t leader[2];
    bool leads[2];
#pragma unroll
    for (std::uint32_t i = 0; i < 2; ++i) {
      leader[i] = kSmallSlots;
      if (expert_[i] >= 0) {
        const std::uint64_t slots = std::uint64_t{scratch_.slots_of_expert[1][expert_[i]]} << 32 |
                                    scratch_.slots_of_expert[0][expert_[i]];
        leader[i] = leader_of(slots, slot(i), top_k);
      }
      leads[i] = leader[i] == slot(i);
    }
    count(leads);
#pragma unroll
    for (std::uint32_t i = 0; i < 2; ++i) {
      if (expert_[i] < 0) continue;
      SmallItem& item = item_of(leader[i]);
      item.slot[slot(i) / top_k] = static_cast<std::uint8_t>(slot(i));
      if (leads[i]) item.expert = static_cast<std::uint32_t>(expert_[i]);
    }
  }

  const Call& call_;
  SmallItems& items_;
  SmallScratch& scratch_;
  std::uint32_t lane_;
  std::int32_t expert_[2];   // of the lane's slots, local; -1: masked
  std::uint64_t leads_ = 0;  // a bit for each slot that leads an item
};

}  // namespace moxie::cuda::sm90

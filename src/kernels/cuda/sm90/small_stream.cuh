// SPDX-License-Identifier: Apache-2.0
// The warps that run ahead in a small call: one finds out the items and takes chunks of them, one
// sees to it that the rows of x are there before that is known, and publishes the segments.
//
// Where a block has few units, chunks are short and come item after item: most of down's
// activations are there when a block comes to down, so it need not stand still between the
// products. Chunks may then all be of different items, and those that multiply load the activations
// of the next one while they are at the one before.
#pragma once

#include <cstdint>

#include "kernels/cuda/sm90/call.hpp"
#include "kernels/cuda/sm90/ptx.cuh"
#include "kernels/cuda/sm90/schedule.cuh"
#include "kernels/cuda/sm90/segment.cuh"
#include "kernels/cuda/sm90/small.cuh"
#include "kernels/cuda/sm90/stream.cuh"

namespace moxie::cuda::sm90 {

// By one warp.
template <class TStages, class TSync>
__device__ inline void feed_small(const Call& call, TSync sync, std::uint32_t ring, Shared& shared,
                                  SmallScratch& scratch) {
  const bool leads = threadIdx.x % 32 == 0;
  const LocalOfExpert local(call);
  reset_items(call.tokens, shared.small, scratch);
  wait_for_previous();
  // The first chunk's number is on its way together with the ids.
  std::uint32_t ticket = 0;
  if (leads) ticket = take_ticket(call);
  ItemFinder(call, local, shared.small, scratch).find();
  arrive(sync.items_full[0]);
  if (!leads) return;
  const Chunk chunk = schedule_of<TStages, true>(call, shared.small.count).chunk(ticket);
  feed<TStages>(call, sync, ring, shared.queue, chunk, shared.small);
}

// Of a few tokens all rows of x are put into memory before the items are known, every token's
// in its place, and stay there. Else a segment has its item's rows, one after another; who puts
// activations there waits for them.
template <class TStages, class TSync>
class SmallScout {
 public:
  __device__ SmallScout(const Call& call, TSync sync, Shared& shared)
      : call_(call), sync_(sync), shared_(shared), lane_(threadIdx.x % 32) {}

  // See Scout.
  __device__ void rehearse() { publish_x(1); }

  __device__ void run() {
    if (in_place()) publish_x(call_.tokens);
    wait_barrier(sync_.items_full[0], 0);
    each_segment<TStages>(call_, sync_, shared_.queue, [this](const Head& head) { publish(head); });
  }

 private:
  __device__ bool in_place() const { return call_.tokens <= kTokensInPlace || call_.in_order; }

  // A segment of no units.
  __device__ void publish_x(std::uint32_t rows) {
    Segment& to = next();
    if (lane_ < rows) to.row()[lane_] = lane_, to.amax[lane_] = 0;
    if (lane_ == 0) {
      put_head({.phase = kGateUp, .rows = rows}, to);
      to.same_rows = 0;
    }
    hand_on();
  }

  __device__ void publish(Head head) {
    const bool multiplies = head.phase == kGateUp || head.phase == kDown;
    std::uint32_t slot = SmallItem::kNone;
    if (multiplies) {
      const SmallItem& item = shared_.small.items[head.item];
      head.expert = item.expert;
      if (lane_ < kRowsOfTile) slot = item.slot[lane_];
    }
    const std::uint32_t tokens = __ballot_sync(0xFFFFFFFFU, slot != SmallItem::kNone);
    const bool packed = head.phase == kDown || !in_place();
    const std::uint32_t at = packed ? __popc(tokens & ((1U << lane_) - 1)) : lane_;
    if (multiplies) head.rows = packed ? __popc(tokens) : call_.tokens;
    const bool same = head.phase == kGateUp && (!packed || tokens == last_tokens_);
    last_tokens_ = head.phase == kGateUp ? tokens : 0;
    Segment& to = next();
    if (slot != SmallItem::kNone)
      to.slot[at] = slot, to.row()[at] = head.phase == kGateUp ? lane_ : slot;
    if (multiplies && lane_ < head.rows) to.amax[lane_] = 0;
    if (lane_ == 0) {
      put_head(head, to);
      if (!packed) to.there = tokens;
      to.same_rows = same ? 1 : 0;
    }
    hand_on();
  }

  __device__ __forceinline__ Segment& next() {
    wait_barrier(sync_.segment_free[at_.place], at_.parity);
    return shared_.segments[at_.place];
  }
  __device__ __forceinline__ void hand_on() {
    arrive(sync_.segment_full[at_.place]);
    at_.next();
  }

  const Call& call_;
  TSync sync_;
  Shared& shared_;
  std::uint32_t lane_;
  std::uint32_t last_tokens_ = 0;  // whose rows of x lie in memory, packed
  Place<kSegments> at_{.parity = 1};
};

}  // namespace moxie::cuda::sm90

// SPDX-License-Identifier: Apache-2.0
// The warps that run ahead in a small call: one finds out the items and takes chunks of them, one
// sees to it that the rows of x are there before that is known, and publishes the segments.
//
// A call of one token whose activations are bf16 has chunks of one unit each, item after item: most
// of down's activations are there when a block comes to down, so it need not stand still between
// the products. As every unit may have an item of its own, the warp that publishes segments puts
// their activations into memory as well, two rows in turn, while others multiply.
#pragma once

#include <cstdint>

#include "kernels/cuda/sm90/call.hpp"
#include "kernels/cuda/sm90/ptx.cuh"
#include "kernels/cuda/sm90/schedule.cuh"
#include "kernels/cuda/sm90/segment.cuh"
#include "kernels/cuda/sm90/small.cuh"
#include "kernels/cuda/sm90/stream.cuh"

namespace moxie::cuda::sm90 {

// By one warp. It does it twice, without slots while what comes before this kernel still runs: its
// instructions are at hand when it counts.
template <class TStages, class TSync>
__device__ inline void feed_small(const Call& call, TSync sync, std::uint32_t ring, Shared& shared,
                                  SmallScratch& scratch) {
  const bool leads = threadIdx.x % 32 == 0;
  reset_items(shared.small, scratch);
  Chunk chunk{};
#pragma unroll 1
  for (std::uint32_t slots = 0;; slots = call.slots) {
    if (slots > 0) wait_for_previous();
    // The first chunk's number is on its way together with the ids.
    std::uint32_t ticket = 0;
    if (leads && slots > 0) ticket = take_ticket(call);
    find_items(call, slots, shared.small, scratch);
    if (slots > 0) arrive(sync.items_full[0]);
    chunk = schedule_of<TStages>(call, shared.small.count).chunk(ticket);
    if (slots > 0) break;
  }
  if (leads) feed<TStages>(call, sync, ring, shared.queue, chunk, shared.small);
}

// Of one or two tokens all rows of x are put into memory before the items are known, every token's
// in its place, and stay there. Else a segment has its item's rows, one after another; who puts
// activations there waits for them.
template <class TStages, class TSync, bool kLifts>
class SmallScout {
 public:
  __device__ SmallScout(const Call& call, TSync sync, Shared& shared, std::uint32_t rows)
      : call_(call), sync_(sync), shared_(shared), rows_(rows), lane_(threadIdx.x % 32) {}

  // See Scout.
  __device__ void rehearse() { publish_x(1); }

  __device__ void run() {
    if (in_place()) publish_x(call_.tokens);
    wait_barrier(sync_.items_full[0], 0);
    each_segment<TStages>(call_, sync_, shared_.queue, [this](const Head& head) { publish(head); });
  }

 private:
  __device__ bool in_place() const { return call_.tokens <= 2; }

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
    bool same = head.phase == kGateUp && (!packed || tokens == last_tokens_);
    last_tokens_ = head.phase == kGateUp ? tokens : 0;
    Segment& to = next();
    if (slot != SmallItem::kNone)
      to.slot[at] = slot, to.row()[at] = head.phase == kGateUp ? lane_ : slot;
    if (multiplies && lane_ < head.rows) to.amax[lane_] = 0;
    if (kLifts && call_.units_alone && head.phase == kDown) {
      if (++downs_ % 2 == 1) head.rows_at = call_.memory.second_row;
      __syncwarp();
      same = bring(to.slot[0], rows_ + head.rows_at, to.amax[0]);
    }
    if (lane_ == 0) {
      put_head(head, to);
      if (!packed) to.there = tokens;
      to.same_rows = same ? 1 : 0;
    }
    hand_on();
  }

  // Puts the activations of a slot into memory, as lift_rows() has them. False if they are not all
  // there, and those that multiply stand still or may do so soon: all of them together are quicker.
  __device__ bool bring(std::uint32_t slot, std::uint32_t to, std::uint32_t& amax) {
    constexpr std::uint32_t kAtOnce = 4;  // loads of a lane
    constexpr std::uint32_t kColumns = 32 * kChunk;
    const auto inter = static_cast<std::uint32_t>(call_.args.shape.inter);
    const auto* from = reinterpret_cast<const std::uint16_t*>(call_.work.act) +
                       std::uint64_t{slot} * inter + lane_ * kChunk;
    to += lane_ * (kChunk * 2);
    std::uint32_t left = inter - min(inter, lane_ * kChunk);  // columns from the lane's on
    std::uint32_t most = 0;
    std::uint32_t behind = 0;  // columns that lie in memory, not lifted
    uint4 pairs[kAtOnce];
#pragma unroll 1
    for (;;) {
#pragma unroll 1
      for (;;) {
        bool missing = false;
#pragma unroll
        for (std::uint32_t i = 0; i < kAtOnce; ++i) {
          pairs[i] = make_uint4(0, 0, 0, 0);
          if (i * kColumns < left) pairs[i] = look(from + i * kColumns);
        }
#pragma unroll
        for (std::uint32_t i = 0; i < kAtOnce; ++i) missing |= has_unwritten_halves(pairs[i]);
        if (!__any_sync(0xFFFFFFFFU, missing)) break;
        if (downs_ == 1 || is_done(1)) return false;
      }
#pragma unroll
      for (std::uint32_t i = 0; i < kAtOnce; ++i) most = max(most, amax_bits(pairs[i]));
      if (behind == 0) wait_for_place();
      if (behind + kAtOnce * kColumns >= inter) break;
#pragma unroll
      for (std::uint32_t i = 0; i < kAtOnce; ++i) store_shared4(to + i * (kColumns * 2), pairs[i]);
      behind += kAtOnce * kColumns;
      from += kAtOnce * kColumns;
      to += kAtOnce * kColumns * 2;
      left -= min(left, kAtOnce * kColumns);
    }
    most = __reduce_max_sync(0xFFFFFFFFU, most);
    if (lane_ == 0) amax = most;
    const float lift = row_scale(most).lift;
#pragma unroll
    for (std::uint32_t i = 0; i < kAtOnce; ++i) {
      if (i * kColumns < left) store_shared4(to + i * (kColumns * 2), lifted(pairs[i], lift));
    }
#pragma unroll 4
    for (; behind > 0; behind -= kColumns) {
      to -= kColumns * 2;
      store_shared4(to, lifted(load_shared4(to), lift));
    }
    __syncwarp();
    return true;
  }

  // Until nobody needs what lies where the next row goes. The second of a block goes to where x is,
  // which the segment before the first may still need; the others go where a row of down was.
  __device__ __forceinline__ void wait_for_place() const {
    if (downs_ == 2) {
      const Place<kSegments> place = before(2);
      wait_barrier(sync_.segment_free[place.place], place.parity);
    } else if (downs_ > 2) {
      wait_barrier(sync_.row_free[(downs_ + 1) % 2], (downs_ - 3) / 2 % 2);
    }
  }
  // Whether the segment so many before the next one is.
  __device__ __forceinline__ bool is_done(int count) const {
    const Place<kSegments> place = before(count);
    return is_open(sync_.segment_free[place.place], place.parity);
  }
  __device__ __forceinline__ Place<kSegments> before(int count) const {
    Place<kSegments> place = at_;
#pragma unroll
    for (int i = count; i < static_cast<int>(kSegments); ++i) place.next();
    return place;
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
  std::uint32_t rows_;  // where they start in shared memory
  std::uint32_t lane_;
  std::uint32_t downs_ = 0;        // segments of down so far, of units alone
  std::uint32_t last_tokens_ = 0;  // whose rows of x lie in memory, packed
  Place<kSegments> at_{.parity = 1};
};

}  // namespace moxie::cuda::sm90

// SPDX-License-Identifier: Apache-2.0
// The warps that run ahead: one thread copies weights, stage after stage, into a ring in shared
// memory, across units, experts and products; one warp finds out which rows the next segments have,
// and waits until they are there.
#pragma once

#include <cstdint>

#include "kernels/cuda/sm90/call.hpp"
#include "kernels/cuda/sm90/products.cuh"
#include "kernels/cuda/sm90/ptx.cuh"
#include "kernels/cuda/sm90/schedule.cuh"
#include "kernels/cuda/sm90/segment.cuh"

namespace moxie::cuda::sm90 {

// What a block reads of an expert, unit after unit: stages of all its warps, as they lie in memory.
template <BlockFormat kFormat>
struct StagesOfUnits {
  static constexpr Grain kGrain = Grain::coarse;  // a chunk's rows are put into place
  __device__ static std::uint32_t units_of(const Product& product) { return product.units; }
  __device__ static const std::byte* unit_at(const Product& product, const std::byte* weights,
                                             std::uint32_t unit) {
    return weights + unit * product.unit_bytes;
  }
  // Copies one unit; returns where the next one starts.
  template <class TSync>
  __device__ static const std::byte* copy(const Product& product, const std::byte* from,
                                          std::uint32_t /*unit*/, TSync sync, std::uint32_t ring,
                                          Place<TSync::kPlaces>& at, std::uint64_t policy) {
    for (std::uint32_t stage = 0; stage < product.stages; ++stage) {
      const std::uint32_t bytes = product.warps_in(stage) * step_bytes(kFormat);
      wait_barrier(sync.weights_free[at.place], at.parity);
      expect_bytes(sync.weights_full[at.place], bytes);
      copy_bulk(ring + at.place * (kWarps * step_bytes(kFormat)), from, bytes,
                sync.weights_full[at.place], policy);
      from += bytes;
      at.next();
    }
    return from;
  }
};

__device__ __forceinline__ std::uint32_t take_ticket(const Call& call) {
  return add_relaxed(&call.work.progress->ticket, 1);
}

// The items that prepare_slots() has stored, as the thread that takes chunks sees them.
struct StoredItems {
  std::uint32_t count;
  const Item* items;
  std::uint32_t* first_experts;

  __device__ StoredItems(const Call& call, Queue& queue)
      : count(call.work.progress->items),
        items(call.work.items),
        first_experts(queue.first_experts) {
#pragma unroll
    for (std::uint32_t i = 0; i < kFirstExperts; ++i)
      first_experts[i] = call.work.progress->first_experts[i];
  }
  __device__ std::uint32_t expert(std::uint32_t item) const {
    return item < kFirstExperts ? first_experts[item] : items[item].expert;
  }
};

template <class TStages, bool kSmall>
__device__ __forceinline__ Schedule schedule_of(const Call& call, std::uint32_t items) {
  return {call,
          items,
          TStages::units_of(call.experts.gate_up),
          TStages::units_of(call.experts.down),
          TStages::kGrain,
          kSmall && call.in_order};
}

inline constexpr std::uint32_t kAhead = 3;  // short chunks that nobody has begun
static_assert(kAhead < Queue::kSize);       // else a barrier of chunks could be a phase behind

// By one thread: takes the block's chunks behind this one, and copies what all of them read.
template <class TStages, class TSync, class TItems>
__device__ inline void feed(const Call& call, TSync sync, std::uint32_t ring, Queue& queue,
                            Chunk chunk, const TItems& items) {
  const std::uint64_t policy = evict_first();
  const Schedule schedule = schedule_of<TStages, TSync::kSmall>(call, items.count);
  // Chunks that are taken before anybody begins the first of them. A block starts with two, but not
  // in a small call that has nothing else for it than to wait; of short ones it takes more.
  const bool waits_at_once = TSync::kSmall && chunk.phase != kGateUp;
  const bool in_order = TSync::kSmall && call.in_order && !waits_at_once;
  const std::uint32_t ahead = waits_at_once ? 0 : in_order ? kAhead : 1;
  Place<TSync::kPlaces> at{.parity = 1};  // the ring is empty
  Place<Queue::kSize> turn;
  Place<Queue::kSize> begun;
  for (std::uint32_t number = 0;; ++number) {
    if (number > 0) {
      if (number > ahead) {                      // no block holds more than that
        if (TSync::kSmall) launch_dependents();  // it takes a while: see below
        wait_barrier(sync.chunk_begun[begun.place], begun.parity);
        begun.next();
      }
      chunk = schedule.chunk(take_ticket(call));
    }
    queue.chunks[turn.place] = chunk;
    arrive(sync.chunk_full[turn.place]);
    turn.next();
    // Nothing is left but what blocks work on: whoever comes next may get ready.
    if (chunk.phase == kNothing) return launch_dependents();
    if (chunk.phase == kCombine) continue;
    const Product& product = product_of(call, chunk.phase);
    const std::uint32_t units = TStages::units_of(product);
    std::uint32_t item = chunk.unit / units;
    std::uint32_t unit = chunk.unit - item * units;
    const std::byte* from = nullptr;
    for (std::uint32_t left = chunk.end - chunk.unit; left > 0; --left) {
      if (from == nullptr) {
        from = TStages::unit_at(product,
                                call.args.weights.blobs +
                                    items.expert(item) * call.args.weights.stride + product.offset,
                                unit);
      }
      from = TStages::copy(product, from, unit, sync, ring, at, policy);
      if (++unit == units) unit = 0, ++item, from = nullptr;
    }
  }
}

template <class TStages, class TSync>
__device__ inline void feed_stored(const Call& call, TSync sync, std::uint32_t ring, Queue& queue) {
  // The first chunk's number and the count of items are on their way together.
  const std::uint32_t ticket = take_ticket(call);
  const StoredItems items(call, queue);
  feed<TStages>(call, sync, ring, queue,
                schedule_of<TStages, TSync::kSmall>(call, items.count).chunk(ticket), items);
}

// What a block is to do next: neighbouring units of one item, or of the phase that combines.
struct Head {
  std::uint32_t phase = kNothing;
  std::uint32_t chunk = 0;
  std::uint32_t begins = 0;
  std::uint32_t unit = 0;
  std::uint32_t end = 0;
  std::uint32_t item = 0;
  std::uint32_t expert = 0;
  std::uint32_t rows = 0;
};
__device__ __forceinline__ void put_head(const Head& head, Segment& to) {
  to.phase = head.phase, to.chunk = head.chunk, to.begins = head.begins;
  to.unit = head.unit, to.end = head.end;
  to.item = head.item, to.expert = head.expert, to.rows = head.rows;
  to.there = static_cast<std::uint32_t>((std::uint64_t{1} << head.rows) - 1);
}

// Publishes the segments of the block's chunks, one after another, until there are none. By one
// warp; TStages knows the units of an item. What an item has is left out. `rest` comes before a
// wait for the next chunk.
struct NoRest {
  __device__ void operator()() const {}
};
template <class TStages, class TSync, class Publish, class Rest = NoRest>
__device__ __forceinline__ void each_segment(const Call& call, TSync sync, const Queue& queue,
                                             const Publish& publish, const Rest& rest = {}) {
  Place<Queue::kSize> turn;
  for (std::uint32_t number = 0;; ++number) {
    rest();
    wait_barrier(sync.chunk_full[turn.place], turn.parity);
    const Chunk chunk = queue.chunks[turn.place];
    turn.next();
    if (chunk.phase == kNothing) return publish({.phase = kNothing, .chunk = number});
    if (chunk.phase == kCombine) {
      publish(
          {.phase = kCombine, .chunk = number, .begins = 1, .unit = chunk.unit, .end = chunk.end});
      continue;
    }
    const std::uint32_t units = TStages::units_of(product_of(call, chunk.phase));
    for (std::uint32_t unit = chunk.unit; unit < chunk.end;) {
      const std::uint32_t item = unit / units;
      const std::uint32_t end = min(chunk.end, (item + 1) * units);
      publish({.phase = chunk.phase,
               .chunk = number,
               .begins = unit == chunk.unit ? 1U : 0U,
               .unit = unit - item * units,
               .end = end - item * units,
               .item = item});
      unit = end;
    }
  }
}

__device__ __forceinline__ void add_item(const Call& call, Head& head) {
  if (head.phase != kGateUp && head.phase != kDown) return;
  head.expert = call.work.items[head.item].expert;
  head.rows = call.work.items[head.item].rows;
}

// By one warp: finds out which rows the next segments have, and waits until they are there.
template <class TStages, class TSync>
class Scout {
 public:
  __device__ Scout(const Call& call, TSync sync, Shared& shared)
      : call_(call), sync_(sync), shared_(shared) {}

  // A segment of no units on any row of x, while what comes before this kernel still runs: who puts
  // rows into memory has its instructions at hand when the first one counts.
  __device__ void rehearse() { publish({.phase = kGateUp, .rows = 1}); }

  __device__ void run() {
    each_segment<TStages>(call_, sync_, shared_.queue, [this](Head head) {
      add_item(call_, head);
      publish(head);
    });
  }

 private:
  static constexpr std::uint32_t kNoRow = ~0U;

  __device__ void publish(const Head& head) {
    const std::uint32_t lane = threadIdx.x % 32;
    const bool has_row = lane < head.rows;
    const bool counts = head.end > head.unit;  // not a rehearsal
    const std::uint32_t slot = has_row && counts ? call_.work.items[head.item].slot[lane] : 0;
    std::uint32_t row = has_row ? slot : kNoRow;
    if (head.phase == kGateUp && has_row)
      row = slot / static_cast<std::uint32_t>(call_.args.shape.top_k);
    if (head.phase == kDown)
      wait_for_count(call_.work.gate_up_units + head.item, call_.experts.gate_up.units);
    // Rows that lie there already need not be brought again.
    const bool same = __all_sync(0xFFFFFFFFU, row == last_row_) && head.phase == kGateUp;
    last_row_ = head.phase == kGateUp && counts ? row : kNoRow - 1;
    wait_barrier(sync_.segment_free[at_.place], at_.parity);
    Segment& to = shared_.segments[at_.place];
    if (has_row) to.slot[lane] = slot, to.row()[lane] = row;
    if (lane < kRowsOfTile) to.amax[lane] = 0;
    if (lane == 0) {
      put_head(head, to);
      to.same_rows = same ? 1 : 0;
    }
    arrive(sync_.segment_full[at_.place]);
    at_.next();
  }

  const Call& call_;
  TSync sync_;
  Shared& shared_;
  Place<kSegments> at_{.parity = 1};
  std::uint32_t last_row_ = kNoRow - 1;
};

}  // namespace moxie::cuda::sm90

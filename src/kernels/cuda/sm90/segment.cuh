// SPDX-License-Identifier: Apache-2.0
// What the warps of a block have in common: barriers, and segments, the neighbouring units of one
// item that the block works on next.
#pragma once

#include <cstdint>

#include "kernels/cuda/sm90/call.hpp"
#include "kernels/cuda/sm90/ptx.cuh"
#include "kernels/cuda/sm90/rows.cuh"
#include "kernels/cuda/sm90/schedule.cuh"
#include "kernels/cuda/sm90/small.cuh"

namespace moxie::cuda::sm90 {

// Roles of a block's warps: one copies weights, one looks ahead, two finish, and kWarps multiply.
// The hardware prefers the warps with the lower numbers, and the others wait for these.
inline constexpr std::uint32_t kFeeder = 0;
inline constexpr std::uint32_t kScout = 1;
inline constexpr std::uint32_t kFirstFinisher = 2;
inline constexpr std::uint32_t kFinishers = 2;
inline constexpr std::uint32_t kFirstMultiplier = kFirstFinisher + kFinishers;
inline constexpr std::uint32_t kBlockThreads = 32 * (kFirstMultiplier + kWarps);

// Registers of a thread: 640 threads enter with 96 each, and 4 * 104 + 64 = 5 * 96.
inline constexpr int kMultiplierRegisters = 104;
inline constexpr int kOtherRegisters = 64;
static_assert(kBlockThreads == 640 && kFirstMultiplier == 4);

// Of the threads that multiply.
__device__ __forceinline__ std::uint32_t multiplier_thread() {
  return threadIdx.x - 32 * kFirstMultiplier;
}

struct Segment {
  std::uint32_t phase;
  std::uint32_t chunk;   // number
  std::uint32_t begins;  // 1: the first of its chunk
  std::uint32_t unit;    // of the item; of the phase for kCombine
  std::uint32_t end;
  std::uint32_t item;
  std::uint32_t expert;
  std::uint32_t rows;
  std::uint32_t there;      // a bit for each that is there
  std::uint32_t same_rows;  // as the segment before it
  std::uint32_t completes;  // 1: the last of its item that is stored
  std::uint32_t slot[kMostRows];
  std::uint32_t amax[kMostRows];  // of the rows, as the bits of an f32

  // Of x or of the activations, where rows are put into place: 8 at most.
  __device__ std::uint32_t* row() { return amax + kRowsOfTile; }
};
inline constexpr std::uint32_t kSegments = 4;  // known at once

// A barrier for every place of a ring, and the same ring as its users walk through it.
template <int kPlaces>
struct Barriers {
  std::uint32_t at;  // shared memory
  __device__ std::uint32_t operator[](int place) const { return at + place * 8; }
  __device__ std::uint32_t end() const { return at + kPlaces * 8; }
  __device__ void init(std::uint32_t arrivals) const {
    for (int place = 0; place < kPlaces; ++place) init_barrier((*this)[place], arrivals);
  }
};
template <int kPlaces>
struct Place {
  int place = 0;
  std::uint32_t parity = 0;
  __device__ __forceinline__ void next() {
    if (++place == kPlaces) place = 0, parity ^= 1;
  }
};

__device__ __forceinline__ const Product& product_of(const Call& call, std::uint32_t phase) {
  return phase == kGateUp ? call.experts.gate_up : call.experts.down;
}

// Partial sums of 8 tokens: of every warp two tiles of 16 rows. Two buffers take turns.
inline constexpr std::uint32_t kTileSums = 512;  // bytes
inline constexpr std::uint32_t kWarpSums = 2 * kTileSums;
inline constexpr std::uint32_t kSumsBytes = kWarps * kWarpSums;
inline constexpr int kSumsBuffers = 2;

// Where a warp is in its sheets: while it multiplies it has no registers for that.
struct SheetPlace {
  std::uint32_t sheet;
  std::uint32_t split;
};

struct Shared {
  Queue queue;
  Segment segments[kSegments];
  std::uint32_t amax[kRowsOfTile];  // of the rows that lie in memory
  SheetPlace sheets[kWarps];
  SmallItems small;
};
inline constexpr std::uint32_t kBarriers = 2560;  // where they start
inline constexpr std::uint32_t kSharedBytes = 2944;
static_assert(sizeof(SmallScratch) <= kSumsBytes / 2);  // lies there while there are no sums
static_assert(sizeof(Shared) <= kBarriers);

// Of a warp that has read its weights: one lane, behind a __syncwarp(), which is ordered and quick.
// racecheck does not see that order; a build to be looked at by it lets every lane arrive.
#ifdef MOXIE_CUDA_EVERY_LANE_ARRIVES
inline constexpr std::uint32_t kLanesThatArrive = 32;
#else
inline constexpr std::uint32_t kLanesThatArrive = 1;
#endif

// How a block begins: when it knows that the kernel in front is done, before, or before in a small
// call.
enum class Start : std::uint8_t { late, early, small };

// All barriers of a block: of the ring of weights, the ring of segments, and the buffers of partial
// sums. `full` opens when a place may be read, `free` when it may be written again; `chunk_begun`
// when those that multiply have come to a chunk behind their first, `items_full` when the items of
// a small call are known.
template <int kStages, Start kHow>
struct Sync {
  static constexpr int kPlaces = kStages;  // of the ring of weights
  static constexpr Start kStart = kHow;
  static constexpr bool kSmall = kHow == Start::small;
  Barriers<kStages> weights_full;
  Barriers<kStages> weights_free;
  Barriers<Queue::kSize> chunk_full;
  Barriers<Queue::kSize> chunk_begun;
  Barriers<kSegments> segment_full;
  Barriers<kSegments> segment_free;
  Barriers<kSumsBuffers> sums_full;
  Barriers<kSumsBuffers> sums_free;
  Barriers<1> items_full;

  __device__ explicit Sync(std::uint32_t base)
      : weights_full{base},
        weights_free{weights_full.end()},
        chunk_full{weights_free.end()},
        chunk_begun{chunk_full.end()},
        segment_full{chunk_begun.end()},
        segment_free{segment_full.end()},
        sums_full{segment_free.end()},
        sums_free{sums_full.end()},
        items_full{sums_free.end()} {
    static_assert((2 * kStages + 2 * Queue::kSize + 2 * kSegments + 2 * kSumsBuffers + 1) * 8 <=
                  kSharedBytes - kBarriers);
  }
  __device__ void init() const {
    weights_full.init(1);
    weights_free.init(kWarps * kLanesThatArrive);
    chunk_full.init(1);
    chunk_begun.init(1);
    // Every lane arrives for what it has done itself, but for the weights: there one arrives for
    // its warp, behind a __syncwarp().
    segment_full.init(32);
    segment_free.init(32 * (kFinishers + kWarps));
    sums_full.init(32 * kWarps);
    sums_free.init(32 * kFinishers);
    items_full.init(32);
    fence_barriers();
  }
};

}  // namespace moxie::cuda::sm90

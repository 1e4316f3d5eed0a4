// SPDX-License-Identifier: Apache-2.0
// One block of the experts kernel, and the warps that multiply items of 8 rows: they put the rows
// of a segment into shared memory, and stream its weights past them.
#pragma once

#include <cstdint>

#include "kernels/cuda/sm90/call.hpp"
#include "kernels/cuda/sm90/combine.cuh"
#include "kernels/cuda/sm90/finish.cuh"
#include "kernels/cuda/sm90/ring.cuh"
#include "kernels/cuda/sm90/schedule.cuh"
#include "kernels/cuda/sm90/segment.cuh"
#include "kernels/cuda/sm90/sheet_block.cuh"
#include "kernels/cuda/sm90/small.cuh"
#include "kernels/cuda/sm90/small_stream.cuh"
#include "kernels/cuda/sm90/stream.cuh"

namespace moxie::cuda::sm90 {

template <class TArithmetic, class TSync>
class Multiplier {
 public:
  __device__ Multiplier(const Call& call, TSync sync, Shared& shared, std::uint32_t base)
      : call_(call), sync_(sync), shared_(shared), multiply_(call, sync, shared, base) {}

  __device__ void run() {
    for (Place<kSegments> at;; at.next()) {
      wait_barrier(sync_.segment_full[at.place], at.parity);
      Segment& segment = shared_.segments[at.place];
      if (segment.phase == kNothing) return;
      // What has to wait for its rows begins behind them: its block takes no more chunks before.
      if (!TSync::kSmall || segment.phase != kDown) note_begin(segment);
      __syncwarp();  // said aloud: it lets the compiler keep the ring's state in uniform registers
      next_ = at;
      if (segment.phase == kCombine) {
        combine<TSync::kSmall>(
            call_, TSync::kSmall ? shared_.small.expert_of_slot : call_.work.expert_of_slot,
            segment.unit, segment.end, multiplier_thread());
      } else if (segment.phase == kGateUp) {
        multiply<kGateUp>(segment);
      } else {
        multiply<kDown>(segment);
      }
      arrive(sync_.segment_free[at.place]);
    }
  }

 private:
  // A rehearsal begins nothing, and nobody waits for the first chunk but feed().
  __device__ __forceinline__ void note_begin(const Segment& segment) {
    if (multiplier_thread() != 0 || segment.begins == 0) return;
    if (segment.chunk == 0 && (!TSync::kSmall || segment.phase == kGateUp)) return;
    arrive(sync_.chunk_begun[turn_]);
    turn_ = (turn_ + 1) % Queue::kSize;
  }

  template <std::uint32_t kPhase>
  __device__ void multiply(Segment& segment) {
    bool brought = false;
    if constexpr (kLooksAhead && kPhase == kDown) {
      brought = multiply_.at_once(segment.rows);
      if (brought) {
        multiply_.bring_at_once(segment, ahead_, there_);
        synchronise<1, kThreads>();
      }
    }
    if (!brought && segment.same_rows == 0) {
      synchronise<1, kThreads>();  // nobody needs the rows before them any more
      multiply_.template bring<kPhase>(segment);
      if (TSync::kSmall) synchronise<1, kThreads>();
    } else if (kPhase == kGateUp) {
      multiply_.keep(segment);
    }
    if (!TSync::kSmall) synchronise<1, kThreads>();
    if (TSync::kSmall && kPhase == kDown) note_begin(segment);
    __syncwarp();
    if constexpr (kLooksAhead) look_ahead();
    const std::uint32_t units = segment.end - segment.unit;
    for (std::uint32_t unit = 0; unit < units; ++unit)
      multiply_.template unit<kPhase>(segment.rows);
  }

  static constexpr bool kLooksAhead = TSync::kSmall && TArithmetic::kLifts;

  // What the next segment has of activations comes while this one is multiplied, if it is known by
  // then which it is.
  __device__ __forceinline__ void look_ahead() {
    there_ = false;
    next_.next();
    if (!__all_sync(0xFFFFFFFFU, is_open(sync_.segment_full[next_.place], next_.parity))) return;
    const Segment& next = shared_.segments[next_.place];
    if (next.phase != kDown || !multiply_.at_once(next.rows)) return;
    ahead_ = multiply_.look_at(next);
    there_ = true;
    __syncwarp();
  }

  const Call& call_;
  TSync sync_;
  Shared& shared_;
  Place<kSegments> next_;
  uint4 ahead_ = make_uint4(0, 0, 0, 0);
  bool there_ = false;  // ahead_ is the next segment's
  Multiply<TArithmetic, TSync> multiply_;
  std::uint32_t turn_ = 0;  // of the chunk that is begun next
};

// kPlaces: stages of weights in flight.
template <class TArithmetic, int kPlaces, Start kStart>
__device__ __forceinline__ void run_block(const Call& call, Shared& shared, std::uint32_t base) {
  using BlockSync = Sync<kPlaces, kStart>;
  using Stages = StagesOfUnits<TArithmetic::kFormat>;
  const Memory& memory = call.memory;
  const BlockSync sync(base + kBarriers);
  if (threadIdx.x == 0) sync.init();
  __syncthreads();
  const std::uint32_t warp = __shfl_sync(0xFFFFFFFFU, threadIdx.x / 32, 0);
  if (warp >= kFirstMultiplier) {
    take_registers<kMultiplierRegisters>();
    Multiplier<TArithmetic, BlockSync>(call, sync, shared, base).run();
  } else {
    give_registers<kOtherRegisters>();
    if (warp == kFeeder && kStart == Start::small) {
      auto& scratch =
          *reinterpret_cast<SmallScratch*>(reinterpret_cast<std::byte*>(&shared) + memory.sums);
      feed_small<Stages>(call, sync, base + memory.ring, shared, scratch);
    } else if (warp == kFeeder) {
      if (threadIdx.x % 32 == 0) {
        if (kStart == Start::early) wait_for_previous();
        feed_stored<Stages>(call, sync, base + memory.ring, shared.queue);
      }
    } else if (warp == kScout && kStart == Start::small) {
      SmallScout<Stages, BlockSync> scout(call, sync, shared);
      scout.rehearse();
      wait_for_previous();
      scout.run();
    } else if (warp == kScout) {
      Scout<Stages, BlockSync> scout(call, sync, shared);
      if (kStart == Start::early) {
        scout.rehearse();
        wait_for_previous();
      }
      scout.run();
    } else {
      Finisher<TArithmetic, BlockSync>(call, sync, shared, base + memory.sums).run();
    }
  }
}

// Grid: as many blocks as multiprocessors, or fewer. Stages in flight under items of 8 rows, and of
// sheets, whose items have kWideTiles times 8; 0 where there are none.
template <class TArithmetic, int kNarrow, int kWide, int kWideTiles>
__global__ void __launch_bounds__(kBlockThreads, 1) experts(const __grid_constant__ Call call) {
  extern __shared__ __align__(128) std::byte memory[];
  auto& shared = *reinterpret_cast<Shared*>(memory);
  const std::uint32_t base = shared_address(memory);
  if constexpr (kWide > 0) {
    // Which it is the routing decides.
    wait_for_previous();
    if (call.work.progress->wide != 0)
      return run_sheet_block<TArithmetic, kWideTiles, kWide>(call, shared, base);
    run_block<TArithmetic, kNarrow, Start::late>(call, shared, base);
  } else {
    run_block<TArithmetic, kNarrow, Start::early>(call, shared, base);
  }
}

// The same of a small call.
template <class TArithmetic, int kStages>
__global__ void __launch_bounds__(kBlockThreads, 1)
    small_experts(const __grid_constant__ Call call) {
  extern __shared__ __align__(128) std::byte memory[];
  run_block<TArithmetic, kStages, Start::small>(call, *reinterpret_cast<Shared*>(memory),
                                                shared_address(memory));
}

}  // namespace moxie::cuda::sm90

// SPDX-License-Identifier: Apache-2.0
// One block of the experts kernel, and the warps that multiply: they put the rows of a segment into
// shared memory, and stream its weights past them.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/sm90/call.hpp"
#include "kernels/cuda/sm90/combine.cuh"
#include "kernels/cuda/sm90/finish.cuh"
#include "kernels/cuda/sm90/products.cuh"
#include "kernels/cuda/sm90/rows.cuh"
#include "kernels/cuda/sm90/schedule.cuh"
#include "kernels/cuda/sm90/segment.cuh"
#include "kernels/cuda/sm90/stream.cuh"

namespace moxie::cuda::sm90 {

template <BlockFormat kFormat, int kTiles, class TPace, class TSync>
class Multiplier {
 public:
  __device__ Multiplier(const Call& call, TSync sync, Shared& shared, std::uint32_t base)
      : call_(call),
        sync_(sync),
        shared_(shared),
        warp_(__shfl_sync(0xFFFFFFFFU, multiplier_thread() / 32, 0)),
        lane_(threadIdx.x % 32),
        sums_(base + call.memory[kTiles - 1].sums),
        rows_(base + call.memory[kTiles - 1].rows),
        ring_(base + call.memory[kTiles - 1].ring + warp_ * step_bytes(kFormat)) {}

  __device__ void run() {
    for (Place<kSegments> at;; at.next()) {
      wait_barrier(sync_.segment_full[at.place], at.parity);
      Segment& segment = shared_.segments[at.place];
      if (multiplier_thread() == 0) shared_.queue.begin(segment.chunk);
      if (segment.phase == kNothing) return;
      if (segment.phase == kCombine) {
        combine(call_, segment.unit, segment.end, multiplier_thread());
        // The others leave such a segment at once: it must not be overwritten while it is read.
        synchronise<1, kThreads>();
      } else if (segment.phase == kGateUp) {
        multiply<kGateUp>(segment);
      } else {
        multiply<kDown>(segment);
      }
    }
  }

 private:
  template <std::uint32_t kPhase>
  __device__ void multiply(Segment& segment) {
    if (segment.same_rows == 0) {
      const RowsOf rows = kPhase == kGateUp ? rows_of_x(call_) : rows_of_act(call_);
      const RowPlace place{.to = rows_,
                           .row_bytes = call_.memory[kTiles - 1].row_bytes[kPhase],
                           .count = segment.rows,
                           .row = segment.row,
                           .amax = segment.amax};
      synchronise<1, kThreads>();  // nobody needs the rows before them any more
      stage_rows(call_.args.shape.act_format, rows, place, multiplier_thread());
      synchronise<1, kThreads>();
      lift_rows(place, multiplier_thread(), rows.columns);
      if (multiplier_thread() < segment.rows)
        shared_.amax[multiplier_thread()] = segment.amax[multiplier_thread()];
      synchronise<1, kThreads>();
    } else {
      if (multiplier_thread() < segment.rows)
        segment.amax[multiplier_thread()] = shared_.amax[multiplier_thread()];
      synchronise<1, kThreads>();
    }
    const std::uint32_t units = segment.end - segment.unit;
    if (kTiles == 2 && segment.rows > kRowsOfTile) {
      for (std::uint32_t unit = 0; unit < units; ++unit) multiply_unit<kPhase, kTiles>();
    } else {
      for (std::uint32_t unit = 0; unit < units; ++unit) multiply_unit<kPhase, 1>();
    }
  }

  template <std::uint32_t kPhase, int kUsed>
  __device__ __forceinline__ void multiply_unit() {
    const Product& product = kPhase == kGateUp ? call_.experts.gate_up : call_.experts.down;
    const std::uint32_t split = warp_ / product.strips_of_unit;
    const std::uint32_t steps = product.steps_of(split);
    const std::uint32_t row_bytes = call_.memory[kTiles - 1].row_bytes[kPhase];
    std::uint32_t rows = rows_ + lane_offset(kFormat, lane_, row_bytes) +
                         product.first_step(split) * (kStepColumns * 2);
    float sums[2][kUsed][4] = {};
    for (std::uint32_t stage = 0; stage < product.stages; stage += TPace::kSteps) {
      wait_barrier(sync_.weights_full[weights_.place], weights_.parity);
      const std::uint32_t at =
          ring_ + weights_.place * (TPace::kSteps * kWarps * step_bytes(kFormat));
      multiply_place<kUsed>(sums, at, rows, row_bytes, steps > stage ? steps - stage : 0);
      rows += TPace::kSteps * kStepColumns * 2;
      weights_.next();
    }
#pragma unroll
    for (int n = 0; n < kUsed; ++n) {
      wait_barrier(sync_.sums_free[turn_.place], turn_.parity);
      const std::uint32_t buffer =
          sums_ + turn_.place * kSumsBytes + warp_ * kWarpSums + lane_ * 16;
      store_shared4(buffer, sums[0][n]);
      store_shared4(buffer + kTileSums, sums[1][n]);
      __syncwarp();
      if (lane_ == 0) arrive(sync_.sums_full[turn_.place]);
      turn_.next();
    }
  }

  // The steps in one place of the ring, of which this warp has `steps` or as many as fit.
  template <int kUsed>
  __device__ __forceinline__ void multiply_place(Sums<kUsed>& sums, std::uint32_t at,
                                                 std::uint32_t rows, std::uint32_t row_bytes,
                                                 std::uint32_t steps) {
    constexpr std::uint32_t kStageBytes = kWarps * step_bytes(kFormat);
    Step<kFormat, kUsed> step[TPace::kSteps];
    if (steps >= TPace::kSteps) {
#pragma unroll
      for (std::uint32_t i = 0; i < TPace::kSteps; ++i)
        step[i].load(at + i * kStageBytes, lane_, rows + i * (kStepColumns * 2), row_bytes);
      release_weights();
#pragma unroll
      for (std::uint32_t i = 0; i < TPace::kSteps; ++i) sm90::multiply(sums, step[i]);
      return;
    }
    if (steps > 0) {
      step[0].load(at, lane_, rows, row_bytes);
      sm90::multiply(sums, step[0]);
    }
    release_weights();
  }
  __device__ __forceinline__ void release_weights() {
    __syncwarp();  // all lanes have loaded theirs
    if (lane_ == 0) arrive(sync_.weights_free[weights_.place]);
  }

  const Call& call_;
  TSync sync_;
  Shared& shared_;
  std::uint32_t warp_;
  std::uint32_t lane_;
  std::uint32_t sums_;
  std::uint32_t rows_;
  std::uint32_t ring_;
  Place<TPace::kPlaces> weights_;
  Place<kSumsBuffers> turn_{.parity = 1};
};

// Whether a block begins before the kernel in front of it is done.
enum class Start : std::uint8_t { late, early };

// kTiles: 8 or 16 rows of activations at most.
template <BlockFormat kFormat, int kTiles, class TPace, Start kStart>
__device__ __forceinline__ void run_block(const Call& call, Shared& shared, std::uint32_t base) {
  static_assert(TPace::kSteps <= 2);
  using BlockSync = Sync<TPace::kPlaces>;
  const Memory& memory = call.memory[kTiles - 1];
  const BlockSync sync(base + kBarriers);
  if (threadIdx.x == 0) {
    sync.init();
    shared.queue.current = 0;
  }
  __syncthreads();
  const std::uint32_t warp = __shfl_sync(0xFFFFFFFFU, threadIdx.x / 32, 0);
  // 640 threads enter with 96 registers each: 4 * 104 + 64 = 5 * 96.
  static_assert(kBlockThreads == 640 && kFirstMultiplier == 4);
  if (warp >= kFirstMultiplier) {
    take_registers<104>();
    Multiplier<kFormat, kTiles, TPace, BlockSync>(call, sync, shared, base).run();
  } else {
    give_registers<64>();
    if (warp == kFeeder) {
      if (threadIdx.x % 32 == 0) {
        if (kStart == Start::early) wait_for_previous();
        feed<kFormat, TPace>(call, sync, base + memory.ring, shared.queue);
      }
    } else if (warp == kScout) {
      Scout scout(call, sync, shared);
      if (kStart == Start::early) {
        scout.rehearse();
        wait_for_previous();
      }
      scout.run();
    } else {
      Finisher<BlockSync>(call, sync, shared, base + memory.sums).run();
    }
  }
}

// Grid: as many blocks as multiprocessors, or fewer. Wide is void where 16 rows do not fit.
template <BlockFormat kFormat, class Narrow, class Wide>
__global__ void __launch_bounds__(kBlockThreads, 1) experts(const __grid_constant__ Call call) {
  extern __shared__ __align__(128) std::byte memory[];
  auto& shared = *reinterpret_cast<Shared*>(memory);
  const std::uint32_t base = shared_address(memory);
  if constexpr (!std::is_void_v<Wide>) {
    // Which it is the routing decides.
    wait_for_previous();
    if (call.work.progress->wide != 0)
      return run_block<kFormat, 2, Wide, Start::late>(call, shared, base);
    run_block<kFormat, 1, Narrow, Start::late>(call, shared, base);
  } else {
    run_block<kFormat, 1, Narrow, Start::early>(call, shared, base);
  }
}

}  // namespace moxie::cuda::sm90

// SPDX-License-Identifier: Apache-2.0
// One block of the experts kernel, and the warps that multiply: they put the rows of a segment into
// shared memory, and stream its weights past them.
#pragma once

#include <cstdint>

#include "kernels/cuda/sm90/call.hpp"
#include "kernels/cuda/sm90/combine.cuh"
#include "kernels/cuda/sm90/finish.cuh"
#include "kernels/cuda/sm90/products.cuh"
#include "kernels/cuda/sm90/rows.cuh"
#include "kernels/cuda/sm90/schedule.cuh"
#include "kernels/cuda/sm90/segment.cuh"
#include "kernels/cuda/sm90/stream.cuh"

namespace moxie::cuda::sm90 {

template <BlockFormat kFormat, int kTiles, int kPlaces, class TSync>
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
      } else if (segment.phase == kGateUp) {
        multiply<kGateUp>(segment);
      } else {
        multiply<kDown>(segment);
      }
      arrive(sync_.segment_free[at.place]);
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
#pragma unroll 2
    for (std::uint32_t step = 0; step < steps; ++step) {
      wait_barrier(sync_.weights_full[weights_.place], weights_.parity);
      const std::uint32_t at = ring_ + weights_.place * (kWarps * step_bytes(kFormat));
      Step<kFormat, kUsed> operands;
      operands.load(at, lane_, rows, row_bytes);
      release_weights();
      sm90::multiply(sums, operands);
      rows += kStepColumns * 2;
    }
    if (steps < product.stages) {  // others have one more
      wait_barrier(sync_.weights_full[weights_.place], weights_.parity);
      release_weights();
    }
#pragma unroll
    for (int n = 0; n < kUsed; ++n) {
      wait_barrier(sync_.sums_free[turn_.place], turn_.parity);
      const std::uint32_t buffer =
          sums_ + turn_.place * kSumsBytes + warp_ * kWarpSums + lane_ * 16;
      store_shared4(buffer, sums[0][n]);
      store_shared4(buffer + kTileSums, sums[1][n]);
      arrive(sync_.sums_full[turn_.place]);
      turn_.next();
    }
  }

  __device__ __forceinline__ void release_weights() {
    __syncwarp();  // all lanes have loaded theirs
    if (lane_ == 0) arrive(sync_.weights_free[weights_.place]);
    weights_.next();
  }

  const Call& call_;
  TSync sync_;
  Shared& shared_;
  std::uint32_t warp_;
  std::uint32_t lane_;
  std::uint32_t sums_;
  std::uint32_t rows_;
  std::uint32_t ring_;
  Place<kPlaces> weights_;
  Place<kSumsBuffers> turn_{.parity = 1};
};

// Whether a block begins before the kernel in front of it is done.
enum class Start : std::uint8_t { late, early };

// kTiles: 8 or 16 rows of activations at most; kPlaces: stages of weights in flight.
template <BlockFormat kFormat, int kTiles, int kPlaces, Start kStart>
__device__ __forceinline__ void run_block(const Call& call, Shared& shared, std::uint32_t base) {
  using BlockSync = Sync<kPlaces>;
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
    Multiplier<kFormat, kTiles, kPlaces, BlockSync>(call, sync, shared, base).run();
  } else {
    give_registers<64>();
    if (warp == kFeeder) {
      if (threadIdx.x % 32 == 0) {
        if (kStart == Start::early) wait_for_previous();
        feed<kFormat, kPlaces>(call, sync, base + memory.ring, shared.queue);
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

// Grid: as many blocks as multiprocessors, or fewer. Stages in flight under items of 8 rows, and of
// 16; 0 where those do not fit.
template <BlockFormat kFormat, int kNarrow, int kWide>
__global__ void __launch_bounds__(kBlockThreads, 1) experts(const __grid_constant__ Call call) {
  extern __shared__ __align__(128) std::byte memory[];
  auto& shared = *reinterpret_cast<Shared*>(memory);
  const std::uint32_t base = shared_address(memory);
  if constexpr (kWide > 0) {
    // Which it is the routing decides.
    wait_for_previous();
    if (call.work.progress->wide != 0)
      return run_block<kFormat, 2, kWide, Start::late>(call, shared, base);
    run_block<kFormat, 1, kNarrow, Start::late>(call, shared, base);
  } else {
    run_block<kFormat, 1, kNarrow, Start::early>(call, shared, base);
  }
}

}  // namespace moxie::cuda::sm90

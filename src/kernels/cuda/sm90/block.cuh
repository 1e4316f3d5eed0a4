// SPDX-License-Identifier: Apache-2.0
// One block of the experts kernel, and the warps that multiply: they put the rows of a segment into
// shared memory, and stream its weights past them.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/sm90/call.hpp"
#include "kernels/cuda/sm90/finish.cuh"
#include "kernels/cuda/sm90/products.cuh"
#include "kernels/cuda/sm90/rows.cuh"
#include "kernels/cuda/sm90/schedule.cuh"
#include "kernels/cuda/sm90/segment.cuh"
#include "kernels/cuda/sm90/stream.cuh"

namespace moxie::cuda::sm90 {

// Weighted sums over a token's slots, in their order; masked slots are skipped.
__device__ inline void combine(const Call& call, std::uint32_t first, std::uint32_t end) {
  const ExpertsShape& shape = call.args.shape;
  const auto hidden = static_cast<std::uint32_t>(shape.hidden);
  const auto top_k = static_cast<std::uint32_t>(shape.top_k);
  const MutableMatrixRef& y = call.args.final_y;
  const std::uint32_t parts = (hidden + kCombineColumns - 1) / kCombineColumns;
  for (std::uint32_t unit = first; unit < end; ++unit) {
    const std::uint32_t token = unit / parts;
    const std::uint32_t column = unit % parts * kCombineColumns + multiplier_thread() * 4;
    if (column >= hidden) continue;
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 4
    for (std::uint32_t choice = 0; choice < top_k; ++choice) {
      const std::uint32_t slot = token * top_k + choice;
      if (call.work.expert_of_slot[slot] < 0) continue;
      const float weight = call.args.topk_weights[slot];
      const float4 value = __ldcg(
          reinterpret_cast<const float4*>(call.work.down + std::uint64_t{slot} * hidden + column));
      sum.x += weight * value.x, sum.y += weight * value.y;
      sum.z += weight * value.z, sum.w += weight * value.w;
    }
    const float values[4] = {sum.x, sum.y, sum.z, sum.w};
    const std::uint64_t at = token * y.row_stride + column;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (y.dtype == DType::f32) {
        static_cast<float*>(y.data)[at + i] = values[i];
      } else {
        static_cast<__nv_bfloat16*>(y.data)[at + i] = __float2bfloat16_rn(values[i]);
      }
    }
  }
}

template <BlockFormat kFormat, int kTiles, class TPace, int kBuffers, class TSync>
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
      const Segment& segment = shared_.segments[at.place];
      if (multiplier_thread() == 0) shared_.queue.begin(segment.chunk);
      if (segment.phase == kNothing) return;
      if (segment.phase == kCombine) {
        combine(call_, segment.unit, segment.end);
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
  __device__ void multiply(const Segment& segment) {
    if (segment.same_rows == 0) {
      synchronise<1, kThreads>();  // nobody needs the rows before them any more
      place_rows(multiplier_thread(), call_.args.shape.act_format,
                 kPhase == kGateUp ? rows_of_x(call_) : rows_of_act(call_), segment.row,
                 segment.amax, segment.rows, rows_, call_.memory[kTiles - 1].row_bytes[kPhase]);
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
    wait_barrier(sync_.sums_free[turn_.place], turn_.parity);
    const std::uint32_t buffer = sums_ + turn_.place * (kWarps * kWarpSums<kTiles>) +
                                 warp_ * kWarpSums<kUsed> + place_of(lane_) * 16;
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
      for (int n = 0; n < kUsed; ++n)
        store_shared4(buffer + (tile * kUsed + n) * 512, sums[tile][n]);
    }
    __syncwarp();
    if (lane_ == 0) arrive(sync_.sums_full[turn_.place]);
    turn_.next();
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
  Place<kBuffers> turn_{.parity = 1};
};

// kTiles: 8 or 16 rows of activations at most.
template <BlockFormat kFormat, int kTiles, class TPace>
__device__ __forceinline__ void run_block(const Call& call, Shared& shared, std::uint32_t base) {
  static_assert(TPace::kSteps <= 2);
  constexpr int kBuffers = kTiles == 1 ? 2 : 1;
  using BlockSync = Sync<TPace::kPlaces, kBuffers>;
  const Memory& memory = call.memory[kTiles - 1];
  const BlockSync sync(base + kBarriers);
  if (threadIdx.x == 0) {
    sync.init();
    shared.queue.current = 0;
  }
  const Schedule schedule(call, call.work.progress->items);
  __syncthreads();
  const std::uint32_t warp = __shfl_sync(0xFFFFFFFFU, threadIdx.x / 32, 0);
  // 640 threads enter with 96 registers each: 4 * 104 + 64 = 5 * 96.
  static_assert(kBlockThreads == 640 && kFirstMultiplier == 4);
  if (warp >= kFirstMultiplier) {
    take_registers<104>();
    Multiplier<kFormat, kTiles, TPace, kBuffers, BlockSync>(call, sync, shared, base).run();
  } else {
    give_registers<64>();
    if (warp == kFeeder) {
      if (threadIdx.x % 32 == 0)
        feed<kFormat, TPace>(call, sync, base + memory.ring, shared.queue, schedule);
    } else if (warp == kScout) {
      Scout(call, sync, shared, schedule).run();
    } else {
      Finisher<kTiles, kBuffers, BlockSync>(call, sync, shared, base + memory.sums).run();
    }
  }
}

// Grid: as many blocks as multiprocessors, or fewer. Wide is void where 16 rows do not fit.
template <BlockFormat kFormat, class Narrow, class Wide>
__global__ void __launch_bounds__(kBlockThreads, 1) experts(const __grid_constant__ Call call) {
  extern __shared__ __align__(128) std::byte memory[];
  auto& shared = *reinterpret_cast<Shared*>(memory);
  const std::uint32_t base = shared_address(memory);
  wait_for_previous();
  if constexpr (!std::is_void_v<Wide>) {
    if (call.work.progress->wide != 0) return run_block<kFormat, 2, Wide>(call, shared, base);
  }
  run_block<kFormat, 1, Narrow>(call, shared, base);
}

}  // namespace moxie::cuda::sm90

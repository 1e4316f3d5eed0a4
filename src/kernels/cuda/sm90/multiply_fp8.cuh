// SPDX-License-Identifier: Apache-2.0
// The warps that multiply in FP8: four of them share a pair of strips and two splits of its steps.
#pragma once

#include <cstdint>

#include "kernels/cuda/sm90/call.hpp"
#include "kernels/cuda/sm90/products_fp8.cuh"
#include "kernels/cuda/sm90/ring.cuh"
#include "kernels/cuda/sm90/rows_fp8.cuh"
#include "kernels/cuda/sm90/segment.cuh"
#include "kernels/cuda/sm90/wgmma.cuh"

namespace moxie::cuda::sm90 {

// MXFP4 weights, activations of act_format fp8.
struct Fp8 {
  static constexpr BlockFormat kFormat = BlockFormat::mxfp4;
  static constexpr std::uint32_t kJoined = 2;  // splits whose sums leave a warp as one
  static constexpr bool kLifts = false;
  static constexpr bool kSheets = false;
};

template <int kTiles, class TSync>
class Multiply<Fp8, kTiles, TSync> {
 public:
  __device__ Multiply(const Call& call, TSync sync, Shared& /*shared*/, std::uint32_t base)
      : call_(call),
        sync_(sync),
        warp_(__shfl_sync(0xFFFFFFFFU, multiplier_thread() / 32, 0)),
        lane_(threadIdx.x % 32),
        sums_(base + memory_of<kTiles>(call).sums + lane_ * 16),
        rows_(base + memory_of<kTiles>(call).rows),
        scales_(base + memory_of<kTiles>(call).row_scales),
        ring_(sync, base + memory_of<kTiles>(call).ring) {}

  template <std::uint32_t kPhase>
  __device__ void bring(Segment& segment) {
    const RowsOf rows = kPhase == kGateUp ? rows_of_x(call_) : rows_of_act(call_);
    // Activations of a small call come while this waits for them.
    constexpr bool kAwaits = TSync::kSmall && kPhase == kDown;
    stage_fp8<kTiles, kAwaits>(
        rows, {.to = rows_, .scales = scales_, .count = segment.rows, .row = segment.row()},
        multiplier_thread());
    fence_for_tensor_cores();
  }

  __device__ __forceinline__ void find(const Segment& /*segment*/) {}
  __device__ void keep(Segment& /*segment*/) const {}

  template <std::uint32_t kPhase, int kUsed>
  __device__ __forceinline__ void unit() {
    const Product& product = product_of(call_, kPhase);
    const std::uint32_t strips = product.strips_of_unit;
    const std::uint32_t group = warp_ / 4;
    const std::uint32_t pairs = strips / 2;  // a power of two
    const std::uint32_t joined = group / pairs;
    const std::uint32_t strip = group % pairs * 2 + warp_ % 4 / 2;
    const std::uint32_t tile = warp_ % 2;
    const std::uint32_t split = 2 * joined;
    const std::uint32_t offset = (split * strips + strip) * step_bytes(Fp8::kFormat);
    const std::uint32_t apart = strips * step_bytes(Fp8::kFormat);
    constexpr std::uint32_t kStepScales = kTiles * kRowsOfTile * 4;
    const std::uint32_t scales = scales_ + lane_ % 4 * 8;
    std::uint32_t scales_a = scales + product.first_step(split) * kStepScales;
    std::uint32_t scales_b = scales + product.first_step(split + 1) * kStepScales;
    constexpr std::uint32_t kStepRows = kStepColumns / 32 * fp8_group_bytes(kTiles);
    constexpr std::uint32_t kGroup = fp8_group_bytes(kTiles) / 16;  // in descriptors
    std::uint32_t rows_a = descriptor(rows_ + product.first_step(split) * kStepRows);
    std::uint32_t rows_b = descriptor(rows_ + product.first_step(split + 1) * kStepRows);
    const std::uint32_t both = product.steps_of(split + 1);
    float sums[kUsed][4] = {};
    for (std::uint32_t stage = 0; stage < both; ++stage) {
      Fp8Step<kUsed> a;
      Fp8Step<kUsed> b;
      const std::uint32_t at = ring_.wait() + offset;
      a.load(at, tile, lane_);
      if constexpr (kUsed > 2) {  // one after the other: fewer registers
        wgmma_fence();
        a.start(rows_a, kGroup, scales_a);
        wgmma_wait<0>();
        a.add_to(sums);
        b.load(at + apart, tile, lane_);
        ring_.release();
        wgmma_fence();
        b.start(rows_b, kGroup, scales_b);
      } else {
        b.load(at + apart, tile, lane_);
        ring_.release();
        wgmma_fence();
        a.start(rows_a, kGroup, scales_a);
        b.start(rows_b, kGroup, scales_b);
        wgmma_wait<1>();
        a.add_to(sums);
      }
      scales_a += kStepScales, scales_b += kStepScales;
      rows_a += 2 * kGroup, rows_b += 2 * kGroup;
      wgmma_wait<0>();
      b.add_to(sums);
    }
    if (product.steps_of(split) > both) {
      Fp8Step<kUsed> a;
      a.load(ring_.wait() + offset, tile, lane_);
      ring_.release();
      wgmma_fence();
      a.start(rows_a, kGroup, scales_a);
      wgmma_wait<0>();
      a.add_to(sums);
    } else if (both < product.stages) {
      ring_.skip();  // others have one more
    }
    const std::uint32_t place = (joined * strips + strip) * kWarpSums + tile * kTileSums;
#pragma unroll
    for (int n = 0; n < kUsed; ++n) {
      wait_barrier(sync_.sums_free[turn_.place], turn_.parity);
      store_shared4(sums_ + turn_.place * (kSumsBytes / Fp8::kJoined) + place, sums[n]);
      arrive(sync_.sums_full[turn_.place]);
      turn_.next();
    }
  }

 private:
  const Call& call_;
  TSync sync_;
  std::uint32_t warp_;
  std::uint32_t lane_;
  std::uint32_t sums_;  // the lane's, in the first buffer
  std::uint32_t rows_;
  std::uint32_t scales_;
  RingReader<kWarps * step_bytes(Fp8::kFormat), TSync> ring_;
  Place<kSumsBuffers> turn_{.parity = 1};
};

}  // namespace moxie::cuda::sm90

// SPDX-License-Identifier: Apache-2.0
// The warps that multiply 8 rows in FP8: four of them share a pair of strips and two splits of its
// steps.
#pragma once

#include <cstdint>

#include "kernels/cuda/sm90/arithmetic.hpp"
#include "kernels/cuda/sm90/call.hpp"
#include "kernels/cuda/sm90/products_fp8.cuh"
#include "kernels/cuda/sm90/ring.cuh"
#include "kernels/cuda/sm90/rows_fp8.cuh"
#include "kernels/cuda/sm90/segment.cuh"
#include "kernels/cuda/sm90/wgmma.cuh"

namespace moxie::cuda::sm90 {

template <class TSync>
class Multiply<Fp8, TSync> {
 public:
  __device__ Multiply(const Call& call, TSync sync, Shared& /*shared*/, std::uint32_t base)
      : call_(call),
        sync_(sync),
        warp_(__shfl_sync(0xFFFFFFFFU, multiplier_thread() / 32, 0)),
        lane_(threadIdx.x % 32),
        sums_(base + call.memory.sums + lane_ * 16),
        rows_(base + call.memory.rows),
        scales_(base + call.memory.row_scales),
        ring_(sync, base + call.memory.ring) {}

  template <std::uint32_t kPhase>
  __device__ void bring(Segment& segment) {
    const RowsOf rows = kPhase == kGateUp ? rows_of_x(call_) : rows_of_act(call_);
    // Activations of a small call come while this waits for them.
    constexpr bool kAwaits = TSync::kSmall && kPhase == kDown;
    stage_fp8<kAwaits>(
        rows, {.to = rows_, .scales = scales_, .count = segment.rows, .row = segment.row()},
        multiplier_thread());
    fence_for_tensor_cores();
  }

  __device__ void keep(Segment& /*segment*/) const {}

  template <std::uint32_t kPhase>
  __device__ __forceinline__ void unit(std::uint32_t /*row_count*/) {
    const Product& product = product_of(call_, kPhase);
    const std::uint32_t strips = product.strips_of_unit;
    const std::uint32_t group = warp_ / 4;
    const std::uint32_t pairs = strips / 2;  // a power of two
    const std::uint32_t joined = group >> (__ffs(pairs) - 1);
    const std::uint32_t strip = (group & (pairs - 1)) * 2 + warp_ % 4 / 2;
    const std::uint32_t tile = warp_ % 2;
    const std::uint32_t split = 2 * joined;
    const std::uint32_t offset = (split * strips + strip) * step_bytes(Fp8::kFormat);
    const std::uint32_t apart = strips * step_bytes(Fp8::kFormat);
    constexpr std::uint32_t kStepScales = kRowsOfTile * 4;
    const std::uint32_t scales = scales_ + lane_ % 4 * 8;
    std::uint32_t scales_a = scales + product.first_step(split) * kStepScales;
    std::uint32_t scales_b = scales + product.first_step(split + 1) * kStepScales;
    constexpr std::uint32_t kStepRows = kStepColumns / 32 * kFp8GroupBytes;
    constexpr std::uint32_t kGroup = kFp8GroupBytes / 16;  // in descriptors
    std::uint32_t rows_a = descriptor(rows_ + product.first_step(split) * kStepRows);
    std::uint32_t rows_b = descriptor(rows_ + product.first_step(split + 1) * kStepRows);
    const std::uint32_t both = product.steps_of(split + 1);
    float sums[1][4] = {};
    for (std::uint32_t stage = 0; stage < both; ++stage) {
      Fp8Codes codes[2];
      Fp8Step<1> a;
      Fp8Step<1> b;
      Fp8RowScales<1> of_a;
      Fp8RowScales<1> of_b;
      const std::uint32_t at = ring_.wait() + offset;
      codes[0].load(at, tile, lane_);
      codes[1].load(at + apart, tile, lane_);
      a.place(codes[0]);
      b.place(codes[1]);
      ring_.release();
      wgmma_fence();
      a.start(whole(rows_a), whole(rows_a + kGroup));
      of_a.load(scales_a);
      b.start(whole(rows_b), whole(rows_b + kGroup));
      of_b.load(scales_b);
      wgmma_wait<1>();
      a.add_to(sums, of_a);
      scales_a += kStepScales, scales_b += kStepScales;
      rows_a += 2 * kGroup, rows_b += 2 * kGroup;
      wgmma_wait<0>();
      b.add_to(sums, of_b);
    }
    if (product.steps_of(split) > both) {
      Fp8Codes codes;
      Fp8Step<1> a;
      Fp8RowScales<1> of_a;
      codes.load(ring_.wait() + offset, tile, lane_);
      a.place(codes);
      ring_.release();
      wgmma_fence();
      a.start(whole(rows_a), whole(rows_a + kGroup));
      of_a.load(scales_a);
      wgmma_wait<0>();
      a.add_to(sums, of_a);
    } else if (both < product.stages) {
      ring_.skip();  // others have one more
    }
    const std::uint32_t place = (joined * strips + strip) * kWarpSums + tile * kTileSums;
    wait_barrier(sync_.sums_free[turn_.place], turn_.parity);
    store_shared4(sums_ + turn_.place * (kSumsBytes / Fp8::kJoined) + place, sums[0]);
    arrive(sync_.sums_full[turn_.place]);
    turn_.next();
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

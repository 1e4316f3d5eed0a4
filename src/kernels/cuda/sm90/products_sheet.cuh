// SPDX-License-Identifier: Apache-2.0
// Steps of a sheet in fp16. For more than 8 rows on wgmma: four warps with neighbouring strips
// share an instruction, to which each brings 16 rows of weights in registers, while the activations
// stay in shared memory. Terms are added up in the order of products.cuh and with the same bits.
#pragma once

#include <cstdint>
#include <utility>

#include "kernels/cuda/sm90/arithmetic.hpp"
#include "kernels/cuda/sm90/products.cuh"
#include "kernels/cuda/sm90/sheets.cuh"
#include "kernels/cuda/sm90/wgmma.cuh"

namespace moxie::cuda::sm90 {

// D = A B, or D += A B: A 64 x 16 fp16, 16 rows of each of four warps; B 16 x 16, 24 or
// 32 fp16.
template <bool kAdds>
__device__ __forceinline__ void wgmma_fp16(float (&d)[2][4], const std::uint32_t (&a)[4],
                                           std::uint64_t b) {
  asm volatile(
      "{.reg .pred add; setp.ne.u32 add, %13, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7}, {%8,%9,%10,%11}, %12, add, 1, 1, 0;\n}"
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),
        "+f"(d[1][2]), "+f"(d[1][3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(kAdds ? 1 : 0));
}
template <bool kAdds>
__device__ __forceinline__ void wgmma_fp16(float (&d)[3][4], const std::uint32_t (&a)[4],
                                           std::uint64_t b) {
  asm volatile(
      "{.reg .pred add; setp.ne.u32 add, %17, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n24k16.f32.f16.f16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11}, {%12,%13,%14,%15}, %16, add, 1, 1, 0;\n}"
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),
        "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(kAdds ? 1 : 0));
}

template <bool kAdds>
__device__ __forceinline__ void wgmma_fp16(float (&d)[4][4], const std::uint32_t (&a)[4],
                                           std::uint64_t b) {
  asm volatile(
      "{.reg .pred add; setp.ne.u32 add, %21, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, {%16,%17,%18,%19}, %20, "
      "add, 1, 1, 0;\n}"
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),
        "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),
        "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(kAdds ? 1 : 0));
}

__device__ __forceinline__ void pin(std::uint32_t (&a)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) pin(a[i]);
}
template <int kTiles>
__device__ __forceinline__ void pin(float (&sums)[kTiles][4]) {
#pragma unroll
  for (int i = 0; i < 4 * kTiles; ++i) pin(sums[i / 4][i % 4]);
}

// A part of a step between two waits: its operands while the tensor cores read them, and what comes
// out. Of MXFP4 it is one group of one tile, whose sums are added up under its scale; of NVFP4 one
// tile, and its sums stay where they are.
template <BlockFormat kFormat, int kTiles>
struct Flight;

template <int kTiles>
struct Flight<BlockFormat::mxfp4, kTiles> {
  static constexpr int kOfStep = 4;
  std::uint32_t a[2][4];
  float sums[kTiles][4];

  // `cores`: the activations of the step.
  template <int kPart>
  __device__ __forceinline__ void start(Sums<kTiles>& /*sums*/,
                                        const Weights<BlockFormat::mxfp4>& step,
                                        std::uint32_t cores, const Powers& powers) {
    const uint4& q = step.quads[kPart / 2];
    place(kPart % 2 == 0 ? q.x : q.z, powers, a[0]);
    place(kPart % 2 == 0 ? q.y : q.w, powers, a[1]);
    pin(a[0]), pin(a[1]);
    wgmma_fence();
    wgmma_fp16<false>(sums, a[0], whole_cores<RowForm::fp16>(cores + kPart % 2 * 2 * kNextCores));
    wgmma_fp16<true>(sums, a[1],
                     whole_cores<RowForm::fp16>(cores + (kPart % 2 * 2 + 1) * kNextCores));
    wgmma_commit();
  }
  // Behind the wait for what start() began.
  template <int kPart>
  __device__ __forceinline__ void finish(Sums<kTiles>& to, const Weights<BlockFormat::mxfp4>& step,
                                         const Powers& powers) {
    constexpr std::uint32_t kExponent = 0x7F800000U;
    const std::uint32_t bytes = kPart / 2 == 0 ? step.scales.x : step.scales.y;
    const float upper =
        __uint_as_float(bytes * (kPart % 2 == 0 ? powers.of_23 : powers.of_7) & kExponent);
    const float lower =
        __uint_as_float((kPart % 2 == 0 ? bytes * powers.of_15 : bytes >> 1) & kExponent);
    pin(sums);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      float(&sum)[4] = to[kPart / 2][n];
      sum[0] = fmaf(sums[n][0], upper, sum[0]);
      sum[1] = fmaf(sums[n][1], upper, sum[1]);
      sum[2] = fmaf(sums[n][2], lower, sum[2]);
      sum[3] = fmaf(sums[n][3], lower, sum[3]);
    }
  }
};

template <int kTiles>
struct Flight<BlockFormat::nvfp4, kTiles> {
  static constexpr int kOfStep = 2;
  std::uint32_t a[4][4];

  template <int kPart>
  __device__ __forceinline__ void start(Sums<kTiles>& sums, const Weights<BlockFormat::nvfp4>& step,
                                        std::uint32_t cores, const Powers& powers) {
    std::uint32_t scales[2];
    scale_halves(step.scales.x, scales);
    const uint4& q = step.quads[kPart];
    const std::uint32_t words[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      place(words[word], powers, a[word]);
      a[word][0] = multiply_by_lower(a[word][0], scales[kPart]);
      a[word][1] = multiply_by_upper(a[word][1], scales[kPart]);
      a[word][2] = multiply_by_lower(a[word][2], scales[kPart]);
      a[word][3] = multiply_by_upper(a[word][3], scales[kPart]);
      pin(a[word]);
    }
    wgmma_fence();
#pragma unroll
    for (int word = 0; word < 4; ++word)
      wgmma_fp16<true>(sums[kPart], a[word], whole_cores<RowForm::fp16>(cores + word * kNextCores));
    wgmma_commit();
  }
  template <int kPart>
  __device__ __forceinline__ void finish(Sums<kTiles>& to,
                                         const Weights<BlockFormat::nvfp4>& /*step*/,
                                         const Powers& /*powers*/) {
    pin(to[kPart]);
  }
};

// One step of a warp. The operands of a part are made while the products of those before it are
// under way; all products are there when this returns. `cores`: the activations of the step.
template <BlockFormat kFormat, int kTiles>
__device__ __forceinline__ void multiply_shared(Sums<kTiles>& sums, const Weights<kFormat>& step,
                                                std::uint32_t cores, const Powers& powers) {
  constexpr int kFlights = kTiles > 3 ? 1 : 2;  // as many as registers allow
  constexpr int kParts = Flight<kFormat, kTiles>::kOfStep;
  Flight<kFormat, kTiles> flights[kFlights];
  const auto turn = [&]<int kPart>() {
    constexpr int kDone = kPart - kFlights;
    if constexpr (kDone >= 0) {
      wgmma_wait<(kPart < kParts ? kFlights - 1 : kParts - 1 - kDone)>();
      flights[kDone % kFlights].template finish<kDone>(sums, step, powers);
    }
    if constexpr (kPart < kParts)
      flights[kPart % kFlights].template start<kPart>(sums, step, cores, powers);
  };
  [&]<int... kPart>(std::integer_sequence<int, kPart...>) {
    (turn.template operator()<kPart>(), ...);
  }(std::make_integer_sequence<int, kParts + kFlights>{});
}

// 8 rows are quicker on each warp's own instructions.
template <BlockFormat kFormat, int kTiles>
struct SheetProducts<Fp16<kFormat>, kTiles> {
  template <int kUsed, class TReader>
  __device__ __forceinline__ static void add(Sums<kUsed>& sums, TReader& ring,
                                             const Product& product, std::uint32_t split,
                                             std::uint32_t warp, std::uint32_t lane,
                                             const Powers& powers) {
    const std::uint32_t steps = product.steps_of(split);
    const std::uint32_t weights = warp * step_bytes(kFormat);
    constexpr std::uint32_t kRows = kWarps * step_bytes(kFormat);
    if constexpr (kUsed == 1) {
      // Of four core matrices the lane names a row.
      const std::uint32_t row = kRows + lane / 8 * kCorePitch + lane % 8 * 16;
#pragma unroll 2
      for (std::uint32_t step = 0; step < steps; ++step) {
        Step<kFormat, 1> operands;
        const std::uint32_t stage = ring.wait();
        operands.load(stage + weights, lane);
        operands.rows[0][0] = load_matrices(stage + row);
        operands.rows[0][1] = load_matrices(stage + row + 4 * kCorePitch);
        ring.release();
        multiply(sums, operands, powers);
      }
    } else {
#pragma unroll 2
      for (std::uint32_t step = 0; step < steps; ++step) {
        Weights<kFormat> operands;
        const std::uint32_t stage = ring.wait();
        operands.load(stage + weights, lane);
        multiply_shared(sums, operands, cores_at(stage + kRows), powers);
        ring.release();
      }
    }
  }
};

}  // namespace moxie::cuda::sm90

// SPDX-License-Identifier: Apache-2.0
// Steps of a sheet on fp16 wgmma: four warps with neighbouring strips share an instruction, to which
// each brings 16 rows of weights in registers, while the activations stay in shared memory. Terms
// are added up in the order of products.cuh and with the same bits.
#pragma once

#include <cstdint>

#include "kernels/cuda/sm90/products.cuh"
#include "kernels/cuda/sm90/sheets.cuh"
#include "kernels/cuda/sm90/wgmma.cuh"

namespace moxie::cuda::sm90 {

// Matrix B of an instruction: two core matrices for every 8 rows, K-major without swizzle. Addresses
// count in 16 bytes.
__device__ __forceinline__ std::uint64_t cores_at(std::uint32_t at) {
  return std::uint64_t{kCoresBytes >> 4} << 32 | (at >> 4 | (kCorePitch >> 4) << 16);
}

// D = A B, or D += A B: A 64 x 16 fp16, 16 rows of each of four warps; B 16 x 16 or 24 fp16.
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

__device__ __forceinline__ void pin(std::uint32_t (&a)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) pin(a[i]);
}
template <int kTiles>
__device__ __forceinline__ void pin(float (&sums)[kTiles][4]) {
#pragma unroll
  for (int i = 0; i < 4 * kTiles; ++i) pin(sums[i / 4][i % 4]);
}

// MXFP4: the sums of one group of one tile on their way.
template <int kTiles>
struct GroupSums {
  std::uint32_t a[2][4];
  float sums[kTiles][4];

  // `rows`: where the group's columns are.
  __device__ __forceinline__ void start(std::uint32_t first, std::uint32_t second,
                                        std::uint32_t rows, const Powers& powers) {
    place(first, powers, a[0]);
    place(second, powers, a[1]);
    pin(a[0]), pin(a[1]);
    wgmma_fence();
    wgmma_fp16<false>(sums, a[0], cores_at(rows));
    wgmma_fp16<true>(sums, a[1], cores_at(rows + 2 * kCorePitch));
    wgmma_commit();
  }
  // Behind the wait for what start() began.
  __device__ __forceinline__ void add_to(float (&to)[kTiles][4], float upper, float lower) {
    pin(sums);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      to[n][0] = fmaf(sums[n][0], upper, to[n][0]);
      to[n][1] = fmaf(sums[n][1], upper, to[n][1]);
      to[n][2] = fmaf(sums[n][2], lower, to[n][2]);
      to[n][3] = fmaf(sums[n][3], lower, to[n][3]);
    }
  }
};

// The step whose sums are under way.
template <BlockFormat kFormat, int kTiles>
class SheetStep;

template <int kTiles>
class SheetStep<BlockFormat::mxfp4, kTiles> {
 public:
  // `weights`: the warp's, `rows` the activations' of the stage. What has been loaded of it is no
  // longer needed when this returns, but for the last group's activations.
  __device__ __forceinline__ void start(Sums<kTiles>& sums, std::uint32_t weights,
                                        std::uint32_t lane, std::uint32_t rows,
                                        const Powers& powers) {
    Weights<BlockFormat::mxfp4> step;
    step.load(weights, lane);
    const uint4& upper = step.quads[0];
    const uint4& lower = step.quads[1];
    const std::uint32_t next = rows + 4 * kCorePitch;
    flights_[0].start(upper.x, upper.y, rows, powers);
    flights_[1].start(upper.z, upper.w, next, powers);
    wgmma_wait<1>();
    add<0>(sums[0], flights_[0], step.scales.x, powers);
    flights_[0].start(lower.x, lower.y, rows, powers);
    wgmma_wait<1>();
    add<1>(sums[0], flights_[1], step.scales.x, powers);
    flights_[1].start(lower.z, lower.w, next, powers);
    wgmma_wait<1>();
    add<0>(sums[1], flights_[0], step.scales.y, powers);
    scales_ = step.scales.y;
  }
  __device__ __forceinline__ void finish(Sums<kTiles>& sums, const Powers& powers) {
    wgmma_wait<0>();
    add<1>(sums[1], flights_[1], scales_, powers);
  }

 private:
  template <int kGroup>
  __device__ __forceinline__ static void add(float (&to)[kTiles][4], GroupSums<kTiles>& group,
                                             std::uint32_t bytes, const Powers& powers) {
    constexpr std::uint32_t kExponent = 0x7F800000U;
    const float upper =
        __uint_as_float(bytes * (kGroup == 0 ? powers.of_23 : powers.of_7) & kExponent);
    const float lower =
        __uint_as_float((kGroup == 0 ? bytes * powers.of_15 : bytes >> 1) & kExponent);
    group.add_to(to, upper, lower);
  }

  GroupSums<kTiles> flights_[2];
  std::uint32_t scales_;
};

template <int kTiles>
class SheetStep<BlockFormat::nvfp4, kTiles> {
 public:
  __device__ __forceinline__ void start(Sums<kTiles>& sums, std::uint32_t weights,
                                        std::uint32_t lane, std::uint32_t rows,
                                        const Powers& powers) {
    Weights<BlockFormat::nvfp4> step;
    step.load(weights, lane);
    std::uint32_t pairs[4];
    scale_pairs(step.scales.x, pairs);
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
      const uint4 q = step.quads[tile];
      const std::uint32_t words[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        std::uint32_t(&a)[4] = a_[tile][word];
        place(words[word], powers, a);
#pragma unroll
        for (int i = 0; i < 4; ++i) a[i] = multiply_halves(a[i], pairs[2 * tile + i % 2]);
        pin(a);
      }
      wgmma_fence();
#pragma unroll
      for (int word = 0; word < 4; ++word)
        wgmma_fp16<true>(sums[tile], a_[tile][word], cores_at(rows + word * 2 * kCorePitch));
      wgmma_commit();
    }
  }
  __device__ __forceinline__ void finish(Sums<kTiles>& sums, const Powers& /*powers*/) {
    wgmma_wait<0>();
    pin(sums[0]), pin(sums[1]);
  }

 private:
  std::uint32_t a_[2][4][4];
};

}  // namespace moxie::cuda::sm90

// SPDX-License-Identifier: Apache-2.0
// MXFP4 weights times E4M3 activations on wgmma: E2M1 becomes E5M2 by masks, which is exact, and
// the sum of every group of 32 leaves the tensor core before it is multiplied by its power of two.
//
// Four warps share an instruction: each brings the 16 rows of one tile of weights in registers, and
// they all read the same 8, 16, 24 or 32 rows of activations from shared memory.
#pragma once

#include <cstdint>

#include "kernels/cuda/sm90/ptx.cuh"
#include "kernels/cuda/sm90/rows_fp8.cuh"
#include "kernels/cuda/sm90/tiles.hpp"
#include "kernels/cuda/sm90/wgmma.cuh"

namespace moxie::cuda::sm90 {

// Matrix B of an instruction for 8 rows, K-major without swizzle: the lower word of its descriptor,
// in which addresses count in 16 bytes. The upper one would be the distance to the next 8 rows.
__device__ __forceinline__ std::uint32_t descriptor(std::uint32_t at) {
  return __shfl_sync(0xFFFFFFFFU, at >> 4 | (kCoreBytes >> 4) << 16, 0);
}
__device__ __forceinline__ std::uint64_t whole(std::uint32_t descriptor) {
  return std::uint64_t{2 * kCoreBytes >> 4} << 32 | descriptor;
}

// D = A B: A 64 x 32 E5M2, 16 rows of each of four warps; B 32 x 8, 16, 24 or 32 E4M3.
__device__ __forceinline__ void wgmma(float (&d)[1][4], const std::uint32_t (&a)[4],
                                      std::uint64_t b) {
  asm volatile(
      "{.reg .pred add; setp.ne.u32 add, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n8k32.f32.e5m2.e4m3 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, %8, add, 1, 1;\n}"
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ __forceinline__ void wgmma(float (&d)[2][4], const std::uint32_t (&a)[4],
                                      std::uint64_t b) {
  asm volatile(
      "{.reg .pred add; setp.ne.u32 add, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n16k32.f32.e5m2.e4m3 "
      "{%0,%1,%2,%3,%4,%5,%6,%7}, {%8,%9,%10,%11}, %12, add, 1, 1;\n}"
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),
        "+f"(d[1][2]), "+f"(d[1][3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

__device__ __forceinline__ void wgmma(float (&d)[3][4], const std::uint32_t (&a)[4],
                                      std::uint64_t b) {
  asm volatile(
      "{.reg .pred add; setp.ne.u32 add, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n24k32.f32.e5m2.e4m3 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11}, {%12,%13,%14,%15}, %16, add, 1, 1;\n}"
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),
        "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

__device__ __forceinline__ void wgmma(float (&d)[4][4], const std::uint32_t (&a)[4],
                                      std::uint64_t b) {
  asm volatile(
      "{.reg .pred add; setp.ne.u32 add, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k32.f32.e5m2.e4m3 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, {%16,%17,%18,%19}, %20, "
      "add, 1, 1;\n}"
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),
        "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),
        "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// The scales of a lane's two rows of activations in each tile, under the columns of a step.
template <int kTiles>
struct Fp8RowScales {
  float2 of[kTiles];

  // `at`: the lane's, 32 bytes from tile to tile.
  __device__ __forceinline__ void load(std::uint32_t at) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const uint2 pair = load_shared2(at + n * 32);
      of[n] = make_float2(__uint_as_float(pair.x), __uint_as_float(pair.y));
    }
  }
};

// What one lane takes of one step: 16 rows of weights in 64 columns, with their scales.
struct Fp8Codes {
  uint4 quad;
  std::uint32_t scales;

  // `step`: where it starts; `tile` of it.
  __device__ __forceinline__ void load(std::uint32_t step, std::uint32_t tile, std::uint32_t lane) {
    quad = load_shared4(step + tile * 512 + lane * 16);
    scales = load_shared1(step + kStepCodes + lane / 4 * 8 + tile * 4);
  }
};

// And their products.
template <int kTiles>
struct Fp8Step {
  std::uint32_t a[2][4];  // of the two groups
  std::uint32_t scales;
  float group_sums[2][kTiles][4];

  __device__ __forceinline__ void place(const Fp8Codes& codes) {
    scales = codes.scales;
    const uint4& quad = codes.quad;
    constexpr std::uint32_t kMask = 0x8E8E8E8EU;
    const std::uint32_t words[4] = {quad.x, quad.y, quad.z, quad.w};
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      a[word / 2][word % 2 * 2] = words[word] & kMask;
      a[word / 2][word % 2 * 2 + 1] = __brev(words[word]) & kMask;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) pin(a[i / 4][i % 4]);
  }

  // Descriptors of the activations of both groups.
  __device__ __forceinline__ void start(std::uint64_t first, std::uint64_t second) {
    wgmma(group_sums[0], a[0], first);
    wgmma(group_sums[1], a[1], second);
    wgmma_commit();
  }

  // Behind the wait for what start() began.
  __device__ __forceinline__ void add_to(float (&sums)[kTiles][4],
                                         const Fp8RowScales<kTiles>& rows) {
    constexpr std::uint32_t kExponent = 0x7F800000U;
#pragma unroll
    for (int i = 0; i < 8 * kTiles; ++i) pin(group_sums[i / (4 * kTiles)][i / 4 % kTiles][i % 4]);
    const float upper[2] = {__uint_as_float(scales << 23 & kExponent),
                            __uint_as_float(scales << 7 & kExponent)};
    const float lower[2] = {__uint_as_float(scales << 15 & kExponent),
                            __uint_as_float(scales >> 1 & kExponent)};
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float(&factor)[2] = i < 2 ? upper : lower;
        const float sum = fmaf(group_sums[1][n][i], factor[1], group_sums[0][n][i] * factor[0]);
        sums[n][i] = fmaf(sum, i % 2 == 0 ? rows.of[n].x : rows.of[n].y, sums[n][i]);
      }
    }
  }
};

}  // namespace moxie::cuda::sm90

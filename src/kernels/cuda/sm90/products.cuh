// SPDX-License-Identifier: Apache-2.0
// One step of a warp: 32 rows x 64 columns of weights from shared memory times 8 rows of
// activations or several times 8, on fp16 MMAs. Products are exact; MXFP4 sums of a group are added
// to fp32 under the group's power of two, NVFP4 weights are multiplied by their block scale before,
// which is exact too.
#pragma once

#include <cstdint>

#include "kernels/cuda/sm90/call.hpp"
#include "kernels/cuda/sm90/ptx.cuh"
#include "kernels/cuda/sm90/tiles.hpp"

namespace moxie::cuda::sm90 {

// Sums are those of weights times 2^-14 (see tiles.hpp).
inline constexpr float kPlacedMul = 16384.0F;

// Eight codes to the A operand of one MMA, columns 1 and 3 before 0 and 2.
__device__ __forceinline__ void place(std::uint32_t word, const Powers& powers,
                                      std::uint32_t (&a)[4]) {
  constexpr std::uint32_t kMask = 0x8E008E00U;
  const std::uint32_t mirrored = __brev(word);
  a[0] = word & kMask;
  a[1] = mirrored & kMask;
  a[2] = word * powers.of_8 & kMask;
  a[3] = mirrored * powers.of_8 & kMask;
}

// sums[tile][n]: rows 16 tile .. of the strip, activation rows 8 n ..
template <int kTiles>
using Sums = float[2][kTiles][4];

// The weights of one step of one lane in registers.
template <BlockFormat kFormat>
struct Weights {
  uint4 quads[2];  // of the two tiles
  uint2 scales;    // MXFP4: of the tiles; NVFP4: x alone, all four

  // `step` is where the warp's step starts.
  __device__ __forceinline__ void load(std::uint32_t step, std::uint32_t lane) {
    quads[0] = load_shared4(step + lane * 16);
    quads[1] = load_shared4(step + 512 + lane * 16);
    if constexpr (kFormat == BlockFormat::mxfp4) {
      scales = load_shared2(step + kStepCodes + lane / 4 * 8);
    } else {
      scales.x = load_shared1(step + kStepCodes + lane * 4);
    }
  }
};

// And the activations that meet them.
template <BlockFormat kFormat, int kTiles>
struct Step : Weights<kFormat> {
  uint4 rows[kTiles][2];

  // `at` is the lane's first row at its first column of the step.
  __device__ __forceinline__ void load_rows(std::uint32_t at, std::uint32_t row_bytes) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      rows[n][0] = load_shared4(at + n * 8 * row_bytes);
      rows[n][1] = load_shared4(at + n * 8 * row_bytes + (kFormat == BlockFormat::mxfp4 ? 64 : 16));
    }
  }
};

template <int kTiles>
__device__ __forceinline__ void multiply(Sums<kTiles>& sums,
                                         const Step<BlockFormat::mxfp4, kTiles>& step,
                                         const Powers& powers) {
  constexpr std::uint32_t kExponent = 0x7F800000U;
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
    const uint4 q = step.quads[tile];
    const std::uint32_t bytes = tile == 0 ? step.scales.x : step.scales.y;
#pragma unroll
    for (int group = 0; group < 2; ++group) {
      std::uint32_t first[4];
      std::uint32_t second[4];
      place(group == 0 ? q.x : q.z, powers, first);
      place(group == 0 ? q.y : q.w, powers, second);
      const float upper =
          __uint_as_float(bytes * (group == 0 ? powers.of_23 : powers.of_7) & kExponent);
      const float lower =
          __uint_as_float((group == 0 ? bytes * powers.of_15 : bytes >> 1) & kExponent);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const uint4 x = step.rows[n][group];
        float group_sums[4] = {};
        mma(group_sums, first, x.x, x.y);
        mma(group_sums, second, x.z, x.w);
        float(&to)[4] = sums[tile][n];
        to[0] = fmaf(group_sums[0], upper, to[0]);
        to[1] = fmaf(group_sums[1], upper, to[1]);
        to[2] = fmaf(group_sums[2], lower, to[2]);
        to[3] = fmaf(group_sums[3], lower, to[3]);
      }
    }
  }
}

// Four E4M3 scales to fp16: of the rows g and g + 8 of either tile.
__device__ __forceinline__ void scale_halves(std::uint32_t bytes, std::uint32_t (&scales)[2]) {
  asm("{.reg .b16 a,b; mov.b32 {a,b},%2; cvt.rn.f16x2.e4m3x2 %0,a; cvt.rn.f16x2.e4m3x2 %1,b;}"
      : "=r"(scales[0]), "=r"(scales[1])
      : "r"(bytes));
}

template <int kTiles>
__device__ __forceinline__ void multiply(Sums<kTiles>& sums,
                                         const Step<BlockFormat::nvfp4, kTiles>& step,
                                         const Powers& powers) {
  std::uint32_t scales[2];
  scale_halves(step.scales.x, scales);
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
    const uint4 q = step.quads[tile];
    const std::uint32_t words[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      std::uint32_t a[4];
      place(words[word], powers, a);
      a[0] = multiply_by_lower(a[0], scales[tile]);
      a[1] = multiply_by_upper(a[1], scales[tile]);
      a[2] = multiply_by_lower(a[2], scales[tile]);
      a[3] = multiply_by_upper(a[3], scales[tile]);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const uint4 x = step.rows[n][word / 2];
        mma(sums[tile][n], a, word % 2 == 0 ? x.x : x.z, word % 2 == 0 ? x.y : x.w);
      }
    }
  }
}

// Bytes from one activation row to the next in shared memory, of which a lane group reads 64 at a
// time: the banks of neighbouring rows differ.
__host__ __device__ constexpr std::uint32_t row_bytes_of(BlockFormat format,
                                                         std::uint32_t columns) {
  return columns * 2 + (format == BlockFormat::mxfp4 ? 64 : 16);
}
// Where a lane finds its activations in the row lane / 4: its first column of a step.
__device__ __forceinline__ std::uint32_t lane_offset(BlockFormat format, std::uint32_t lane) {
  return lane % 4 * (format == BlockFormat::mxfp4 ? 16 : 32);
}

}  // namespace moxie::cuda::sm90

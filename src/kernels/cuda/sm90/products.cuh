// SPDX-License-Identifier: Apache-2.0
// One step of a warp: 32 rows x 64 columns of weights from shared memory times 8 or 16 rows of
// activations, on fp16 MMAs. Products are exact; MXFP4 sums of a group are added to fp32 under the
// group's power of two, NVFP4 weights are multiplied by their block scale before, which is exact
// too.
#pragma once

#include <cstdint>

#include "kernels/cuda/sm90/ptx.cuh"
#include "kernels/cuda/sm90/tiles.hpp"

namespace moxie::cuda::sm90 {

// Sums are those of weights times 2^-14 (see tiles.hpp).
inline constexpr float kPlacedMul = 16384.0F;

// Eight codes to the A operand of one MMA, columns 1 and 3 before 0 and 2.
__device__ __forceinline__ void place(std::uint32_t word, std::uint32_t (&a)[4]) {
  constexpr std::uint32_t kMask = 0x8E008E00U;
  const std::uint32_t mirrored = __brev(word);
  a[0] = word & kMask;
  a[1] = mirrored & kMask;
  a[2] = word << 8 & kMask;
  a[3] = mirrored << 8 & kMask;
}

// sums[tile][n]: rows 16 tile .. of the strip, activation rows 8 n ..
template <int kTiles>
using Sums = float[2][kTiles][4];

// One step of one lane in registers. Its columns are two halves: groups of 32 of MXFP4, pairs of
// groups of 16 of NVFP4's lanes.
template <BlockFormat kFormat, int kTiles>
struct Step {
  uint4 quads[2];  // of the two tiles
  uint2 scales;    // MXFP4: of the tiles; NVFP4: x alone, all four
  uint4 rows[kTiles][2];

  // `step` is where the warp's step starts.
  __device__ __forceinline__ void load_weights(std::uint32_t step, std::uint32_t lane) {
    quads[0] = load_shared4(step + lane * 16);
    quads[1] = load_shared4(step + 512 + lane * 16);
    if constexpr (kFormat == BlockFormat::mxfp4) {
      scales = load_shared2(step + kStepCodes + lane / 4 * 8);
    } else {
      scales.x = load_shared1(step + kStepCodes + lane * 4);
    }
  }
  // `at`: the lane's first activation row at its first column of the step.
  template <int kHalf>
  __device__ __forceinline__ void load_rows(int tile, std::uint32_t at, std::uint32_t row_bytes) {
    constexpr std::uint32_t kApart = kFormat == BlockFormat::mxfp4 ? 64 : 16;
    rows[tile][kHalf] = load_shared4(at + tile * 8 * row_bytes + kHalf * kApart);
  }
};

// The factors of a step's weights: powers of two of sums where the format is MXFP4.
template <BlockFormat kFormat>
struct Factors;

template <>
struct Factors<BlockFormat::mxfp4> {
  std::uint32_t bytes[2];  // of the tiles
  __device__ __forceinline__ explicit Factors(const uint2& scales) : bytes{scales.x, scales.y} {}
};

// Pairs of equal halves.
template <>
struct Factors<BlockFormat::nvfp4> {
  std::uint32_t pairs[4];
  __device__ __forceinline__ explicit Factors(const uint2& scales) {
    std::uint32_t low;
    std::uint32_t high;
    asm("{.reg .b16 a,b; mov.b32 {a,b},%2; cvt.rn.f16x2.e4m3x2 %0,a; cvt.rn.f16x2.e4m3x2 %1,b;}"
        : "=r"(low), "=r"(high)
        : "r"(scales.x));
    pairs[0] = permute(low, 0, 0x1010);
    pairs[1] = permute(low, 0, 0x3232);
    pairs[2] = permute(high, 0, 0x1010);
    pairs[3] = permute(high, 0, 0x3232);
  }
};

// One half of a step's columns, 16 rows of its weights.
template <int kHalf, int kTiles>
__device__ __forceinline__ void multiply_half(Sums<kTiles>& sums,
                                              const Step<BlockFormat::mxfp4, kTiles>& step,
                                              const Factors<BlockFormat::mxfp4>& factors,
                                              int tile) {
  constexpr std::uint32_t kExponent = 0x7F800000U;
  const uint4 q = step.quads[tile];
  const std::uint32_t bytes = factors.bytes[tile];
  std::uint32_t first[4];
  std::uint32_t second[4];
  place(kHalf == 0 ? q.x : q.z, first);
  place(kHalf == 0 ? q.y : q.w, second);
  const float upper = __uint_as_float((kHalf == 0 ? bytes << 23 : bytes << 7) & kExponent);
  const float lower = __uint_as_float((kHalf == 0 ? bytes << 15 : bytes >> 1) & kExponent);
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    const uint4 x = step.rows[n][kHalf];
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

template <int kHalf, int kTiles>
__device__ __forceinline__ void multiply_half(Sums<kTiles>& sums,
                                              const Step<BlockFormat::nvfp4, kTiles>& step,
                                              const Factors<BlockFormat::nvfp4>& factors,
                                              int tile) {
  const uint4 q = step.quads[tile];
#pragma unroll
  for (int word = 0; word < 2; ++word) {
    std::uint32_t a[4];
    place(kHalf == 0 ? (word == 0 ? q.x : q.y) : (word == 0 ? q.z : q.w), a);
    a[0] = multiply_halves(a[0], factors.pairs[2 * tile]);
    a[1] = multiply_halves(a[1], factors.pairs[2 * tile + 1]);
    a[2] = multiply_halves(a[2], factors.pairs[2 * tile]);
    a[3] = multiply_halves(a[3], factors.pairs[2 * tile + 1]);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const uint4 x = step.rows[n][kHalf];
      mma(sums[tile][n], a, word == 0 ? x.x : x.z, word == 0 ? x.y : x.w);
    }
  }
}

// Loads a step, calls release() and multiplies. Rows of more than 16 tokens come one half after
// the other: fewer registers.
template <BlockFormat kFormat, int kTiles, class Release>
__device__ __forceinline__ void multiply_step(Sums<kTiles>& sums, std::uint32_t weights,
                                              std::uint32_t lane, std::uint32_t rows,
                                              std::uint32_t row_bytes, const Release& release) {
  Step<kFormat, kTiles> step;
  step.load_weights(weights, lane);
  if constexpr (kTiles > 2) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) step.template load_rows<0>(n, rows, row_bytes);
    const Factors<kFormat> factors(step.scales);
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) multiply_half<0>(sums, step, factors, tile);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) step.template load_rows<1>(n, rows, row_bytes);
    release();
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) multiply_half<1>(sums, step, factors, tile);
  } else {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      step.template load_rows<0>(n, rows, row_bytes);
      step.template load_rows<1>(n, rows, row_bytes);
    }
    release();
    const Factors<kFormat> factors(step.scales);
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
      multiply_half<0>(sums, step, factors, tile);
      multiply_half<1>(sums, step, factors, tile);
    }
  }
}

// Bytes from one activation row to the next in shared memory, of which a lane group reads 64 at a
// time: the banks of neighbouring rows differ.
__host__ __device__ constexpr std::uint32_t row_bytes_of(BlockFormat format,
                                                         std::uint32_t columns) {
  return columns * 2 + (format == BlockFormat::mxfp4 ? 64 : 16);
}
// Where a lane finds its activations: its row, and its first column of a step.
__device__ __forceinline__ std::uint32_t lane_offset(BlockFormat format, std::uint32_t lane,
                                                     std::uint32_t row_bytes) {
  return lane / 4 * row_bytes + lane % 4 * (format == BlockFormat::mxfp4 ? 16 : 32);
}

}  // namespace moxie::cuda::sm90

// SPDX-License-Identifier: Apache-2.0
// Rows of activations as the MMAs take them: quantised to the act format, then fp16 times a power
// of two per row that lifts the row's largest magnitude to [2^7, 2^8). Values of 8 bits stay exact
// down to 2^-24 of the largest; smaller ones lose what fp16's subnormals do not hold, 2^-32 of it.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "formats/act_quant.hpp"
#include "kernels/cuda/sm90/call.hpp"
#include "kernels/cuda/sm90/ptx.cuh"

namespace moxie::cuda::sm90 {

inline constexpr unsigned kChunk = 8;  // columns that a thread takes at once

__device__ __forceinline__ std::uint32_t magnitude_bits(float value) {
  return __float_as_uint(value) & 0x7FFFFFFFU;
}

// A matrix of rows in device memory that other blocks may have written: loads pass the first-level
// cache.
struct RowsOf {
  const void* data;
  std::uint64_t stride;  // elements
  std::uint32_t columns;
  bool is_f32;
  bool aligned;  // rows start at multiples of 16 bytes

  __device__ void load(std::uint64_t row, std::uint32_t column, float (&values)[kChunk]) const {
    const std::uint64_t at = row * stride + column;
    if (is_f32) {
      const float* from = static_cast<const float*>(data) + at;
      if (aligned) {
        const float4 a = __ldcg(reinterpret_cast<const float4*>(from));
        const float4 b = __ldcg(reinterpret_cast<const float4*>(from) + 1);
        values[0] = a.x, values[1] = a.y, values[2] = a.z, values[3] = a.w;
        values[4] = b.x, values[5] = b.y, values[6] = b.z, values[7] = b.w;
        return;
      }
      for (unsigned i = 0; i < kChunk; ++i) values[i] = __ldcg(from + i);
      return;
    }
    const std::uint16_t* from = static_cast<const std::uint16_t*>(data) + at;
    if (aligned) {
      const uint4 a = __ldcg(reinterpret_cast<const uint4*>(from));
      const std::uint32_t words[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
      for (unsigned i = 0; i < 4; ++i) {
        values[2 * i] = __uint_as_float(words[i] << 16);
        values[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000U);
      }
      return;
    }
    for (unsigned i = 0; i < kChunk; ++i)
      values[i] = __uint_as_float(static_cast<std::uint32_t>(__ldcg(from + i)) << 16);
  }
};

__device__ inline RowsOf rows_of_x(const Call& call) {
  const MatrixRef& x = call.args.x;
  const bool is_f32 = x.dtype == DType::f32;
  const std::uint64_t row_bytes = x.row_stride * (is_f32 ? 4 : 2);
  const bool aligned = (reinterpret_cast<std::uint64_t>(x.data) | row_bytes) % 16 == 0;
  return {x.data, x.row_stride, static_cast<std::uint32_t>(x.cols), is_f32, aligned};
}
__device__ inline RowsOf rows_of_act(const Call& call) {
  const std::uint64_t inter = call.args.shape.inter;
  return {call.work.act, inter, static_cast<std::uint32_t>(inter), call.wide_acts, true};
}

// The power of two that lifts a row with this amax, and its inverse. A row with Inf or NaN keeps
// them whatever the factor is; its finite values then must not overflow.
struct RowScale {
  float lift;
  float lower;
};
__device__ __forceinline__ RowScale row_scale(std::uint32_t amax_bits) {
  constexpr std::uint32_t kLeast = 8;  // below it the factor is no number
  constexpr std::uint32_t kMost = 254;
  const std::uint32_t exponent = min(max(amax_bits >> 23, kLeast), kMost);
  return {__uint_as_float((261 - exponent) << 23), __uint_as_float((exponent - 7) << 23)};
}

// 2^ceil(log2(ratio)) of a normal number, and its inverse.
__device__ __forceinline__ float power_of_two_above(float ratio) {
  return __uint_as_float((__float_as_uint(ratio) + 0x7FFFFFU) & 0x7F800000U);
}

// Quantises the thread's eight columns of a row, with the bits of formats/act_quant.hpp. All lanes
// of a warp take neighbouring columns, so that groups are whole in a warp; a lane past the end of
// the row brings zeros.
__device__ __forceinline__ void quantise_chunk(ActFormat format, float (&values)[kChunk]) {
  if (format == ActFormat::bf16) {
#pragma unroll
    for (unsigned i = 0; i < kChunk; ++i)
      values[i] = __bfloat162float(__float2bfloat16_rn(values[i]));
    return;
  }
  float amax = 0;  // fmaxf() passes NaN over, as it must
#pragma unroll
  for (unsigned i = 0; i < kChunk; ++i) amax = fmaxf(amax, fabsf(values[i]));
  const int lanes = format == ActFormat::fp8 ? 128 / kChunk : 32 / kChunk;
#pragma unroll
  for (int step = 8; step > 0; step /= 2) {
    const float other = __shfl_xor_sync(0xFFFFFFFFU, amax, step);
    if (step < lanes) amax = fmaxf(amax, other);
  }
  // Inf saturates to the largest finite power, 2^127, as E8M0 does.
  const float scale = fminf(power_of_two_above(__fdiv_rn(fmaxf(amax, 1e-4F), kE4m3Max)), 0x1p127F);
  const float inverse = __uint_as_float(0x7F000000U - __float_as_uint(scale));
#pragma unroll
  for (unsigned i = 0; i < kChunk; i += 2) {
    std::uint16_t codes;
    std::uint32_t halves;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;"
        : "=h"(codes)
        : "f"(values[i + 1] * inverse), "f"(values[i] * inverse));
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(codes));
    const float2 pair = __half22float2(reinterpret_cast<const __half2&>(halves));
    values[i] = pair.x * scale;
    values[i + 1] = pair.y * scale;
  }
}

// Puts `count` rows into shared memory, `row_bytes` apart from `to` on, with kThreads threads of
// which this is one; loads of several rows are on their way at once.
__device__ inline void place_rows(std::uint32_t thread, ActFormat format,
                                  const RowsOf& rows,
                                  const std::uint32_t* row, const std::uint32_t* amax,
                                  std::uint32_t count, std::uint32_t to,
                                  std::uint32_t row_bytes) {
  constexpr std::uint32_t kAtOnce = 4;
  for (std::uint32_t first = 0; first < rows.columns; first += kThreads * kChunk) {
    const std::uint32_t column = first + thread * kChunk;
    const bool mine = column < rows.columns;
    for (std::uint32_t base = 0; base < count; base += kAtOnce) {
      float values[kAtOnce][kChunk] = {};
#pragma unroll
      for (std::uint32_t i = 0; i < kAtOnce; ++i) {
        if (mine && base + i < count) rows.load(row[base + i], column, values[i]);
      }
#pragma unroll
      for (std::uint32_t i = 0; i < kAtOnce; ++i) {
        if (base + i >= count) break;
        quantise_chunk(format, values[i]);
        if (!mine) continue;
        const float lift = row_scale(amax[base + i]).lift;
        std::uint32_t words[4];
#pragma unroll
        for (unsigned j = 0; j < 4; ++j) {
          const __half2 pair =
              __floats2half2_rn(values[i][2 * j] * lift, values[i][2 * j + 1] * lift);
          words[j] = reinterpret_cast<const std::uint32_t&>(pair);
        }
        asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(to + (base + i) * row_bytes +
                                                                  column * 2),
                     "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
                     : "memory");
      }
    }
  }
}

}  // namespace moxie::cuda::sm90

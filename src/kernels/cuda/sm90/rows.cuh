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
#include "kernels/cuda/sm90/values.cuh"

namespace moxie::cuda::sm90 {

inline constexpr unsigned kChunk = 8;  // columns that a thread takes at once

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
  // Of f32 that another block is storing.
  __device__ void await(std::uint64_t row, std::uint32_t column, float (&values)[kChunk]) const {
    const float* from = static_cast<const float*>(data) + row * stride + column;
#pragma unroll
    for (unsigned i = 0; i < kChunk; i += 4) {
      uint4 words = look(from + i);
      while (has_unwritten(words)) words = look(from + i);
      values[i] = __uint_as_float(words.x), values[i + 1] = __uint_as_float(words.y);
      values[i + 2] = __uint_as_float(words.z), values[i + 3] = __uint_as_float(words.w);
    }
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

// The scale of the group that the thread's eight columns of a row belong to, and its inverse: as
// formats/act_quant.hpp has it for E4M3. All lanes of a warp take neighbouring columns, so that
// groups are whole in a warp; a lane past the end of the row brings zeros.
struct GroupScale {
  float scale;
  float inverse;
};
__device__ __forceinline__ GroupScale group_scale(const float (&values)[kChunk], int columns) {
  float amax = 0;  // fmaxf() passes NaN over, as it must
#pragma unroll
  for (unsigned i = 0; i < kChunk; ++i) amax = fmaxf(amax, fabsf(values[i]));
  const int lanes = columns / static_cast<int>(kChunk);
#pragma unroll
  for (int step = 8; step > 0; step /= 2) {
    const float other = __shfl_xor_sync(0xFFFFFFFFU, amax, step);
    if (step < lanes) amax = fmaxf(amax, other);
  }
  // Inf saturates to the largest finite power, 2^127, as E8M0 does.
  const float scale = fminf(power_of_two_above(__fdiv_rn(fmaxf(amax, 1e-4F), kE4m3Max)), 0x1p127F);
  // 2^-127, the inverse of the largest, is no normal number.
  return {scale, __uint_as_float(max(0x7F000000U - __float_as_uint(scale), 0x00400000U))};
}

// Codes of two values, the first in the lower byte.
__device__ __forceinline__ std::uint32_t e4m3_pair(float first, float second) {
  std::uint16_t codes;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(second), "f"(first));
  return codes;
}

// Quantises the thread's eight columns of a row, with the bits of formats/act_quant.hpp; see
// group_scale().
__device__ __forceinline__ void quantise_chunk(ActFormat format, float (&values)[kChunk]) {
  if (format == ActFormat::bf16) {
#pragma unroll
    for (unsigned i = 0; i < kChunk; ++i)
      values[i] = __bfloat162float(__float2bfloat16_rn(values[i]));
    return;
  }
  const GroupScale group = group_scale(values, format == ActFormat::fp8 ? 128 : 32);
#pragma unroll
  for (unsigned i = 0; i < kChunk; i += 2) {
    std::uint32_t halves;
    const auto codes = static_cast<std::uint16_t>(
        e4m3_pair(values[i] * group.inverse, values[i + 1] * group.inverse));
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(codes));
    const float2 pair = __half22float2(reinterpret_cast<const __half2&>(halves));
    values[i] = pair.x * group.scale;
    values[i + 1] = pair.y * group.scale;
  }
}

// By one warp, for whoever checks it: a row of activations as the down product has it.
__device__ inline void tap_row(const Call& call, std::uint32_t slot) {
  const RowsOf rows = rows_of_act(call);
  float* to = call.args.act_tap + std::uint64_t{slot} * rows.columns;
  for (std::uint32_t first = 0; first < rows.columns; first += 32 * kChunk) {
    const std::uint32_t column = first + threadIdx.x % 32 * kChunk;
    float values[kChunk] = {};
    if (column < rows.columns) rows.load(slot, column, values);
    quantise_chunk(call.args.shape.act_format, values);
    if (column >= rows.columns) continue;
    for (unsigned i = 0; i < kChunk; ++i) to[column + i] = values[i];
  }
  __syncwarp();
}

// bf16 pairs of eight values; exact for what a format has quantised.
__device__ __forceinline__ uint4 pack_bf16(const float (&values)[kChunk]) {
  std::uint32_t words[4];
#pragma unroll
  for (unsigned i = 0; i < 4; ++i) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(values[2 * i], values[2 * i + 1]);
    words[i] = reinterpret_cast<const std::uint32_t&>(pair);
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

// Largest magnitude of eight bf16 values, as the bits of an f32; NaN counts as larger than Inf.
__device__ __forceinline__ std::uint32_t amax_bits(const uint4& pairs) {
  constexpr std::uint32_t kMagnitudes = 0x7FFF7FFFU;
  const std::uint32_t most = __vmaxu2(__vmaxu2(pairs.x & kMagnitudes, pairs.y & kMagnitudes),
                                      __vmaxu2(pairs.z & kMagnitudes, pairs.w & kMagnitudes));
  return max(most << 16, most & 0xFFFF0000U);
}

// Eight bf16 values as fp16 times `lift`; of four columns 1 and 3, then 0 and 2 (see place()).
__device__ __forceinline__ uint4 lifted(const uint4& pairs, float lift) {
  const std::uint32_t words[4] = {pairs.x, pairs.y, pairs.z, pairs.w};
  std::uint32_t halves[4];
#pragma unroll
  for (unsigned i = 0; i < 4; i += 2) {
    const __half2 odd = __floats2half2_rn(__uint_as_float(words[i] & 0xFFFF0000U) * lift,
                                          __uint_as_float(words[i + 1] & 0xFFFF0000U) * lift);
    const __half2 even = __floats2half2_rn(__uint_as_float(words[i] << 16) * lift,
                                           __uint_as_float(words[i + 1] << 16) * lift);
    halves[i] = reinterpret_cast<const std::uint32_t&>(odd);
    halves[i + 1] = reinterpret_cast<const std::uint32_t&>(even);
  }
  return make_uint4(halves[0], halves[1], halves[2], halves[3]);
}

// Rows into shared memory, `row_bytes` apart from `to` on, by kThreads threads in two steps with a
// barrier between them: as bf16, which measures them, and then as fp16, lifted.
struct RowPlace {
  std::uint32_t to;
  std::uint32_t row_bytes;
  std::uint32_t count;
  const std::uint32_t* row;  // [count], of the matrix
  std::uint32_t* amax;       // [count] shared, zero before the first step
};

// All loads of a step are on their way before the first is used.
// An awaited row is loaded until all of it is there.
template <bool kAwaits, std::uint32_t kAtOnce, class Load>
__device__ __forceinline__ void stage_rows(const RowPlace& place, std::uint32_t thread,
                                           std::uint32_t columns, const Load& load) {
  for (std::uint32_t first = 0; first < columns; first += kThreads * kChunk) {
    const std::uint32_t column = first + thread * kChunk;
    const bool mine = column < columns;
    for (std::uint32_t base = 0; base < place.count; base += kAtOnce) {
      uint4 pairs[kAtOnce];
#pragma unroll
      for (std::uint32_t i = 0; i < kAtOnce; ++i) {
        pairs[i] = make_uint4(0, 0, 0, 0);
        if (base + i < place.count) pairs[i] = load(place.row[base + i], column, mine);
      }
      for (bool again = kAwaits; again;) {
        again = false;
#pragma unroll
        for (std::uint32_t i = 0; i < kAtOnce; ++i) {
          if (!has_unwritten_halves(pairs[i])) continue;
          pairs[i] = load(place.row[base + i], column, mine);
          again = true;
        }
        again = __any_sync(0xFFFFFFFFU, again);
      }
#pragma unroll
      for (std::uint32_t i = 0; i < kAtOnce; ++i) {
        if (base + i >= place.count) break;
        const std::uint32_t amax = __reduce_max_sync(0xFFFFFFFFU, amax_bits(pairs[i]));
        if (thread % 32 == 0) atomicMax(place.amax + base + i, amax);
        if (mine) store_shared4(place.to + (base + i) * place.row_bytes + column * 2, pairs[i]);
      }
    }
  }
}

template <bool kAwaits>
__device__ inline void stage_rows(ActFormat format, const RowsOf& rows, const RowPlace& place,
                                  std::uint32_t thread) {
  if (format == ActFormat::bf16 && !rows.is_f32 && rows.aligned) {
    const auto* from = static_cast<const std::uint16_t*>(rows.data);
    stage_rows<kAwaits, 8>(place, thread, rows.columns,
                           [&](std::uint32_t row, std::uint32_t column, bool mine) {
                             if (!mine) return make_uint4(0, 0, 0, 0);
                             const auto* chunk = from + row * rows.stride + column;
                             if constexpr (kAwaits) return look(chunk);
                             return __ldcg(reinterpret_cast<const uint4*>(chunk));
                           });
    return;
  }
  stage_rows<false, 2>(place, thread, rows.columns,
                       [&](std::uint32_t row, std::uint32_t column, bool mine) {
                         float values[kChunk] = {};
                         if constexpr (kAwaits) {
                           if (mine) rows.await(row, column, values);
                           __syncwarp();
                         } else if (mine) {
                           rows.load(row, column, values);
                         }
                         quantise_chunk(format, values);
                         return pack_bf16(values);
                       });
}

__device__ inline void lift_rows(const RowPlace& place, std::uint32_t thread,
                                 std::uint32_t columns) {
  for (std::uint32_t column = thread * kChunk; column < columns; column += kThreads * kChunk) {
#pragma unroll 2
    for (std::uint32_t row = 0; row < place.count; ++row) {
      const std::uint32_t at = place.to + row * place.row_bytes + column * 2;
      const float lift = row_scale(place.amax[row]).lift;
      store_shared4(at, lifted(load_shared4(at), lift));
    }
  }
}

}  // namespace moxie::cuda::sm90

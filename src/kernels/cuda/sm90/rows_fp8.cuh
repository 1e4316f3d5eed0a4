// SPDX-License-Identifier: Apache-2.0
// Rows of activations as the FP8 tensor cores take them: E4M3 codes, and a power of two for every
// 128 columns of a row.
#pragma once

#include <cstdint>

#include "kernels/cuda/sm90/call.hpp"
#include "kernels/cuda/sm90/ptx.cuh"
#include "kernels/cuda/sm90/rows.cuh"
#include "kernels/cuda/sm90/tiles.hpp"

namespace moxie::cuda::sm90 {

// Eight rows in shared memory: for every 32 columns two core matrices of 8 rows x 16 bytes. A
// lane's 8 columns of a group (see word_column()) lie half in the one, half in the other. Between
// groups are 16 bytes more, so that neighbouring groups begin in other banks.
inline constexpr std::uint32_t kCoreBytes = 128;
inline constexpr std::uint32_t kFp8GroupBytes = 2 * kCoreBytes + 16;
// Of the first four of the eight columns from `column` on; the others are kCoreBytes later.
__device__ __forceinline__ std::uint32_t fp8_offset(std::uint32_t row, std::uint32_t column) {
  return column / 32 * kFp8GroupBytes + row * 16 + column % 32 / 2;
}

// Scales stand beside the rows, for every step (two steps have the same): f32 [columns / 64, 8].
struct Fp8Place {
  std::uint32_t to;
  std::uint32_t scales;
  std::uint32_t count;
  const std::uint32_t* row;  // [count], of the matrix
};

// Eight values as they lie in memory.
struct Bf16Chunk {
  uint4 raw;
  __device__ __forceinline__ void load(const RowsOf& rows, std::uint64_t row,
                                       std::uint32_t column) {
    raw = __ldcg(reinterpret_cast<const uint4*>(static_cast<const std::uint16_t*>(rows.data) +
                                                row * rows.stride + column));
  }
  __device__ __forceinline__ void unpack(float (&values)[kChunk]) const {
    const std::uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
      values[2 * i] = __uint_as_float(words[i] << 16);
      values[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000U);
    }
  }
};
struct F32Chunk {  // of rows that are aligned
  float raw[kChunk];
  __device__ __forceinline__ void load(const RowsOf& rows, std::uint64_t row,
                                       std::uint32_t column) {
    const auto* from = reinterpret_cast<const float4*>(static_cast<const float*>(rows.data) +
                                                       row * rows.stride + column);
    const float4 a = __ldcg(from);
    const float4 b = __ldcg(from + 1);
    raw[0] = a.x, raw[1] = a.y, raw[2] = a.z, raw[3] = a.w;
    raw[4] = b.x, raw[5] = b.y, raw[6] = b.z, raw[7] = b.w;
  }
  __device__ __forceinline__ void unpack(float (&values)[kChunk]) const {
#pragma unroll
    for (unsigned i = 0; i < kChunk; ++i) values[i] = raw[i];
  }
};
struct AnyChunk {
  float raw[kChunk];
  __device__ __forceinline__ void load(const RowsOf& rows, std::uint64_t row,
                                       std::uint32_t column) {
    rows.load(row, column, raw);
  }
  __device__ __forceinline__ void unpack(float (&values)[kChunk]) const {
#pragma unroll
    for (unsigned i = 0; i < kChunk; ++i) values[i] = raw[i];
  }
};

struct AwaitedChunk : AnyChunk {
  __device__ __forceinline__ void load(const RowsOf& rows, std::uint64_t row,
                                       std::uint32_t column) {
    rows.await(row, column, raw);
  }
};

// Codes of a thread's eight columns, the first four in the first word.
__device__ __forceinline__ void codes_of(const float (&values)[kChunk], const GroupScale& group,
                                         std::uint32_t (&codes)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float* v = values + 4 * half;
    codes[half] = e4m3_pair(v[0] * group.inverse, v[1] * group.inverse) |
                  e4m3_pair(v[2] * group.inverse, v[3] * group.inverse) << 16;
  }
}

// All loads of a step are on their way before the first is used. Threads take chunks across rows,
// and the 16 lanes of a group of columns stand in one row.
template <class TChunk, std::uint32_t kAtOnce>
__device__ __forceinline__ void stage_fp8(const RowsOf& rows, const Fp8Place& place,
                                          std::uint32_t thread) {
  constexpr std::uint32_t kLanes = kFp8Group / kChunk;
  const std::uint32_t of_row = (rows.columns / kChunk + kLanes - 1) / kLanes * kLanes;
  const std::uint32_t chunks = place.count * of_row;
  for (std::uint32_t first = 0; first < chunks; first += kThreads * kAtOnce) {
    TChunk loaded[kAtOnce] = {};
    std::uint32_t row[kAtOnce];
    std::uint32_t column[kAtOnce];
#pragma unroll
    for (std::uint32_t i = 0; i < kAtOnce; ++i) {
      const std::uint32_t chunk = first + i * kThreads + thread;
      row[i] = chunk / of_row;
      column[i] = chunk < chunks ? (chunk - row[i] * of_row) * kChunk : rows.columns;
      if (column[i] < rows.columns) loaded[i].load(rows, place.row[row[i]], column[i]);
    }
#pragma unroll
    for (std::uint32_t i = 0; i < kAtOnce; ++i) {
      if (first + i * kThreads >= chunks) break;  // for all threads
      float values[kChunk];
      loaded[i].unpack(values);
      const GroupScale group = group_scale(values, kFp8Group);
      std::uint32_t codes[2];
      codes_of(values, group, codes);
      if (column[i] >= rows.columns) continue;
      const std::uint32_t at = place.to + fp8_offset(row[i], column[i]);
      store_shared1(at, codes[0]);
      store_shared1(at + kCoreBytes, codes[1]);
      if (column[i] % kStepColumns == 0) {
        store_shared1(place.scales + (column[i] / kStepColumns * kRowsOfTile + row[i]) * 4,
                      __float_as_uint(group.scale));
      }
    }
  }
}

template <bool kAwaits>
__device__ inline void stage_fp8(const RowsOf& rows, const Fp8Place& place, std::uint32_t thread) {
  if constexpr (kAwaits) return stage_fp8<AwaitedChunk, 1>(rows, place, thread);
  if (!rows.is_f32 && rows.aligned) return stage_fp8<Bf16Chunk, 8>(rows, place, thread);
  stage_fp8<AnyChunk, 4>(rows, place, thread);
}

// Where the code of a column is in a row for sheets: 16 bytes for either core matrix of 32 columns.
__device__ __forceinline__ std::uint32_t coded_place(std::uint32_t column) {
  return column / 32 * 32 + column % 8 / 4 * 16 + column % 32 / 8 * 4 + column % 4;
}

// By one warp: the codes of columns of a row, whole groups from `begin` on, into `to`, where the
// row may lie already, and their scales.
template <class TChunk, std::uint32_t kAtOnce>
__device__ inline void code_row(const RowsOf& rows, std::uint32_t row, std::byte* to,
                                std::uint32_t* scales, std::uint32_t begin, std::uint32_t end) {
  constexpr std::uint32_t kColumns = 32 * kChunk;  // of the warp
  const std::uint32_t lane = threadIdx.x % 32;
  for (std::uint32_t first = begin; first < end; first += kAtOnce * kColumns) {
    TChunk loaded[kAtOnce] = {};
#pragma unroll
    for (std::uint32_t i = 0; i < kAtOnce; ++i) {
      const std::uint32_t column = first + i * kColumns + lane * kChunk;
      if (column < end) loaded[i].load(rows, row, column);
    }
    __syncwarp();  // others have read what this overwrites
#pragma unroll
    for (std::uint32_t i = 0; i < kAtOnce; ++i) {
      if (first + i * kColumns >= end) break;  // for all lanes
      float values[kChunk];
      loaded[i].unpack(values);
      const GroupScale group = group_scale(values, kFp8Group);
      std::uint32_t codes[2];
      codes_of(values, group, codes);
      const std::uint32_t column = first + i * kColumns + lane * kChunk;
      if (column >= end) continue;
      auto* at = reinterpret_cast<std::uint32_t*>(to + coded_place(column));
      at[0] = codes[0], at[4] = codes[1];
      if (column % kFp8Group == 0) scales[column / kFp8Group] = __float_as_uint(group.scale);
    }
  }
}

}  // namespace moxie::cuda::sm90

// SPDX-License-Identifier: Apache-2.0
// Rows of activations in device memory, quantised and lifted once (see rows.cuh), for blocks that
// read them step by step beside the weights.
#pragma once

#include <cstdint>

#include "kernels/cuda/sm90/call.hpp"
#include "kernels/cuda/sm90/rows.cuh"

namespace moxie::cuda::sm90 {

// Eight columns of a row as bf16; a lane past its end has zeros. All lanes of a warp come here.
__device__ __forceinline__ uint4 load_chunk(ActFormat format, const RowsOf& rows, std::uint64_t row,
                                            std::uint32_t column) {
  const bool there = column < rows.columns;
  if (format == ActFormat::bf16 && !rows.is_f32 && rows.aligned) {
    if (!there) return make_uint4(0, 0, 0, 0);
    return __ldcg(reinterpret_cast<const uint4*>(static_cast<const std::uint16_t*>(rows.data) +
                                                 row * rows.stride + column));
  }
  float values[kChunk] = {};
  if (there) rows.load(row, column, values);
  quantise_chunk(format, values);
  return pack_bf16(values);
}

// By one warp: a row into `to`, its largest magnitude into `amax`. Reads the row twice.
template <int kAtOnce>
__device__ inline void lift_row(ActFormat format, const RowsOf& rows, std::uint64_t row,
                                std::uint16_t* to, std::uint32_t* amax) {
  constexpr std::uint32_t kColumns = 32 * kChunk;  // of the warp
  const std::uint32_t lane = threadIdx.x % 32;
  std::uint32_t most = 0;
  for (std::uint32_t first = lane * kChunk; first < rows.columns + lane * kChunk;
       first += kAtOnce * kColumns) {
    uint4 pairs[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      pairs[i] = load_chunk(format, rows, row, first + i * kColumns);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) most = max(most, amax_bits(pairs[i]));
  }
  most = __reduce_max_sync(0xFFFFFFFFU, most);
  if (lane == 0) *amax = most;
  const float lift = row_scale(most).lift;
  for (std::uint32_t first = lane * kChunk; first < rows.columns + lane * kChunk;
       first += kAtOnce * kColumns) {
    uint4 pairs[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      pairs[i] = load_chunk(format, rows, row, first + i * kColumns);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const std::uint32_t column = first + i * kColumns;
      if (column < rows.columns) *reinterpret_cast<uint4*>(to + column) = lifted(pairs[i], lift);
    }
  }
}

}  // namespace moxie::cuda::sm90

// SPDX-License-Identifier: Apache-2.0
// Rows of activations in device memory, quantised and lifted (see rows.cuh).
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

// A lifted row has the order of its products: an MMA takes 16 columns as two pieces of 16 bytes, 4
// bytes of each of four lanes of weights (see word_column()), and the pieces follow each other. The
// four lanes here that have these columns, `step` apart, transpose their words.
__device__ __forceinline__ uint4 transposed(uint4 words, std::uint32_t lane, std::uint32_t step) {
  const auto exchange = [](std::uint32_t& a, std::uint32_t& b, bool upper, std::uint32_t distance) {
    const std::uint32_t got = __shfl_xor_sync(0xFFFFFFFFU, upper ? a : b, distance);
    (upper ? a : b) = got;
  };
  const bool odd = (lane / step & 1) != 0;
  const bool high = (lane / step & 2) != 0;
  exchange(words.x, words.y, odd, step);
  exchange(words.z, words.w, odd, step);
  exchange(words.x, words.z, high, 2 * step);
  exchange(words.y, words.w, high, 2 * step);
  return words;
}
struct PieceOrder {
  std::uint32_t step;
  std::uint32_t place;  // of the lane's piece among the 8 of a step
};
__device__ __forceinline__ PieceOrder piece_order(BlockFormat format, std::uint32_t lane) {
  if (format == BlockFormat::mxfp4) return {1, lane % 8};
  return {2, lane % 2 * 4 + lane % 8 / 2};
}

// By one warp: a row into `to`, where it may lie already, its largest magnitude into `amax`. Reads
// the row twice.
template <int kAtOnce>
__device__ inline void lift_row(const ExpertsShape& shape, const RowsOf& rows, std::uint64_t row,
                                std::uint16_t* to, std::uint32_t* amax) {
  const ActFormat format = shape.act_format;
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
  const PieceOrder order = piece_order(shape.format, lane);
  for (std::uint32_t first = lane * kChunk; first < rows.columns + lane * kChunk;
       first += kAtOnce * kColumns) {
    uint4 pairs[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      pairs[i] = load_chunk(format, rows, row, first + i * kColumns);
    __syncwarp();  // others have read what this overwrites
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const uint4 piece = transposed(lifted(pairs[i], lift), lane, order.step);
      const std::uint32_t column = first + i * kColumns;
      const std::uint32_t at = column / kStepColumns * kStepColumns + order.place * kChunk;
      if (column < rows.columns) *reinterpret_cast<uint4*>(to + at) = piece;
    }
  }
}

}  // namespace moxie::cuda::sm90

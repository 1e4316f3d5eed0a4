// SPDX-License-Identifier: Apache-2.0
// The two products and the weighted sum.
//
// A block multiplies one tile of rows with kColumns weight rows: eight threads a weight row, thread
// l of them the columns c with c % 8 == l. Every (weight row, activation row) pair keeps its own
// partial sums in the order that the catalog states: lanes through a block of 256 terms, blocks
// lane by lane, a tree of lanes. No operation is fused (-fmad=false), so a result has the bits that
// the same order gives on the host.
#pragma once

#include <cstdint>

#include "formats/activation.hpp"
#include "formats/block_format.hpp"
#include "kernels/cuda/portable/call.hpp"
#include "kernels/cuda/portable/quantise.cuh"

namespace moxie::cuda::portable {

inline constexpr unsigned kLanes = 8;
inline constexpr unsigned kColumns = 32;
inline constexpr unsigned kProductThreads = kLanes * kColumns;
inline constexpr std::uint64_t kSumBlock = 256;
static_assert(kLanes == kTileRows, "thread l finishes row l of a tile");

// One row of a weight matrix.
struct WeightRow {
  const std::uint8_t* codes = nullptr;   // [columns/2]
  const std::uint8_t* scales = nullptr;  // [columns/group]
  float dequant_mul = 1.0F;
  const std::byte* bias = nullptr;  // f32, any alignment; null: none

  __device__ float finished(float sum) const {
    return bias == nullptr ? sum * dequant_mul : sum * dequant_mul + float_at(bias);
  }
};

template <BlockFormat kFormat>
__device__ WeightRow weight_row(const std::byte* blob, std::uint64_t row, std::uint64_t columns,
                                std::uint64_t codes, std::uint64_t scales, std::uint64_t mul,
                                std::uint64_t bias) {
  constexpr std::uint64_t kGroup = block_spec(kFormat).group_elems;
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(blob);
  return {bytes + codes + row * (columns / 2), bytes + scales + row * (columns / kGroup),
          scalar_at(blob, mul, 1.0F),
          bias == BlobOffsets::kAbsent ? nullptr : blob + bias + row * sizeof(float)};
}

// Sums of kSides weight rows with the rows of a tile; thread l of eight gets those of row l.
template <BlockFormat kFormat, int kSides>
__device__ void multiply(const WeightRow (&weights)[kSides], std::uint64_t columns,
                         const float* const (&x)[kTileRows], unsigned lane,
                         float (&result)[kSides]) {
  constexpr std::uint64_t kGroup = block_spec(kFormat).group_elems;
  float sums[kTileRows][kSides] = {};
  for (std::uint64_t block = 0; block < columns; block += kSumBlock) {
    const std::uint64_t end = columns - block < kSumBlock ? columns : block + kSumBlock;
    float local[kTileRows][kSides] = {};
    for (std::uint64_t group = block; group < end; group += kGroup) {
      float scale[kSides];
#pragma unroll
      for (int side = 0; side < kSides; ++side) {
        const std::uint8_t byte = weights[side].scales[group / kGroup];
        scale[side] = kFormat == BlockFormat::mxfp4 ? decode_e8m0(byte) : decode_ue4m3(byte);
      }
#pragma unroll
      for (unsigned step = 0; step < kGroup; step += kLanes) {
        const std::uint64_t column = group + step + lane;
        float weight[kSides];
#pragma unroll
        for (int side = 0; side < kSides; ++side) {
          const unsigned pair = weights[side].codes[column / 2];
          weight[side] =
              decode_e2m1(static_cast<std::uint8_t>(pair >> (column % 2 * 4))) * scale[side];
        }
#pragma unroll
        for (unsigned r = 0; r < kTileRows; ++r) {
          const float value = x[r][column];
#pragma unroll
          for (int side = 0; side < kSides; ++side) local[r][side] += weight[side] * value;
        }
      }
    }
#pragma unroll
    for (unsigned r = 0; r < kTileRows; ++r) {
#pragma unroll
      for (int side = 0; side < kSides; ++side) sums[r][side] += local[r][side];
    }
  }
#pragma unroll
  for (unsigned r = 0; r < kTileRows; ++r) {
#pragma unroll
    for (int side = 0; side < kSides; ++side) {
      float sum = sums[r][side];
      for (int step = 4; step > 0; step /= 2) sum += __shfl_xor_sync(0xFFFFFFFFU, sum, step);
      if (lane == r) result[side] = sum;
    }
  }
}

// What a thread works on.
struct Place {
  std::uint64_t expert;
  std::uint64_t first_row;
  std::uint64_t rows;    // of the tile
  std::uint64_t column;  // of the product
  unsigned lane;

  // False past the last tile.
  __device__ static bool find(const Call& call, Place& place) {
    const std::uint32_t tile = blockIdx.x;
    if (tile >= call.work.tiles0[call.args.shape.local_experts]) return false;
    place.expert = call.work.expert_of_tile[tile];
    place.first_row = call.work.row_of_tile[tile];
    const std::uint64_t left = call.work.with0[place.expert + 1] - place.first_row;
    place.rows = left < kTileRows ? left : kTileRows;
    place.column = std::uint64_t{blockIdx.y} * kColumns + threadIdx.x / kLanes;
    place.lane = threadIdx.x % kLanes;
    return true;
  }
  // Row r of the tile; the last one again behind it, whose sums nobody stores.
  __device__ std::uint64_t row(unsigned r) const { return first_row + (r < rows ? r : rows - 1); }
};

// Gate and up, activation function. Grid: tiles x inter / kColumns.
template <BlockFormat kFormat, int kSides>
__global__ void __launch_bounds__(kProductThreads) gate_up(const __grid_constant__ Call call) {
  Place at;
  if (!Place::find(call, at)) return;
  const ExpertsShape& shape = call.args.shape;
  const BlobOffsets& in = call.args.weights.offsets;
  const std::byte* blob = call.args.weights.blobs + at.expert * call.args.weights.stride;
  const auto x_row = [&](std::uint64_t row) {
    return has_x_of_slots(shape) ? row : call.work.slot_of_row[row] / shape.top_k;
  };
  WeightRow weights[kSides];
  weights[0] =
      weight_row<kFormat>(blob, at.column, shape.hidden, in.up, in.up_scale, in.up_mul, in.up_bias);
  if constexpr (kSides == 2) {
    weights[1] = weight_row<kFormat>(blob, at.column, shape.hidden, in.gate, in.gate_scale,
                                     in.gate_mul, in.gate_bias);
  }
  const float* x[kTileRows];
#pragma unroll
  for (unsigned r = 0; r < kTileRows; ++r) x[r] = call.work.x + x_row(at.row(r)) * shape.hidden;
  float sums[kSides];
  multiply<kFormat, kSides>(weights, shape.hidden, x, at.lane, sums);
  if (at.lane >= at.rows) return;
  const std::uint64_t row = at.row(at.lane);
  const float scale = shape.act_format == ActFormat::nvfp4 ? call.work.x_scale[x_row(row)] : 1.0F;
  const float up = weights[0].finished(sums[0] * scale);
  float gate = 0.0F;
  if constexpr (kSides == 2) gate = weights[1].finished(sums[1] * scale);
  call.work.act[row * shape.inter + at.column] =
      activate(shape.activation, shape.activation_limit, gate, up);
}

// Grid: tiles x hidden / kColumns.
template <BlockFormat kFormat>
__global__ void __launch_bounds__(kProductThreads) down(const __grid_constant__ Call call) {
  Place at;
  if (!Place::find(call, at)) return;
  const ExpertsShape& shape = call.args.shape;
  const BlobOffsets& in = call.args.weights.offsets;
  const std::byte* blob = call.args.weights.blobs + at.expert * call.args.weights.stride;
  WeightRow weights[1];
  weights[0] = weight_row<kFormat>(blob, at.column, shape.inter, in.down, in.down_scale,
                                   in.down_mul, in.down_bias);
  const float* act[kTileRows];
#pragma unroll
  for (unsigned r = 0; r < kTileRows; ++r) act[r] = call.work.act + at.row(r) * shape.inter;
  float sums[1];
  multiply<kFormat, 1>(weights, shape.inter, act, at.lane, sums);
  if (at.lane >= at.rows) return;
  const std::uint64_t row = at.row(at.lane);
  const float scale = shape.act_format == ActFormat::nvfp4 ? call.work.act_scale[row] : 1.0F;
  call.work.down[row * shape.hidden + at.column] = weights[0].finished(sums[0] * scale);
}

inline constexpr unsigned kCombineThreads = 256;

// Masked slots are skipped: what their rows hold, NaN included, must not reach y.
// Grid: tokens x hidden / kCombineThreads.
__global__ void __launch_bounds__(kCombineThreads) combine(const __grid_constant__ Call call) {
  const std::uint64_t hidden = call.args.shape.hidden;
  const std::uint64_t top_k = call.args.shape.top_k;
  const std::uint64_t token = blockIdx.x;
  const std::uint64_t column = std::uint64_t{blockIdx.y} * kCombineThreads + threadIdx.x;
  if (column >= hidden) return;
  float sum = 0.0F;
  for (std::uint64_t choice = 0; choice < top_k; ++choice) {
    const std::uint64_t slot = token * top_k + choice;
    const std::int32_t row = call.work.row_of_slot[slot];
    if (row < 0) continue;
    sum += call.args.topk_weights[slot] *
           call.work.down[static_cast<std::uint64_t>(row) * hidden + column];
  }
  call.args.y[token * hidden + column] = sum;
}

}  // namespace moxie::cuda::portable

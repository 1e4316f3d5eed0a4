// SPDX-License-Identifier: Apache-2.0
// Rows of activations to what their codes stand for, with the scalar quantisers of formats.
//
// One block a row, one thread a group at a time. nvfp4 rows hold code * block scale; the global
// scale of a row is kept beside it and multiplies the finished sums.
#pragma once

#include <cstdint>

#include "formats/act_quant.hpp"
#include "kernels/cuda/portable/call.hpp"

namespace moxie::cuda::portable {

inline constexpr unsigned kQuantiseThreads = 128;

// The rows of x, or those that enter the down product.
template <bool kIsX>
struct Rows {
  float* values;  // [capacity, width]
  float* scales;  // [capacity]
  std::uint64_t width;
  std::uint64_t count;  // of rows that hold something

  __device__ explicit Rows(const Call& call)
      : values(kIsX ? call.work.x : call.work.act),
        scales(kIsX ? call.work.x_scale : call.work.act_scale),
        width(kIsX ? call.args.shape.hidden : call.args.shape.inter),
        count(kIsX && !has_x_of_slots(call.args.shape)
                  ? call.args.tokens
                  : call.work.with0[call.args.shape.local_experts]) {}
};

__device__ inline float float_at(const std::byte* bytes) {  // any alignment
  float value;
  __builtin_memcpy(&value, bytes, sizeof value);
  return value;
}

__device__ inline float scalar_at(const std::byte* blob, std::uint64_t offset, float absent) {
  return offset == BlobOffsets::kAbsent ? absent : float_at(blob + offset);
}

// False for the x of a token without a slot on this rank: it counts for nothing.
template <bool kIsX>
__device__ bool is_used(const Call& call, std::uint64_t row) {
  if (!kIsX || has_x_of_slots(call.args.shape)) return true;
  const std::uint64_t top_k = call.args.shape.top_k;
  for (std::uint64_t choice = 0; choice < top_k; ++choice) {
    if (call.work.row_of_slot[row * top_k + choice] >= 0) return true;
  }
  return false;
}

// x as fp32 into the columns [first, end) of its row.
__device__ inline void load_x(const Call& call, std::uint64_t row, std::uint64_t first,
                              std::uint64_t end) {
  const std::uint64_t token =
      has_x_of_slots(call.args.shape) ? call.work.slot_of_row[row] / call.args.shape.top_k : row;
  const MatrixRef& x = call.args.x;
  float* to = call.work.x + row * call.args.shape.hidden;
  for (std::uint64_t i = first; i < end; ++i) {
    const std::uint64_t at = token * x.row_stride + i;
    to[i] = x.dtype == DType::f32 ? static_cast<const float*>(x.data)[at]
                                  : decode_bf16(static_cast<const std::uint16_t*>(x.data)[at]);
  }
}

// The largest of the threads' values, in all of them.
__device__ inline float largest_of_block(float value) {
  __shared__ float of_warp[32];
  for (int step = 16; step > 0; step /= 2)
    value = fmaxf(value, __shfl_xor_sync(0xFFFFFFFFU, value, step));
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) value = fmaxf(value, of_warp[warp]);
  __syncthreads();
  return value;
}

// Largest magnitude of the thread's own groups of a row. x is loaded on the way.
template <bool kIsX>
__device__ float amax_of_groups(const Call& call, const Rows<kIsX>& rows, std::uint64_t row) {
  const std::uint64_t group = act_group(ActFormat::nvfp4);
  const float* values = rows.values + row * rows.width;
  float amax = 0.0F;
  for (std::uint64_t first = threadIdx.x * group; first < rows.width;
       first += kQuantiseThreads * group) {
    const std::uint64_t left = rows.width - first;
    const std::uint64_t count = left < group ? left : group;
    if (kIsX) load_x(call, row, first, first + count);
    amax = fmaxf(amax, group_amax(values + first, count));
  }
  return amax;
}

// Policy dynamic, first step. Grid: rows.
template <bool kIsX>
__global__ void __launch_bounds__(kQuantiseThreads)
    measure_rows(const __grid_constant__ Call call) {
  const Rows<kIsX> rows(call);
  const std::uint64_t row = blockIdx.x;
  if (row >= rows.count) return;
  const bool used = is_used<kIsX>(call, row);
  const float amax = used ? largest_of_block(amax_of_groups(call, rows, row)) : 0.0F;
  if (threadIdx.x == 0) call.work.amax[row] = amax;
}

// Second step, one block: the largest of all rows.
template <bool kIsX>
__global__ void __launch_bounds__(kQuantiseThreads) measure_all(const __grid_constant__ Call call) {
  const Rows<kIsX> rows(call);
  float amax = 0.0F;
  for (std::uint64_t row = threadIdx.x; row < rows.count; row += kQuantiseThreads)
    amax = fmaxf(amax, call.work.amax[row]);
  amax = largest_of_block(amax);
  if (threadIdx.x == 0) *call.work.largest = amax;
}

// Gate and up read the same x: the larger scale clips neither more than it asks for.
template <bool kIsX>
__device__ float stored_scale(const Call& call, std::uint64_t row) {
  const auto expert =
      static_cast<std::uint64_t>(call.work.expert_of_slot[call.work.slot_of_row[row]]);
  const std::byte* blob = call.args.weights.blobs + expert * call.args.weights.stride;
  const BlobOffsets& at = call.args.weights.offsets;
  if (!kIsX) return scalar_at(blob, at.down_act_mul, 0.0F);
  const float gate = scalar_at(blob, at.gate_act_mul, 0.0F);
  const float up = scalar_at(blob, at.up_act_mul, 0.0F);
  return gate < up ? up : gate;
}

__device__ inline void add_count(std::uint64_t& counter, std::uint64_t count) {
  static_assert(sizeof(unsigned long long) == sizeof(std::uint64_t), "the atomic's own type");
  if (count > 0) atomicAdd(reinterpret_cast<unsigned long long*>(&counter), count);
}

// Where a row's values are looked at by the caller; null: nowhere.
template <bool kIsX>
__device__ float* tap_of(const Call& call, std::uint64_t row) {
  if (kIsX || call.args.act_tap == nullptr) return nullptr;
  return call.args.act_tap + call.work.slot_of_row[row] * call.args.shape.inter;
}

// Grid: rows.
template <bool kIsX>
__global__ void __launch_bounds__(kQuantiseThreads)
    quantise_nvfp4(const __grid_constant__ Call call) {
  const Rows<kIsX> rows(call);
  const std::uint64_t row = blockIdx.x;
  if (row >= rows.count || !is_used<kIsX>(call, row)) return;
  const ActScale policy = call.args.shape.act_scale;
  float scale = 0.0F;
  if (policy == ActScale::row) {
    scale = nvfp4_global(largest_of_block(amax_of_groups(call, rows, row)));
  } else if (policy == ActScale::dynamic) {
    scale = nvfp4_global(*call.work.largest, call.args.act_margin);
  } else if (policy == ActScale::warmup) {
    scale = kIsX ? call.args.x_scale : call.args.act_scale;
  } else {
    scale = stored_scale<kIsX>(call, row);
  }
  const bool usable = is_act_scale(scale);
  const float global = usable ? scale : kNvfp4Fallback;
  const std::uint64_t group = act_group(ActFormat::nvfp4);
  float* values = rows.values + row * rows.width;
  float* tap = tap_of<kIsX>(call, row);
  Nvfp4Blocks blocks;
  for (std::uint64_t first = threadIdx.x * group; first < rows.width;
       first += kQuantiseThreads * group) {
    const std::uint64_t left = rows.width - first;
    const std::uint64_t count = left < group ? left : group;
    if (kIsX) load_x(call, row, first, first + count);
    quantise_nvfp4_block(values + first, count, global, values + first, blocks);
    if (tap == nullptr) continue;
    for (std::uint64_t i = first; i < first + count; ++i) tap[i] = values[i] * global;
  }
  if (threadIdx.x == 0) rows.scales[row] = global;
  if (call.args.stats == nullptr) return;
  ActStage& stats = kIsX ? call.args.stats->x : call.args.stats->act;
  add_count(stats.saturated, blocks.saturated);
  add_count(stats.underflowed, blocks.underflowed);
  add_count(stats.not_numbers, blocks.not_numbers);
  if (threadIdx.x != 0) return;
  add_count(stats.blocks, divide_up(rows.width, group));
  add_count(stats.guarded, usable ? 0 : 1);
}

// One block: least and most of the global scales in use, on top of what the stage has seen.
template <bool kIsX>
__global__ void __launch_bounds__(kQuantiseThreads) note_scales(const __grid_constant__ Call call) {
  const Rows<kIsX> rows(call);
  float most = 0.0F;
  float least_inverse = 0.0F;  // bits of the least, turned around: a maximum of both
  constexpr std::uint32_t kTop = 0x7F800000U;
  for (std::uint64_t row = threadIdx.x; row < rows.count; row += kQuantiseThreads) {
    if (!is_used<kIsX>(call, row)) continue;
    const float scale = rows.scales[row];
    most = fmaxf(most, scale);
    least_inverse = fmaxf(least_inverse, bits_as<float>(kTop - bits_as<std::uint32_t>(scale)));
  }
  most = largest_of_block(most);
  least_inverse = largest_of_block(least_inverse);
  if (threadIdx.x != 0 || most == 0.0F) return;
  const float least = bits_as<float>(kTop - bits_as<std::uint32_t>(least_inverse));
  ActStage& stats = kIsX ? call.args.stats->x : call.args.stats->act;
  stats.least_scale = stats.most_scale == 0.0F ? least : fminf(stats.least_scale, least);
  stats.most_scale = fmaxf(stats.most_scale, most);
}

// Formats without a global scale. Grid: rows.
template <bool kIsX, ActFormat kFormat>
__global__ void __launch_bounds__(kQuantiseThreads)
    quantise_rows(const __grid_constant__ Call call) {
  constexpr unsigned kGroup = act_group(kFormat);
  const Rows<kIsX> rows(call);
  const std::uint64_t row = blockIdx.x;
  if (row >= rows.count) return;
  float* values = rows.values + row * rows.width;
  float* tap = tap_of<kIsX>(call, row);
  for (std::uint64_t first = threadIdx.x * kGroup; first < rows.width;
       first += kQuantiseThreads * kGroup) {
    const std::uint64_t left = rows.width - first;
    const std::uint64_t count = left < kGroup ? left : kGroup;
    if (kIsX) load_x(call, row, first, first + count);
    quantise_row(kFormat, values + first, count, values + first);
    if (tap == nullptr) continue;
    for (std::uint64_t i = first; i < first + count; ++i) tap[i] = values[i];
  }
}

}  // namespace moxie::cuda::portable

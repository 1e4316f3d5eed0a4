// SPDX-License-Identifier: Apache-2.0
// One block of the experts kernel: it takes chunks, puts the rows of their items into shared
// memory, multiplies unit by unit, and finishes each unit's sums.
#pragma once

#include <cstdint>

#include "formats/activation.hpp"
#include "kernels/cuda/sm90/call.hpp"
#include "kernels/cuda/sm90/products.cuh"
#include "kernels/cuda/sm90/rows.cuh"
#include "kernels/cuda/sm90/schedule.cuh"
#include "kernels/cuda/sm90/stream.cuh"

namespace moxie::cuda::sm90 {

// What the threads of a block share beside the big arrays.
struct Shared {
  Queue queue;
  Item item;
  RowPlace place;
  std::uint32_t slot[2 * kRowsOfTile];
};
inline constexpr std::uint32_t kSharedBytes = 1024;
static_assert(sizeof(Shared) <= kSharedBytes);

// kTiles: 8 or 16 rows of activations at most; kDepth: steps of a warp in flight.
template <BlockFormat kFormat, int kTiles, int kDepth>
class Block {
 public:
  __device__ Block(const Call& call, Shared& shared, std::uint32_t base)
      : call_(call),
        shared_(shared),
        memory_(call.memory[kTiles - 1]),
        schedule_(call, call.work.progress->items),
        warp_(__shfl_sync(0xFFFFFFFFU, threadIdx.x / 32, 0)),
        lane_(threadIdx.x % 32),
        sums_(base + memory_.sums),
        rows_(base + memory_.rows),
        stream_(call, shared.queue,
                base + memory_.ring + warp_ * (kDepth * step_bytes(kFormat))) {}

  __device__ void run() {
    if (threadIdx.x == 0) take_chunk(shared_.queue, 0, schedule_, call_.work.progress);
    __syncthreads();
    stream_.refill();
    for (std::uint32_t number = 0;; ++number) {
      const Chunk chunk = shared_.queue.chunks[number % Queue::kSize];
      if (chunk.phase == kNothing) break;
      if (chunk.phase == kCombine) {
        combine(chunk, number);
      } else if (chunk.phase == kGateUp) {
        multiply<kGateUp>(chunk, number);
      } else {
        multiply<kDown>(chunk, number);
      }
      __syncthreads();  // the next chunk is known to all
    }
    wait_copies<0>();
  }

 private:
  // Weights are looked for so many units before a chunk ends.
  static constexpr std::uint32_t kAhead = 3;

  template <std::uint32_t kPhase>
  __device__ void multiply(Chunk chunk, std::uint32_t number) {
    const std::uint32_t units = call_.sharing[kPhase].units;
    std::uint32_t ask = chunk.end - chunk.unit > kAhead ? chunk.end - kAhead : chunk.unit;
    for (std::uint32_t unit = chunk.unit; unit < chunk.end;) {
      const std::uint32_t item = unit / units;
      const std::uint32_t base = item * units;
      const std::uint32_t end = min(chunk.end, base + units);
      start_item<kPhase>(item);
      const std::uint32_t first = unit;
      for (; unit < end; ++unit) {
        if (unit == ask && threadIdx.x == 0)
          take_chunk(shared_.queue, number + 1, schedule_, call_.work.progress);
        if (kTiles == 2 && shared_.item.rows > kRowsOfTile) {
          multiply_unit<kPhase, kTiles>(unit - base);
        } else {
          multiply_unit<kPhase, 1>(unit - base);
        }
      }
      __syncthreads();  // all results of the item are stored, its rows are free
      if (threadIdx.x == 0)
        add_release(kPhase == kGateUp ? call_.work.gate_up_units + item
                                      : &call_.work.progress->down_units,
                    end - first);
    }
  }

  // The rows of an item to shared memory.
  template <std::uint32_t kPhase>
  __device__ void start_item(std::uint32_t item) {
    if (threadIdx.x == 0) {
      shared_.item = call_.work.items[item];
      if (kPhase == kDown) {
        while (load_acquire(call_.work.gate_up_units + item) < call_.sharing[0].units) {
        }
      }
    }
    __syncthreads();
    if (threadIdx.x < shared_.item.rows) {
      const std::uint32_t slot = call_.work.slot_of_row[shared_.item.first_row + threadIdx.x];
      const auto top_k = static_cast<std::uint32_t>(call_.args.shape.top_k);
      shared_.slot[threadIdx.x] = slot;
      shared_.place.row[threadIdx.x] = kPhase == kGateUp ? slot / top_k : slot;
      shared_.place.amax[threadIdx.x] = kPhase == kGateUp ? call_.work.x_amax[slot / top_k]
                                                          : __ldcg(call_.work.act_amax + slot);
    }
    __syncthreads();
    place_rows(call_.args.shape.act_format,
               kPhase == kGateUp ? rows_of_x(call_) : rows_of_act(call_), shared_.place,
               shared_.item.rows, rows_, memory_.row_bytes[kPhase]);
    __syncthreads();
  }

  template <std::uint32_t kPhase, int kUsed>
  __device__ __forceinline__ void multiply_unit(std::uint32_t unit) {
    const Product& product = kPhase == kGateUp ? call_.experts.gate_up : call_.experts.down;
    const Sharing& sharing = call_.sharing[kPhase];
    const Part part(sharing, product, warp_);
    const std::uint32_t row_bytes = memory_.row_bytes[kPhase];
    std::uint32_t rows = rows_ + lane_offset(kFormat, lane_, row_bytes) +
                         part.first_step * (kStepColumns * 2);
    float sums[2][kUsed][4] = {};
    for (std::uint32_t step = 0; step < part.steps; ++step) {
      const std::uint32_t at = stream_.wait();
      if constexpr (kFormat == BlockFormat::mxfp4) {
        multiply_mxfp4<kUsed>(sums, at + lane_ * 16, at + kStepCodes + lane_ / 4 * 8, rows,
                              row_bytes);
      } else {
        multiply_nvfp4<kUsed>(sums, at + lane_ * 16, at + kStepCodes + lane_ * 4, rows, row_bytes);
      }
      rows += kStepColumns * 2;
      stream_.used();
    }
    // Two buffers of partial sums, or one for 16 rows: then it must be free first.
    constexpr std::uint32_t kBytes = kWarps * 2 * kUsed * 512;
    if (kTiles == 2) __syncthreads();
    const std::uint32_t buffer = sums_ + (kTiles == 1 ? turn_ % 2 * kBytes : 0);
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
      for (int n = 0; n < kUsed; ++n)
        store_shared4(buffer + ((warp_ * 2 + tile) * kUsed + n) * 512 + lane_ * 16, sums[tile][n]);
    }
    __syncthreads();
    finish_unit<kPhase, kUsed>(unit, sharing.splits, buffer);
    ++turn_;
  }

  // Adds up the partial sums of a unit, in the order of the columns, and stores what they are for.
  // The threads take turns, so that no warp always comes late.
  template <std::uint32_t kPhase, int kUsed>
  __device__ __forceinline__ void finish_unit(std::uint32_t unit, std::uint32_t splits,
                                              std::uint32_t buffer) {
    const bool paired = kPhase == kGateUp && call_.experts.gated;
    const std::uint32_t of_strip = (paired ? 1 : 2) * kUsed * 128;
    const std::uint32_t count = kWarps / splits * of_strip;
    const std::uint32_t first = (threadIdx.x - turn_ * count) % kThreads;
    for (std::uint32_t i = first; i < count; i += kThreads) {
      const std::uint32_t strip = i / of_strip;
      const std::uint32_t at = i % of_strip;
      const std::uint32_t lane = at / 4 % 32;
      const std::uint32_t tile = at / (kUsed * 128);
      const std::uint32_t token = at / 128 % kUsed * 8 + lane % 4 * 2 + at % 2;
      if (token >= shared_.item.rows) continue;
      const std::uint32_t row = lane / 4 + at % 4 / 2 * 8;
      const std::uint32_t from = buffer + strip * splits * (2 * kUsed * 512) + at * 4;
      const std::uint32_t strip_of_expert = unit * (kWarps / splits) + strip;
      const float lower = row_scale(shared_.place.amax[token]).lower;
      if constexpr (kPhase == kGateUp) {
        const float first_sum = sum_of<kUsed>(from, splits) * lower;
        const float second_sum =
            paired ? sum_of<kUsed>(from + kUsed * 512, splits) * lower : 0.0F;
        if (paired) {
          store_act(strip_of_expert * 16 + row, token, first_sum, second_sum);
        } else {
          store_act(strip_of_expert * 32 + tile * 16 + row, token, 0.0F, first_sum);
        }
      } else {
        store_down(strip_of_expert * 32 + tile * 16 + row, token,
                   sum_of<kUsed>(from, splits) * lower);
      }
    }
  }

  template <int kUsed>
  __device__ __forceinline__ float sum_of(std::uint32_t from, std::uint32_t splits) const {
    float sum = 0.0F;
    for (std::uint32_t split = 0; split < splits; split += 8) {
#pragma unroll
      for (std::uint32_t i = 0; i < 8; ++i)
        sum += load_shared_float(from + (split + i) * (2 * kUsed * 512));
    }
    return sum;
  }

  __device__ const float* scalars() const {
    return reinterpret_cast<const float*>(call_.args.weights.blobs +
                                          shared_.item.expert * call_.args.weights.stride +
                                          call_.experts.muls);
  }

  __device__ void store_act(std::uint32_t column, std::uint32_t token, float gate, float up) const {
    const ExpertsShape& shape = call_.args.shape;
    const float* expert = scalars();
    gate *= kPlacedMul * expert[0];
    up *= kPlacedMul * expert[1];
    if (call_.experts.has_bias) {
      gate += expert[4 + column];
      up += expert[4 + shape.inter + column];
    }
    float value = activate(shape.activation, shape.activation_limit, gate, up);
    const std::uint64_t slot = shared_.slot[token];
    if (call_.wide_acts) {
      reinterpret_cast<float*>(call_.work.act)[slot * shape.inter + column] = value;
    } else {
      const std::uint16_t code = encode_bf16(value);
      value = decode_bf16(code);
      reinterpret_cast<std::uint16_t*>(call_.work.act)[slot * shape.inter + column] = code;
    }
    atomicMax(call_.work.act_amax + slot, magnitude_bits(value));
  }

  __device__ void store_down(std::uint32_t column, std::uint32_t token, float sum) const {
    const ExpertsShape& shape = call_.args.shape;
    const float* expert = scalars();
    sum *= kPlacedMul * expert[2];
    if (call_.experts.has_bias) sum += expert[4 + 2 * shape.inter + column];
    call_.work.down[shared_.slot[token] * shape.hidden + column] = sum;
  }

  // Weighted sums over a token's slots, in their order; masked slots are skipped.
  __device__ void combine(Chunk chunk, std::uint32_t number) {
    if (threadIdx.x == 0) {
      take_chunk(shared_.queue, number + 1, schedule_, call_.work.progress);
      while (load_acquire(&call_.work.progress->down_units) < schedule_.units[kDown]) {
      }
    }
    __syncthreads();
    const ExpertsShape& shape = call_.args.shape;
    const auto hidden = static_cast<std::uint32_t>(shape.hidden);
    const auto top_k = static_cast<std::uint32_t>(shape.top_k);
    const std::uint32_t parts = (hidden + kCombineColumns - 1) / kCombineColumns;
    for (std::uint32_t unit = chunk.unit; unit < chunk.end; ++unit) {
      const std::uint32_t token = unit / parts;
      const std::uint32_t column = unit % parts * kCombineColumns + threadIdx.x * 4;
      if (column >= hidden) continue;
      float4 sum = make_float4(0, 0, 0, 0);
      for (std::uint32_t choice = 0; choice < top_k; ++choice) {
        const std::uint32_t slot = token * top_k + choice;
        if (call_.work.expert_of_slot[slot] < 0) continue;
        const float weight = call_.args.topk_weights[slot];
        const float4 value = __ldcg(
            reinterpret_cast<const float4*>(call_.work.down + std::uint64_t{slot} * hidden + column));
        sum.x += weight * value.x, sum.y += weight * value.y;
        sum.z += weight * value.z, sum.w += weight * value.w;
      }
      store_y(token, column, sum);
    }
  }

  __device__ void store_y(std::uint32_t token, std::uint32_t column, const float4& sum) const {
    const MutableMatrixRef& y = call_.args.final_y;
    const float values[4] = {sum.x, sum.y, sum.z, sum.w};
    const std::uint64_t at = token * y.row_stride + column;
    for (int i = 0; i < 4; ++i) {
      if (y.dtype == DType::f32) {
        static_cast<float*>(y.data)[at + i] = values[i];
      } else {
        static_cast<std::uint16_t*>(y.data)[at + i] = encode_bf16(values[i]);
      }
    }
  }

  const Call& call_;
  Shared& shared_;
  const Memory& memory_;
  Schedule schedule_;
  std::uint32_t warp_;
  std::uint32_t lane_;
  std::uint32_t sums_;
  std::uint32_t rows_;
  WeightStream<kFormat, kDepth> stream_;
  std::uint32_t turn_ = 0;
};

// Grid: as many blocks as multiprocessors, or fewer.
template <BlockFormat kFormat, int kNarrowDepth, int kWideDepth>
__global__ void __launch_bounds__(kThreads, 1) experts(const __grid_constant__ Call call) {
  extern __shared__ __align__(128) std::byte memory[];
  auto& shared = *reinterpret_cast<Shared*>(memory);
  const std::uint32_t base = shared_address(memory);
  wait_for_previous();
  if (kWideDepth > 0 && call.work.progress->wide != 0) {
    Block<kFormat, 2, kWideDepth == 0 ? 1 : kWideDepth>(call, shared, base).run();
  } else {
    Block<kFormat, 1, kNarrowDepth>(call, shared, base).run();
  }
}

}  // namespace moxie::cuda::sm90

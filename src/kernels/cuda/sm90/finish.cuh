// SPDX-License-Identifier: Apache-2.0
// The warps that finish: they add up the partial sums of a unit while the others multiply the next
// one, and store activations or the rows of down.
#pragma once

#include <cstdint>

#include "kernels/cuda/sm90/activate.cuh"
#include "kernels/cuda/sm90/call.hpp"
#include "kernels/cuda/sm90/products.cuh"
#include "kernels/cuda/sm90/rows.cuh"
#include "kernels/cuda/sm90/segment.cuh"

namespace moxie::cuda::sm90 {

// Bytes of a unit's partial sums: of every warp, two tiles of 16 rows x 8 tokens kUsed times.
template <int kUsed>
inline constexpr std::uint32_t kWarpSums = 2 * kUsed * 512;

// Among the 16-byte places of a tile's partial sums that of an MMA lane: those of eight rows and
// two tokens then lie in different banks.
__device__ __forceinline__ std::uint32_t place_of(std::uint32_t lane) {
  return lane ^ (lane >> 3 & 3);
}

template <int kTiles, int kBuffers, class TSync>
class Finisher {
 public:
  __device__ Finisher(const Call& call, TSync sync, Shared& shared, std::uint32_t sums)
      : call_(call), sync_(sync), shared_(shared), sums_(sums) {}

  __device__ void run() {
    for (Place<kSegments> at;; at.next()) {
      wait_barrier(sync_.segment_full[at.place], at.parity);
      const Segment& segment = shared_.segments[at.place];
      if (segment.phase == kNothing) return;
      if (segment.phase == kGateUp) {
        finish<kGateUp>(segment);
      } else if (segment.phase == kDown) {
        finish<kDown>(segment);
      }
      __syncwarp();
      if (threadIdx.x % 32 == 0) arrive(sync_.segment_free[at.place]);
    }
  }

 private:
  template <std::uint32_t kPhase>
  __device__ void finish(const Segment& segment) {
    for (std::uint32_t unit = segment.unit; unit < segment.end; ++unit) {
      wait_barrier(sync_.sums_full[turn_.place], turn_.parity);
      const std::uint32_t buffer = sums_ + turn_.place * (kWarps * kWarpSums<kTiles>);
      if (kTiles == 2 && segment.rows > kRowsOfTile) {
        finish_unit<kPhase, kTiles>(segment, unit, buffer);
      } else {
        finish_unit<kPhase, 1>(segment, unit, buffer);
      }
      __syncwarp();
      if (threadIdx.x % 32 == 0) arrive(sync_.sums_free[turn_.place]);
      turn_.next();
    }
    synchronise<2, kFinishers * 32>();  // all results of the segment are stored
    if (threadIdx.x == kFirstFinisher * 32)
      add_release(kPhase == kGateUp ? call_.work.gate_up_units + segment.item
                                    : &call_.work.progress->down_units,
                  segment.end - segment.unit);
  }

  // One task of a warp is 16 rows of two tokens.
  template <std::uint32_t kPhase, int kUsed>
  __device__ __forceinline__ void finish_unit(const Segment& segment, std::uint32_t unit,
                                              std::uint32_t buffer) {
    const Product& product = kPhase == kGateUp ? call_.experts.gate_up : call_.experts.down;
    const bool paired = kPhase == kGateUp && call_.experts.gated;
    const std::uint32_t lane = threadIdx.x % 32;
    const std::uint32_t pairs = (segment.rows + 1) / 2;
    const std::uint32_t strips = product.strips_of_unit;
    const std::uint32_t parts = strips * (paired ? 1 : 2);
    const std::uint32_t row = lane % 16;
    const float* expert = reinterpret_cast<const float*>(
        call_.args.weights.blobs + segment.expert * call_.args.weights.stride +
        call_.experts.muls);
    for (std::uint32_t task = threadIdx.x / 32 - kFirstFinisher; task < pairs * parts;
         task += kFinishers) {
      const std::uint32_t pair = task / parts;
      const std::uint32_t strip = task % strips;
      const std::uint32_t tile = task % parts / strips;
      const std::uint32_t token = pair * 2 + lane / 16;
      if (token >= segment.rows) continue;
      const std::uint32_t from = buffer + strip * kWarpSums<kUsed> + (tile * kUsed + pair / 4) * 512 +
                                 place_of(row % 8 * 4 + pair % 4) * 16 +
                                 (row / 8 * 2 + lane / 16) * 4;
      const std::uint32_t in_expert = unit * strips + strip;
      const float lower = row_scale(segment.amax[token]).lower;
      const std::uint64_t slot = segment.slot[token];
      const float sum = sum_of<kUsed>(from, product) * lower;
      if constexpr (kPhase == kGateUp) {
        if (paired) {
          const float up = sum_of<kUsed>(from + kUsed * 512, product) * lower;
          store_act(expert, in_expert * 16 + row, slot, sum, up);
        } else {
          store_act(expert, in_expert * 32 + tile * 16 + row, slot, 0.0F, sum);
        }
      } else {
        store_down(expert, in_expert * 32 + tile * 16 + row, slot, sum);
      }
    }
  }

  // Of the splits of one strip, in the order of their columns.
  template <int kUsed>
  __device__ __forceinline__ float sum_of(std::uint32_t from, const Product& product) const {
    const std::uint32_t apart = product.strips_of_unit * kWarpSums<kUsed>;
    float sum = 0.0F;
    for (std::uint32_t split = 0; split < product.splits; split += 8) {
      float values[8];
#pragma unroll
      for (std::uint32_t i = 0; i < 8; ++i) values[i] = load_shared_float(from + (split + i) * apart);
#pragma unroll
      for (std::uint32_t i = 0; i < 8; ++i) sum += values[i];
    }
    return sum;
  }

  __device__ __forceinline__ void store_act(const float* expert, std::uint32_t column,
                                            std::uint64_t slot, float gate, float up) const {
    const ExpertsShape& shape = call_.args.shape;
    gate *= kPlacedMul * expert[0];
    up *= kPlacedMul * expert[1];
    if (call_.experts.has_bias) {
      gate += expert[4 + column];
      up += expert[4 + shape.inter + column];
    }
    float value = activate_fast(shape.activation, shape.activation_limit, gate, up);
    if (call_.wide_acts) {
      reinterpret_cast<float*>(call_.work.act)[slot * shape.inter + column] = value;
    } else {
      const std::uint16_t code = encode_bf16(value);
      value = decode_bf16(code);
      reinterpret_cast<std::uint16_t*>(call_.work.act)[slot * shape.inter + column] = code;
    }
    atomicMax(call_.work.act_amax + slot, magnitude_bits(value));
  }

  __device__ __forceinline__ void store_down(const float* expert, std::uint32_t column,
                                             std::uint64_t slot, float sum) const {
    const ExpertsShape& shape = call_.args.shape;
    sum *= kPlacedMul * expert[2];
    if (call_.experts.has_bias) sum += expert[4 + 2 * shape.inter + column];
    call_.work.down[slot * shape.hidden + column] = sum;
  }

  const Call& call_;
  TSync sync_;
  Shared& shared_;
  std::uint32_t sums_;
  Place<kBuffers> turn_;
};

}  // namespace moxie::cuda::sm90

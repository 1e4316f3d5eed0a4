// SPDX-License-Identifier: Apache-2.0
// The warps that finish: they add up the partial sums of a unit while the others multiply the next
// one, and store activations or the rows of down.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/sm90/activate.cuh"
#include "kernels/cuda/sm90/call.hpp"
#include "kernels/cuda/sm90/products.cuh"
#include "kernels/cuda/sm90/rows.cuh"
#include "kernels/cuda/sm90/segment.cuh"

namespace moxie::cuda::sm90 {

// Among the 16-byte places of a tile's partial sums that of an MMA lane: those of eight rows and
// two tokens then lie in different banks.
__device__ __forceinline__ std::uint32_t place_of(std::uint32_t lane) {
  return lane ^ (lane >> 3 & 3);
}

template <class TSync>
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
    finish_units<kPhase>(segment);
    synchronise<2, kFinishers * 32>();  // all results of the segment are stored
    if (threadIdx.x == kFirstFinisher * 32)
      add_release(kPhase == kGateUp ? call_.work.gate_up_units + segment.item
                                    : &call_.work.progress->down_units,
                  segment.end - segment.unit);
  }

  // A part is 16 rows of a unit, of gate and up both where they are paired; the warps share the
  // parts, or the pairs of tokens where there is one part alone. A lane has one row of one token of
  // a pair.
  template <std::uint32_t kPhase>
  __device__ __forceinline__ void finish_units(const Segment& segment) {
    const Product& product = kPhase == kGateUp ? call_.experts.gate_up : call_.experts.down;
    const bool paired = kPhase == kGateUp && call_.experts.gated;
    const std::uint32_t lane = threadIdx.x % 32;
    const std::uint32_t warp = threadIdx.x / 32 - kFirstFinisher;
    const std::uint32_t row = lane % 16;
    const std::uint32_t rows = segment.rows;
    const std::uint32_t strips = product.strips_of_unit;
    const std::uint32_t parts = strips * (paired ? 1 : 2);
    const std::uint32_t columns = paired ? 16 : 32;  // of a strip
    const std::uint32_t apart = strips * kWarpSums;         // from split to split
    const float* muls = reinterpret_cast<const float*>(
        call_.args.weights.blobs + segment.expert * call_.args.weights.stride +
        call_.experts.muls);
    const float mul_first = kPlacedMul * __ldg(muls + (kPhase == kDown ? 2 : paired ? 0 : 1));
    const float mul_second = kPlacedMul * __ldg(muls + 1);
    for (std::uint32_t unit = segment.unit; unit < segment.end; ++unit) {
#pragma unroll 1
      for (std::uint32_t first_token = 0; first_token < rows; first_token += kRowsOfTile) {
        const std::uint32_t pairs = (min(rows - first_token, kRowsOfTile) + 1) / 2;
        wait_barrier(sync_.sums_full[turn_.place], turn_.parity);
        const std::uint32_t buffer =
            sums_ + turn_.place * kSumsBytes + (row / 8 * 2 + lane / 16) * 4;
#pragma unroll 1
        for (std::uint32_t part = parts == 1 ? 0 : warp; part < parts; part += kFinishers) {
          const std::uint32_t strip = strips == 1 ? 0 : part % 2;
          const std::uint32_t tile = strips == 1 ? part : part / 2;
          const std::uint32_t column = (unit * strips + strip) * columns + tile * 16 + row;
          float bias[2] = {};
          if (call_.experts.has_bias) load_biases<kPhase>(segment.expert, column, paired, bias);
          const std::uint32_t sums = buffer + strip * kWarpSums + tile * kTileSums;
#pragma unroll 1
          for (std::uint32_t pair = parts == 1 ? warp : 0; pair < pairs;
               pair += parts == 1 ? kFinishers : 1) {
            const std::uint32_t token = first_token + pair * 2 + lane / 16;
            const std::uint32_t from = sums + place_of(row % 8 * 4 + pair) * 16;
            const std::uint32_t slot = segment.slot[token];
            const float lower = row_scale(segment.amax[token]).lower;
            const float first =
                fmaf(sum_of(from, product.splits, apart) * lower, mul_first, bias[0]);
            float second = 0;
            if (paired) {
              second = fmaf(sum_of(from + kTileSums, product.splits, apart) * lower, mul_second,
                            bias[1]);
            }
            if (token >= rows) continue;
            if constexpr (kPhase == kDown) {
              call_.work.down[std::uint64_t{slot} * call_.args.shape.hidden + column] = first;
            } else {
              store_act(column, slot, paired ? first : 0, paired ? second : first);
            }
          }
        }
        __syncwarp();
        if (lane == 0) arrive(sync_.sums_free[turn_.place]);
        turn_.next();
      }
    }
  }

  template <std::uint32_t kPhase>
  __device__ __forceinline__ void load_biases(std::uint32_t expert, std::uint32_t column,
                                              bool paired, float (&bias)[2]) const {
    const float* biases = reinterpret_cast<const float*>(
        call_.args.weights.blobs + expert * call_.args.weights.stride + call_.experts.biases);
    const std::uint64_t inter = call_.args.shape.inter;
    bias[0] = __ldg(biases + (kPhase == kDown ? 2 * inter : paired ? 0 : inter) + column);
    if (paired) bias[1] = __ldg(biases + inter + column);
  }

  // Of the splits of one strip, 8 or 16, in the order of their columns.
  __device__ __forceinline__ static float sum_of(std::uint32_t from, std::uint32_t splits,
                                                 std::uint32_t apart) {
    float sum = 0.0F;
#pragma unroll 1
    for (std::uint32_t split = 0; split < splits; split += 8) {
      float values[8];
#pragma unroll
      for (std::uint32_t i = 0; i < 8; ++i) values[i] = load_shared_float(from + i * apart);
#pragma unroll
      for (std::uint32_t i = 0; i < 8; ++i) sum += values[i];
      from += 8 * apart;
    }
    return sum;
  }

  __device__ __forceinline__ void store_act(std::uint32_t column, std::uint32_t slot, float gate,
                                            float up) const {
    const ExpertsShape& shape = call_.args.shape;
    const std::uint64_t at = std::uint64_t{slot} * shape.inter + column;
    const float value = activate_fast(shape.activation, shape.activation_limit, gate, up);
    if (call_.wide_acts) {
      reinterpret_cast<float*>(call_.work.act)[at] = value;
    } else {
      reinterpret_cast<__nv_bfloat16*>(call_.work.act)[at] = __float2bfloat16_rn(value);
    }
  }

  const Call& call_;
  TSync sync_;
  Shared& shared_;
  std::uint32_t sums_;
  Place<kSumsBuffers> turn_;
};

}  // namespace moxie::cuda::sm90

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
  // What a warp does with a unit's sums. A part is 16 rows of the unit, of gate and up both where
  // they are paired; the warps share the parts, or the pairs of tokens where there is one part
  // alone. A lane has one row of one token of a pair.
  template <std::uint32_t kPhaseOf, int kUsedOf, int kStripsOf, bool kPairedOf>
  struct Work {
    static constexpr std::uint32_t kPhase = kPhaseOf;
    static constexpr int kUsed = kUsedOf;
    static constexpr std::uint32_t kStrips = kStripsOf;
    static constexpr bool kPaired = kPairedOf;
    static constexpr std::uint32_t kParts = kStrips * (kPaired ? 1 : 2);
    static constexpr bool kSharesPairs = kParts == 1;
    static constexpr std::uint32_t kPairStep = kSharesPairs ? kFinishers : 1;
    static constexpr std::uint32_t kPairs = kUsed * 4 / kPairStep;  // of a warp, at most
    static constexpr std::uint32_t kPartsOfWarp = kSharesPairs ? 1 : kParts / kFinishers;
    static constexpr std::uint32_t kColumns = kStrips * (kPaired ? 16 : 32);  // of a unit
  };

  template <std::uint32_t kPhase>
  __device__ void finish(const Segment& segment) {
    const Product& product = kPhase == kGateUp ? call_.experts.gate_up : call_.experts.down;
    if (kTiles == 2 && segment.rows > kRowsOfTile) {
      finish_rows<kPhase, kTiles>(segment, product.strips_of_unit);
    } else {
      finish_rows<kPhase, 1>(segment, product.strips_of_unit);
    }
    synchronise<2, kFinishers * 32>();  // all results of the segment are stored
    if (threadIdx.x == kFirstFinisher * 32)
      add_release(kPhase == kGateUp ? call_.work.gate_up_units + segment.item
                                    : &call_.work.progress->down_units,
                  segment.end - segment.unit);
  }

  template <std::uint32_t kPhase, int kUsed>
  __device__ void finish_rows(const Segment& segment, std::uint32_t strips) {
    static_assert(kWarps == 16);  // 8 or 16 splits
    if (kPhase == kGateUp && call_.experts.gated) {
      if (strips == 1) return finish_units<Work<kPhase, kUsed, 1, true>>(segment);
      return finish_units<Work<kPhase, kUsed, 2, true>>(segment);
    }
    if (strips == 1) return finish_units<Work<kPhase, kUsed, 1, false>>(segment);
    finish_units<Work<kPhase, kUsed, 2, false>>(segment);
  }

  template <class TWork>
  __device__ __forceinline__ void finish_units(const Segment& segment) {
    constexpr std::uint32_t kPairs = TWork::kPairs;
    const std::uint32_t lane = threadIdx.x % 32;
    const std::uint32_t warp = threadIdx.x / 32 - kFirstFinisher;
    const std::uint32_t row = lane % 16;
    const std::uint32_t rows = segment.rows;
    const std::uint32_t first_token = (TWork::kSharesPairs ? warp * 2 : 0) + lane / 16;
    // The same for every unit: which slots, by what they are lowered, where their sums lie.
    std::uint32_t slot[kPairs];
    float lower[kPairs];
    std::uint32_t amax[kPairs] = {};
#pragma unroll
    for (std::uint32_t i = 0; i < kPairs; ++i) {
      const std::uint32_t token = first_token + i * (2 * TWork::kPairStep);
      slot[i] = token < rows ? segment.slot[token] : 0;
      lower[i] = token < rows ? row_scale(segment.amax[token]).lower : 0;
    }
    const float mul_first = segment.mul[TWork::kPhase == kDown ? 2 : TWork::kPaired ? 0 : 1];
    const float mul_second = segment.mul[1];
    const std::uint32_t part0 = TWork::kSharesPairs ? 0 : warp;
    for (std::uint32_t unit = segment.unit; unit < segment.end; ++unit) {
      float bias[TWork::kPartsOfWarp][2] = {};
      if (call_.experts.has_bias) {
#pragma unroll
        for (std::uint32_t i = 0; i < TWork::kPartsOfWarp; ++i)
          load_biases<TWork>(segment.expert, column_of<TWork>(unit, part0 + i * kFinishers, row),
                             bias[i]);
      }
      wait_barrier(sync_.sums_full[turn_.place], turn_.parity);
      const std::uint32_t buffer = sums_ + turn_.place * (kWarps * kWarpSums<kTiles>) +
                                   (row / 8 * 2 + lane / 16) * 4;
#pragma unroll
      for (std::uint32_t i = 0; i < TWork::kPartsOfWarp; ++i) {
        const std::uint32_t part = part0 + i * kFinishers;
        const std::uint32_t column = column_of<TWork>(unit, part, row);
        const std::uint32_t sums = buffer + part % TWork::kStrips * kWarpSums<TWork::kUsed> +
                                   part / TWork::kStrips * (TWork::kUsed * 512);
#pragma unroll
        for (std::uint32_t j = 0; j < kPairs; ++j) {
          const std::uint32_t token = first_token + j * (2 * TWork::kPairStep);
          if (token - lane / 16 >= rows) break;
          const std::uint32_t pair = token / 2;
          const std::uint32_t from =
              sums + pair / 4 * 512 + place_of(row % 8 * 4 + pair % 4) * 16;
          const float sum = sum_of<TWork>(from) * lower[j];
          const float first = fmaf(sum, mul_first, bias[i][0]);
          if constexpr (TWork::kPhase == kDown) {
            if (token < rows)
              call_.work.down[std::uint64_t{slot[j]} * call_.args.shape.hidden + column] = first;
          } else {
            float gate = 0;
            float up = first;
            if constexpr (TWork::kPaired) {
              gate = first;
              up = fmaf(sum_of<TWork>(from + TWork::kUsed * 512) * lower[j], mul_second,
                        bias[i][1]);
            }
            if (token < rows) amax[j] = max(amax[j], store_act(column, slot[j], gate, up));
          }
        }
      }
      __syncwarp();
      if (lane == 0) arrive(sync_.sums_free[turn_.place]);
      turn_.next();
    }
    if constexpr (TWork::kPhase == kGateUp) {
#pragma unroll
      for (std::uint32_t j = 0; j < kPairs; ++j) {
        if (first_token + j * (2 * TWork::kPairStep) < rows)
          atomicMax(call_.work.act_amax + slot[j], amax[j]);
      }
    }
  }

  // Of the product; of the intermediate axis where gate and up are paired.
  template <class TWork>
  __device__ static std::uint32_t column_of(std::uint32_t unit, std::uint32_t part,
                                            std::uint32_t row) {
    constexpr std::uint32_t kOfStrip = TWork::kColumns / TWork::kStrips;
    return unit * TWork::kColumns + part % TWork::kStrips * kOfStrip +
           part / TWork::kStrips * 16 + row;
  }

  template <class TWork>
  __device__ __forceinline__ void load_biases(std::uint32_t expert, std::uint32_t column,
                                              float (&bias)[2]) const {
    const float* biases = reinterpret_cast<const float*>(
        call_.args.weights.blobs + expert * call_.args.weights.stride + call_.experts.biases);
    const std::uint64_t inter = call_.args.shape.inter;
    bias[0] = __ldg(biases + (TWork::kPhase == kDown ? 2 * inter : TWork::kPaired ? 0 : inter) +
                    column);
    if constexpr (TWork::kPaired) bias[1] = __ldg(biases + inter + column);
  }

  // Of the splits of one strip, in the order of their columns.
  template <class TWork>
  __device__ __forceinline__ float sum_of(std::uint32_t from) const {
    constexpr std::uint32_t kSplits = kWarps / TWork::kStrips;
    float values[kSplits];
#pragma unroll
    for (std::uint32_t i = 0; i < kSplits; ++i)
      values[i] = load_shared_float(from + i * (TWork::kStrips * kWarpSums<TWork::kUsed>));
    float sum = 0.0F;
#pragma unroll
    for (std::uint32_t i = 0; i < kSplits; ++i) sum += values[i];
    return sum;
  }

  // Returns the magnitude of what it has stored.
  __device__ __forceinline__ std::uint32_t store_act(std::uint32_t column, std::uint32_t slot,
                                                     float gate, float up) const {
    const ExpertsShape& shape = call_.args.shape;
    const std::uint64_t at = std::uint64_t{slot} * shape.inter + column;
    const float value = activate_fast(shape.activation, shape.activation_limit, gate, up);
    if (call_.wide_acts) {
      reinterpret_cast<float*>(call_.work.act)[at] = value;
      return magnitude_bits(value);
    }
    const std::uint16_t code = encode_bf16(value);
    reinterpret_cast<std::uint16_t*>(call_.work.act)[at] = code;
    return magnitude_bits(decode_bf16(code));
  }

  const Call& call_;
  TSync sync_;
  Shared& shared_;
  std::uint32_t sums_;
  Place<kBuffers> turn_;
};

}  // namespace moxie::cuda::sm90

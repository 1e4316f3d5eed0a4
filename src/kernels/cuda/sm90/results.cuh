// SPDX-License-Identifier: Apache-2.0
// What sums over all columns become: activations, or rows of down.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/sm90/activate.cuh"
#include "kernels/cuda/sm90/call.hpp"
#include "kernels/cuda/sm90/products.cuh"
#include "kernels/cuda/sm90/rows.cuh"
#include "kernels/cuda/sm90/segment.cuh"
#include "kernels/cuda/sm90/values.cuh"

namespace moxie::cuda::sm90 {

// Of one expert in one phase.
template <std::uint32_t kPhase>
class Results {
 public:
  __device__ Results(const Call& call, std::uint32_t expert)
      : call_(call), blob_(call.args.weights.blobs + expert * call.args.weights.stride) {
    const float* muls = reinterpret_cast<const float*>(blob_ + call.experts.muls);
    mul_first_ = kPlacedMul * __ldg(muls + (kPhase == kDown ? 2 : paired() ? 0 : 1));
    mul_second_ = kPlacedMul * __ldg(muls + 1);
  }

  // Whether the first tile of a strip is gate's and the second up's.
  __device__ __forceinline__ bool paired() const {
    return kPhase == kGateUp && call_.experts.gated;
  }

  // Biases of the rows `column` and `column` + 8; of gate and up.
  struct Biases {
    float of[2][2] = {};
  };
  __device__ __forceinline__ Biases biases(std::uint32_t column) const {
    Biases biases;
    if (!call_.experts.has_bias) return biases;
    load_biases(column, biases.of[0]);
    load_biases(column + 8, biases.of[1]);
    return biases;
  }

  // Two neighbouring tokens of a segment.
  template <bool kLifts>
  struct Tokens {
    std::uint32_t slot[2];
    float lower[2];
    bool there[2];
    __device__ __forceinline__ Tokens(const Segment& segment, std::uint32_t token) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        slot[i] = segment.slot[token + i];
        lower[i] = kLifts ? row_scale(segment.amax[token + i]).lower : 1.0F;
        there[i] = (segment.there >> (token + i) & 1) != 0;
      }
    }
  };

  // A lane's sums as an MMA gives them: two rows of the product, 8 apart from `column` on, of two
  // tokens; `second` are up's, where `first` are gate's.
  template <bool kLifts>
  __device__ __forceinline__ void store(const Tokens<kLifts>& tokens, std::uint32_t column,
                                        const Biases& biases, const float (&first)[4],
                                        const float (&second)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (!tokens.there[i % 2]) continue;
      const float lower = tokens.lower[i % 2];
      const std::uint32_t slot = tokens.slot[i % 2];
      const float value = fmaf(first[i] * lower, mul_first_, biases.of[i / 2][0]);
      const std::uint32_t at = column + i / 2 * 8;
      if constexpr (kPhase == kDown) {
        store_written(call_.work.down + std::uint64_t{slot} * call_.args.shape.hidden + at, value);
      } else {
        const float up =
            paired() ? fmaf(second[i] * lower, mul_second_, biases.of[i / 2][1]) : value;
        store_act(at, slot, value, up);
      }
    }
  }

 private:
  __device__ __forceinline__ void load_biases(std::uint32_t column, float (&bias)[2]) const {
    const float* biases = reinterpret_cast<const float*>(blob_ + call_.experts.biases);
    const std::uint64_t inter = call_.args.shape.inter;
    bias[0] = __ldg(biases + (kPhase == kDown ? 2 * inter : paired() ? 0 : inter) + column);
    if (paired()) bias[1] = __ldg(biases + inter + column);
  }

  __device__ __forceinline__ void store_act(std::uint32_t column, std::uint32_t slot, float gate,
                                            float up) const {
    const ExpertsShape& shape = call_.args.shape;
    const std::uint64_t at = std::uint64_t{slot} * shape.inter + column;
    const float value = activate_fast(shape.activation, shape.activation_limit, gate, up);
    if (call_.wide_acts) {
      store_written(reinterpret_cast<float*>(call_.work.act) + at, value);
    } else {
      store_written(reinterpret_cast<std::uint16_t*>(call_.work.act) + at,
                    __bfloat16_as_ushort(__float2bfloat16_rn(value)));
    }
  }

  const Call& call_;
  const std::byte* blob_;
  float mul_first_;
  float mul_second_;
};

}  // namespace moxie::cuda::sm90

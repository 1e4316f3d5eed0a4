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
    float values[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      values[i] = fmaf(first[i] * tokens.lower[i % 2], mul_first_, biases.of[i / 2][0]);
    if constexpr (kPhase == kGateUp) {
      float ups[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        ups[i] = values[i];
        if (paired())
          ups[i] = fmaf(second[i] * tokens.lower[i % 2], mul_second_, biases.of[i / 2][1]);
      }
      activate_fast(call_.args.shape.activation, call_.args.shape.activation_limit, values, ups);
    }
#pragma unroll
    for (int token = 0; token < 2; ++token) {
      if (tokens.there[token])
        store_pair(column, tokens.slot[token], values[token], values[token + 2]);
    }
  }

 private:
  __device__ __forceinline__ void load_biases(std::uint32_t column, float (&bias)[2]) const {
    const float* biases = reinterpret_cast<const float*>(blob_ + call_.experts.biases);
    const std::uint64_t inter = call_.args.shape.inter;
    bias[0] = __ldg(biases + (kPhase == kDown ? 2 * inter : paired() ? 0 : inter) + column);
    if (paired()) bias[1] = __ldg(biases + inter + column);
  }

  // Of one token: the rows `column` and `column` + 8.
  __device__ __forceinline__ void store_pair(std::uint32_t column, std::uint32_t slot, float upper,
                                             float lower) const {
    const ExpertsShape& shape = call_.args.shape;
    const auto put = [](auto* to, auto first, auto second) {
      store_written(to, first);
      store_written(to + 8, second);
    };
    if constexpr (kPhase == kDown) {
      put(call_.work.down + std::uint64_t{slot} * shape.hidden + column, upper, lower);
      return;
    }
    const std::uint64_t at = std::uint64_t{slot} * shape.inter + column;
    if (call_.wide_acts) {
      put(reinterpret_cast<float*>(call_.work.act) + at, upper, lower);
    } else {
      put(reinterpret_cast<std::uint16_t*>(call_.work.act) + at,
          __bfloat16_as_ushort(__float2bfloat16_rn(upper)),
          __bfloat16_as_ushort(__float2bfloat16_rn(lower)));
    }
  }

  const Call& call_;
  const std::byte* blob_;
  float mul_first_;
  float mul_second_;
};

}  // namespace moxie::cuda::sm90

// SPDX-License-Identifier: Apache-2.0
// Activation functions with the hardware's exponential and quotient: within 2^-21 of those of
// formats/activation.hpp, which the rare functions still take.
#pragma once

#include "formats/activation.hpp"

namespace moxie::cuda::sm90 {

__device__ __forceinline__ float logistic(float z) {
  return __fdividef(1.0F, 1.0F + __expf(-z));
}

__device__ __forceinline__ float activate_fast(Activation activation, float limit, float gate,
                                               float up) {
  switch (activation) {
    case Activation::silu:
      return gate * logistic(gate) * up;
    case Activation::clamped_swiglu:
      gate = clamp_above(gate, limit);
      return gate * logistic(gate) * clamp_both(up, limit);
    case Activation::oai_swiglu:
      gate = clamp_above(gate, limit);
      return gate * logistic(1.702F * gate) * (clamp_both(up, limit) + 1.0F);
    default:
      return activate(activation, limit, gate, up);
  }
}

}  // namespace moxie::cuda::sm90

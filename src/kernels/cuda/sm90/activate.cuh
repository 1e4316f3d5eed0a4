// SPDX-License-Identifier: Apache-2.0
// Activation functions with the hardware's quotient: within 2^-20 of those of
// formats/activation.hpp, relative to their terms.
#pragma once

#include "formats/activation.hpp"

namespace moxie::cuda::sm90 {

// Of numbers up to 2^128, where a quick division gives 0 from 2^126 on.
__device__ __forceinline__ float reciprocal(float value) {
  float result;
  asm("rcp.approx.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}

__device__ __forceinline__ float logistic(float z) { return reciprocal(1.0F + expf(-z)); }

__device__ __forceinline__ float tanh_fast(float x) {
  const float magnitude = fabsf(x);
  if (magnitude < 0.25F) {  // Taylor's series; what is left out is below 2^-26 of it
    const float y = x * x;
    return x *
           (1.0F + y * (-0.33333333F + y * (0.13333333F + y * (-0.053968254F + y * 0.021869489F))));
  }
  const float e = expf(-2.0F * magnitude);
  const float result = (1.0F - e) * reciprocal(1.0F + e);
  return x < 0 ? -result : x != x ? x : result;
}

// The results take the place of the gates. Several at once, so that none waits for another.
template <int kCount>
__device__ __forceinline__ void activate_fast(Activation activation, float limit,
                                              float (&gates)[kCount], const float (&ups)[kCount]) {
  const auto each = [&](const auto& function) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) gates[i] = function(gates[i], ups[i]);
  };
  switch (activation) {
    case Activation::silu:
      return each([](float gate, float up) { return gate * logistic(gate) * up; });
    case Activation::clamped_swiglu:
      return each([&](float gate, float up) {
        gate = clamp_above(gate, limit);
        return gate * logistic(gate) * clamp_both(up, limit);
      });
    case Activation::oai_swiglu:
      return each([&](float gate, float up) {
        gate = clamp_above(gate, limit);
        return gate * logistic(1.702F * gate) * (clamp_both(up, limit) + 1.0F);
      });
    case Activation::situ:
      return each([](float gate, float up) {
        return 4.0F * tanh_fast(gate / 4.0F) * logistic(gate) * (25.0F * tanh_fast(up / 25.0F));
      });
    case Activation::relu2:
      return each([](float /*gate*/, float up) { return up < 0.0F ? 0.0F : up * up; });
    case Activation::gelu_tanh:
      return each([](float gate, float up) {
        constexpr float kTwoOverRootPi = 0.79788456080286536F;  // sqrt(2 / pi)
        return gate * logistic(2.0F * kTwoOverRootPi * (gate + 0.044715F * gate * gate * gate)) *
               up;
      });
  }
  each([](float /*gate*/, float /*up*/) { return quiet_nan(); });
}

}  // namespace moxie::cuda::sm90

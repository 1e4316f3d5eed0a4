// SPDX-License-Identifier: Apache-2.0
// Activation functions in fp32, per element of the gate and up products (docs/formats.md).
#pragma once

#include <cmath>

#include "kernels/cpu/portable/sigmoid.hpp"
#include "moxie/types.hpp"

namespace moxie::cpu::portable {

constexpr bool supports_activation(Activation /*activation*/) { return true; }

// Comparisons are written so that NaN stays NaN: a hardware minimum would turn it into the limit.
inline float clamp_above(float value, float limit) { return value > limit ? limit : value; }
inline float clamp_both(float value, float limit) {
  return value < -limit ? -limit : clamp_above(value, limit);
}

// act(gate, up); functions without a gate look at up alone. Gates are clamped from above only, up
// on both sides, both before the sigmoid.
inline float activate(Activation activation, float limit, float gate, float up) {
  switch (activation) {
    case Activation::silu:
      return gate / (1.0F + std::exp(-gate)) * up;
    case Activation::clamped_swiglu:
      gate = clamp_above(gate, limit);
      return gate / (1.0F + std::exp(-gate)) * clamp_both(up, limit);
    case Activation::oai_swiglu:
      gate = clamp_above(gate, limit);
      return gate * sigmoid(1.702F * gate) * (clamp_both(up, limit) + 1.0F);
    case Activation::situ:
      return 4.0F * std::tanh(gate / 4.0F) * sigmoid(gate) * (25.0F * std::tanh(up / 25.0F));
    case Activation::relu2:
      return up < 0.0F ? 0.0F : up * up;
    case Activation::gelu_tanh: {
      // gate / 2 * (1 + tanh(z)) as gate * sigmoid(2 z): nothing cancels for a negative z.
      constexpr float kTwoOverRootPi = 0.79788456080286536F;  // sqrt(2 / pi)
      const float z = kTwoOverRootPi * (gate + 0.044715F * gate * gate * gate);
      return gate * sigmoid(2.0F * z) * up;
    }
  }
  return std::nanf("");
}

}  // namespace moxie::cpu::portable

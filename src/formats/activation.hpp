// SPDX-License-Identifier: Apache-2.0
// Activation functions in fp32, per element of the gate and up products (docs/formats.md), the same
// bits on host and device.
#pragma once

#include "base/host_device.hpp"
#include "formats/act_quant.hpp"
#include "formats/elementary.hpp"
#include "moxie/types.hpp"

namespace moxie {

// The logistic function. Neither side overflows.
MOXIE_HD constexpr float sigmoid(float z) {
  const float e = exp_f32(-magnitude_of(z));
  return (z >= 0 ? 1.0F : e) / (1.0F + e);
}

// Comparisons are written so that NaN stays NaN: a hardware minimum would turn it into the limit.
MOXIE_HD constexpr float clamp_above(float value, float limit) {
  return value > limit ? limit : value;
}
MOXIE_HD constexpr float clamp_both(float value, float limit) {
  return value < -limit ? -limit : clamp_above(value, limit);
}

// act(gate, up); functions without a gate look at up alone. Gates are clamped from above only, up
// on both sides, both before the sigmoid.
MOXIE_HD constexpr float activate(Activation activation, float limit, float gate, float up) {
  switch (activation) {
    case Activation::silu:
      return gate / (1.0F + exp_f32(-gate)) * up;
    case Activation::clamped_swiglu:
      gate = clamp_above(gate, limit);
      return gate / (1.0F + exp_f32(-gate)) * clamp_both(up, limit);
    case Activation::oai_swiglu:
      gate = clamp_above(gate, limit);
      return gate * sigmoid(1.702F * gate) * (clamp_both(up, limit) + 1.0F);
    case Activation::situ:
      return 4.0F * tanh_f32(gate / 4.0F) * sigmoid(gate) * (25.0F * tanh_f32(up / 25.0F));
    case Activation::relu2:
      return up < 0.0F ? 0.0F : up * up;
    case Activation::gelu_tanh: {
      // gate / 2 * (1 + tanh(z)) as gate * sigmoid(2 z): nothing cancels for a negative z.
      constexpr float kTwoOverRootPi = 0.79788456080286536F;  // sqrt(2 / pi)
      const float z = kTwoOverRootPi * (gate + 0.044715F * gate * gate * gate);
      return gate * sigmoid(2.0F * z) * up;
    }
  }
  return quiet_nan();
}

}  // namespace moxie

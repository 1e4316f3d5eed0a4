// SPDX-License-Identifier: Apache-2.0
// Activation functions in fp32, per element of the gate and up products.
#pragma once

#include <cmath>

#include "moxie/types.hpp"

namespace moxie::cpu::portable {

constexpr bool supports_activation(Activation activation) {
  return activation == Activation::silu || activation == Activation::clamped_swiglu;
}

inline float silu(float gate) { return gate / (1.0F + std::exp(-gate)); }

// Comparisons are written so that NaN stays NaN: a hardware minimum would turn it into the limit.
inline float clamp_above(float value, float limit) { return value > limit ? limit : value; }
inline float clamp_below(float value, float limit) { return value < limit ? limit : value; }

// The gate is clamped from above only, up on both sides, both before the sigmoid.
inline float activate(Activation activation, float limit, float gate, float up) {
  if (activation == Activation::clamped_swiglu) {
    gate = clamp_above(gate, limit);
    up = clamp_below(clamp_above(up, limit), -limit);
  }
  return silu(gate) * up;
}

}  // namespace moxie::cpu::portable

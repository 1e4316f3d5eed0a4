// SPDX-License-Identifier: Apache-2.0
// Activation functions on intervals: the value, and how far it moves when gate and up do.
#pragma once

#include "moxie/types.hpp"

namespace moxie::ref {

// A value and the largest distance of a correct engine's value from it.
struct Interval {
  double centre = 0;
  double radius = 0;
};

struct ActivationFunction {
  Activation kind = Activation::silu;
  double limit = 0;  // consumed by the functions that clamp; greater than 0
};

// act(gate, up); without a gate, act of up alone. NaN passes through the clamps.
double activate(ActivationFunction function, double gate, double up);

// The radius is the largest |act(g', u') - act(g, u)| over the box that the two intervals span,
// plus what evaluating act in fp32 adds: 16 units of 2^-24 relative, and an exponential that leaves
// the range of fp32. It is infinite or NaN where something is not finite.
Interval activate(ActivationFunction function, Interval gate, Interval up);

}  // namespace moxie::ref

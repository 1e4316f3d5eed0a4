// SPDX-License-Identifier: Apache-2.0
// Gated functions as a product of a function of gate and one of up: the extremes lie at corners.
#include "kernels/ref/activation_range.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/checked.hpp"

namespace moxie::ref {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// silu falls up to its only minimum and rises from there. With W the Lambert function, the minimum
// is -W(1/e) at -1 - W(1/e).
constexpr double kSiluMinimum = -0.2784645427610738;
constexpr double kSiluMinimumAt = kSiluMinimum - 1;

// exp(-gate) exceeds fp32 for a gate below -88.72; 0 is then returned instead of at most
// 88.8 * 2^-128 < 2^-121. The same covers results that are subnormal.
constexpr double kFp32Underflow = 0x1.0p-120;
constexpr double kFp32Evaluation = 16 * 0x1.0p-24;

struct Range {
  double low = 0;
  double high = 0;
};

double silu(double gate) { return gate / (1 + std::exp(-gate)); }

// Comparisons with NaN are false, so it is returned as it is.
double clamp_above(double value, double limit) { return value > limit ? limit : value; }
double clamp_both(double value, double limit) {
  return value < -limit ? -limit : clamp_above(value, limit);
}

Range silu_range(Range gate) {
  const double first = silu(gate.low);
  const double last = silu(gate.high);
  const bool holds_minimum = gate.low < kSiluMinimumAt && kSiluMinimumAt < gate.high;
  return {.low = holds_minimum ? kSiluMinimum : std::min(first, last),
          .high = std::max(first, last)};
}

Range range_of(Interval interval) {
  return {.low = interval.centre - interval.radius, .high = interval.centre + interval.radius};
}

double limit_of(ActivationFunction function) {
  switch (function.kind) {
    case Activation::silu:
      return kInfinity;
    case Activation::clamped_swiglu:
      return function.limit;
    case Activation::oai_swiglu:
    case Activation::situ:
    case Activation::relu2:
    case Activation::gelu_tanh:
      break;
  }
  MOXIE_CHECK(false, "the reference has this activation function");
  return 0;
}

}  // namespace

double activate(ActivationFunction function, double gate, double up) {
  const double limit = limit_of(function);
  return silu(clamp_above(gate, limit)) * clamp_both(up, limit);
}

Interval activate(ActivationFunction function, Interval gate, Interval up) {
  const double limit = limit_of(function);
  const double centre = activate(function, gate.centre, up.centre);
  const Range gates = range_of(gate);
  const Range ups = range_of(up);
  const Range left =
      silu_range({.low = clamp_above(gates.low, limit), .high = clamp_above(gates.high, limit)});
  const Range right = {.low = clamp_both(ups.low, limit), .high = clamp_both(ups.high, limit)};
  double radius = 0;
  for (const double factor : {left.low, left.high}) {
    for (const double other : {right.low, right.high}) {
      const double distance = std::abs(factor * other - centre);
      if (!std::isfinite(distance)) return {.centre = centre, .radius = kInfinity};
      radius = std::max(radius, distance);
    }
  }
  const double up_reach = std::max({1.0, std::abs(right.low), std::abs(right.high)});
  return {.centre = centre,
          .radius = radius + kFp32Evaluation * std::abs(centre) + kFp32Underflow * up_reach};
}

}  // namespace moxie::ref

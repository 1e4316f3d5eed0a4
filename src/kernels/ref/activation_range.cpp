// SPDX-License-Identifier: Apache-2.0
// Every function as the product of one of gate and one of up: the extremes lie at corners.
#include "kernels/ref/activation_range.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

namespace moxie::ref {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// exp(-gate) exceeds fp32 for a gate below -88.72; 0 is then returned instead of at most
// 88.8 * 2^-128 < 2^-121. The same covers results that are subnormal.
constexpr double kFp32Underflow = 0x1.0p-120;
constexpr double kFp32Evaluation = 16 * 0x1.0p-24;

struct Range {
  double low = 0;
  double high = 0;
};

double sigmoid(double value) { return 1 / (1 + std::exp(-value)); }

// Comparisons with NaN are false, so it is returned as it is.
double clamp_above(double value, double limit) { return value > limit ? limit : value; }
double clamp_both(double value, double limit) {
  return value < -limit ? -limit : clamp_above(value, limit);
}

constexpr double kOaiAlpha = 1.702;
constexpr double kSituBeta = 4;
constexpr double kSituLinearBeta = 25;

// The factor of gate, after its clamp.
double gate_factor(Activation kind, double gate) {
  switch (kind) {
    case Activation::silu:
    case Activation::clamped_swiglu:
      return gate * sigmoid(gate);
    case Activation::oai_swiglu:
      return gate * sigmoid(kOaiAlpha * gate);
    case Activation::situ:
      return kSituBeta * std::tanh(gate / kSituBeta) * sigmoid(gate);
    case Activation::relu2:
      return 1;
    case Activation::gelu_tanh: {
      // gate / 2 * (1 + tanh(z)) without the cancellation for a negative z.
      const double z = std::sqrt(2 / std::numbers::pi) * (gate + 0.044715 * gate * gate * gate);
      return gate * sigmoid(2 * z);
    }
  }
  return std::numeric_limits<double>::quiet_NaN();
}

// The factor of up, after its clamp: none falls anywhere.
double up_factor(Activation kind, double up) {
  switch (kind) {
    case Activation::silu:
    case Activation::clamped_swiglu:
    case Activation::gelu_tanh:
      return up;
    case Activation::oai_swiglu:
      return up + 1;
    case Activation::situ:
      return kSituLinearBeta * std::tanh(up / kSituLinearBeta);
    case Activation::relu2:
      return up < 0 ? 0 : up * up;
  }
  return std::numeric_limits<double>::quiet_NaN();
}

// Where a factor of gate has its only minimum: it falls up to there and rises from there.
struct Minimum {
  double at = 0;
  double value = 0;
};

// Of x sigmoid(x): with W the Lambert function, -W(1/e) at -1 - W(1/e).
constexpr double kSiluMinimum = -0.27846454276107380;

Minimum minimum_of(Activation kind) {
  switch (kind) {
    case Activation::silu:
    case Activation::clamped_swiglu:
      return {.at = kSiluMinimum - 1, .value = kSiluMinimum};
    case Activation::oai_swiglu:
      return {.at = (kSiluMinimum - 1) / kOaiAlpha, .value = kSiluMinimum / kOaiAlpha};
    case Activation::situ:
      return {.at = -1.21875572687201246, .value = -0.26976899547249181};
    case Activation::gelu_tanh:
      return {.at = -0.75246142207101626, .value = -0.17004075057125405};
    case Activation::relu2:
      break;
  }
  return {.at = -kInfinity, .value = 1};
}

Range gate_range(Activation kind, Range gate) {
  const double first = gate_factor(kind, gate.low);
  const double last = gate_factor(kind, gate.high);
  const Minimum minimum = minimum_of(kind);
  const bool inside = gate.low < minimum.at && minimum.at < gate.high;
  return {.low = inside ? minimum.value : std::min(first, last), .high = std::max(first, last)};
}

Range range_of(Interval interval) {
  return {.low = interval.centre - interval.radius, .high = interval.centre + interval.radius};
}

double limit_of(ActivationFunction function) {
  return has_limit(function.kind) ? function.limit : kInfinity;
}

}  // namespace

double activate(ActivationFunction function, double gate, double up) {
  const double limit = limit_of(function);
  return gate_factor(function.kind, clamp_above(gate, limit)) *
         up_factor(function.kind, clamp_both(up, limit));
}

Interval activate(ActivationFunction function, Interval gate, Interval up) {
  const double limit = limit_of(function);
  const double centre = activate(function, gate.centre, up.centre);
  const Range gates = range_of(gate);
  const Range ups = range_of(up);
  const Range left = gate_range(function.kind, {.low = clamp_above(gates.low, limit),
                                                .high = clamp_above(gates.high, limit)});
  const Range right = {.low = up_factor(function.kind, clamp_both(ups.low, limit)),
                       .high = up_factor(function.kind, clamp_both(ups.high, limit))};
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

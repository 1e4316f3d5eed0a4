// SPDX-License-Identifier: Apache-2.0
// One cosine and one sine per pair and call.
#include "kernels/ref/rotary.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/checked.hpp"

namespace moxie::ref {

namespace {

// The pair, as a real number, that turns `rotations` times within the original context.
double pair_of(const RotaryParameters& parameters, double rotations) {
  return static_cast<double>(parameters.dims) *
         std::log(parameters.yarn->original_max / (2 * std::numbers::pi * rotations)) /
         (2 * std::log(parameters.theta));
}

// 0 where a pair keeps its frequency, 1 where it is stretched by the whole factor. The limits, and
// the step of 0.001 where both ends meet, are those of the published reference.
double ramp(const RotaryParameters& parameters, double pair) {
  const double low = std::max(std::floor(pair_of(parameters, parameters.yarn->beta_fast)), 0.0);
  double high = std::min(std::ceil(pair_of(parameters, parameters.yarn->beta_slow)),
                         static_cast<double>(parameters.dims) - 1);
  if (low == high) high += 0.001;
  return std::clamp((pair - low) / (high - low), 0.0, 1.0);
}

std::span<double> rotary_part(std::span<double> head, std::span<const double> frequencies) {
  MOXIE_CHECK(2 * frequencies.size() <= head.size(), "a head holds its rotary part");
  return head.last(2 * frequencies.size());
}

}  // namespace

std::vector<double> rotary_frequencies(const RotaryParameters& parameters) {
  MOXIE_CHECK(parameters.dims % 2 == 0, "rotary dimensions are pairs");
  MOXIE_CHECK(
      !parameters.yarn || (parameters.yarn->factor > 0 && parameters.yarn->original_max > 0),
      "YaRN has a factor and a context that it stretches");
  std::vector<double> frequencies;
  for (std::uint64_t pair = 0; pair < parameters.dims / 2; ++pair) {
    const auto i = static_cast<double>(pair);
    const double plain = std::pow(parameters.theta, -2 * i / static_cast<double>(parameters.dims));
    if (!parameters.yarn) {
      frequencies.push_back(plain);
      continue;
    }
    const double stretched = ramp(parameters, i);
    frequencies.push_back(plain * (1 - stretched) + plain / parameters.yarn->factor * stretched);
  }
  return frequencies;
}

void rotate(std::span<double> head, std::span<const double> frequencies, std::uint64_t position,
            Rotation rotation) {
  const std::span<double> part = rotary_part(head, frequencies);
  for (std::size_t pair = 0; pair < frequencies.size(); ++pair) {
    const double angle = static_cast<double>(position) * frequencies[pair];
    const double cosine = std::cos(angle);
    const double sine = rotation == Rotation::forward ? std::sin(angle) : -std::sin(angle);
    const double x0 = part[2 * pair];
    const double x1 = part[2 * pair + 1];
    part[2 * pair] = x0 * cosine - x1 * sine;
    part[2 * pair + 1] = x0 * sine + x1 * cosine;
  }
}

void rotate_magnitude(std::span<double> head, std::span<const double> frequencies,
                      std::uint64_t position) {
  for (double& value : head) value = std::abs(value);
  const std::span<double> part = rotary_part(head, frequencies);
  for (std::size_t pair = 0; pair < frequencies.size(); ++pair) {
    const double angle = static_cast<double>(position) * frequencies[pair];
    const double cosine = std::abs(std::cos(angle));
    const double sine = std::abs(std::sin(angle));
    const double x0 = part[2 * pair];
    const double x1 = part[2 * pair + 1];
    part[2 * pair] = x0 * cosine + x1 * sine;
    part[2 * pair + 1] = x0 * sine + x1 * cosine;
  }
}

}  // namespace moxie::ref

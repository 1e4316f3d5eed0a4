// SPDX-License-Identifier: Apache-2.0
// The global scales that a correct engine may find for nvfp4 activations, and what a block becomes
// under them.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

namespace moxie::ref {

// Largest magnitude of values that are known to within a radius.
struct AmaxRange {
  double centre = 0;
  double least = 0;
  double most = 0;

  // NaN does not count, as it does not for an engine.
  void add(double value, double radius) {
    const double magnitude = std::abs(value);
    if (magnitude > centre) centre = magnitude;
    if (magnitude - radius > least) least = magnitude - radius;
    if (magnitude + radius > most) most = magnitude + radius;
  }
  void add(const AmaxRange& other) {
    centre = std::max(centre, other.centre);
    least = std::max(least, other.least);
    most = std::max(most, other.most);
  }
};

// A global scale: the reference's own, and the intervals in which an engine's may lie. Where an
// amax may be too small to be divided by, the fallback is one of them.
struct GlobalScale {
  struct Range {
    float least = 0;
    float most = 0;
  };
  float centre = 0;
  std::array<Range, 2> ranges;
  std::uint32_t count = 1;
};

// One that is given; the fallback where it is of no use.
GlobalScale given_scale(float scale);
// amax / 2688.
GlobalScale scale_of(const AmaxRange& amax);

// An engine's block scale for a block of this amax, and one value under it, both in fp32.
float block_scale(float amax, float global);
double block_value(float value, float scale, float global);

// Ends of what any value of [low, high] may become, under any block scale of a block with this amax
// and any global scale of the range.
struct ValueRange {
  double least = 0;
  double most = 0;
};
ValueRange value_range(float low, float high, std::uint8_t first_scale, std::uint8_t last_scale,
                       GlobalScale::Range global);
std::uint8_t scale_code(float amax, float global);

}  // namespace moxie::ref

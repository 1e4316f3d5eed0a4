// SPDX-License-Identifier: Apache-2.0
// The activation formats int8 and int8x2, one scalar definition each: groups of 32 columns that
// share an fp32 scale. All arithmetic is fp32, round to nearest even, in exactly this order. What
// is not 0 is a normal number from the scale on: whether subnormals are flushed changes nothing.
#pragma once

#include <cstdint>

#include "base/host_device.hpp"

namespace moxie {

inline constexpr std::uint64_t kInt8Group = 32;
inline constexpr float kInt8Max = 127.0F;
// Steps of the low code of int8x2 in one of the high code.
inline constexpr float kInt8Steps = 254.0F;
// Scales below are 0, and with them the group, whose values lie below 1e-28.
inline constexpr float kInt8LeastScale = 0x1p-100F;

// Nearest integer, ties to even, of |value| < 2^22: one fp32 ulp is 1 there, so that the addition
// itself rounds.
MOXIE_HD constexpr float nearest_integer(float value) {
  constexpr float kAnchor = 0x1.8p23F;
  return (value + kAnchor) - kAnchor;
}

// The scale of a group: amax / 127. 0 where that is below the least scale. NaN where the group has
// a NaN or an Inf, for which there are no codes: the whole group becomes NaN.
MOXIE_HD constexpr float int8_scale(const float* values,  // [count]
                                    std::uint64_t count) {
  constexpr std::uint32_t kInfinityBits = 0x7F800000U;
  // Magnitudes are in the order of their bits, Inf and then NaN above all numbers.
  std::uint32_t most = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint32_t magnitude = bits_as<std::uint32_t>(values[i]) & 0x7FFFFFFFU;
    if (magnitude > most) most = magnitude;
  }
  if (most >= kInfinityBits) return quiet_nan();
  const float scale = bits_as<float>(most) / kInt8Max;
  return scale < kInt8LeastScale ? 0.0F : scale;
}

// Whether a group of this scale has codes other than 0.
MOXIE_HD constexpr bool has_int8_codes(float scale) { return scale > 0; }

// The code of one value under the scale of its group: -127 to 127 without clipping, because the
// quotient exceeds 127 by less than 2^-15.
MOXIE_HD constexpr std::int8_t int8_code(float value, float scale) {
  if (!has_int8_codes(scale)) return 0;
  return static_cast<std::int8_t>(nearest_integer(value / scale));
}

// The low code beside a high code: -127 to 127. The remainder value - scale * high is a number of
// fp32, which one fused multiply-add gives; here it is taken in double, exactly too.
MOXIE_HD constexpr std::int8_t int8x2_low(float value, float scale, std::int8_t high) {
  if (!has_int8_codes(scale)) return 0;
  const auto rest = static_cast<float>(static_cast<double>(value) -
                                       static_cast<double>(scale) * static_cast<double>(high));
  return static_cast<std::int8_t>(nearest_integer(rest * kInt8Steps / scale));
}

// What the codes stand for, rounded to fp32: once for int8, and twice for int8x2.
MOXIE_HD constexpr float int8_value(std::int8_t code, float scale) {
  return scale * static_cast<float>(code);
}
MOXIE_HD constexpr float int8x2_value(std::int8_t high, std::int8_t low, float scale) {
  return scale * ((kInt8Steps * static_cast<float>(high) + static_cast<float>(low)) / kInt8Steps);
}

// Quantises the columns of one group, returns the scale.
MOXIE_HD constexpr float quantise_int8_group(const float* values,  // [count]
                                             std::uint64_t count,
                                             std::int8_t* codes) {  // [count]
  const float scale = int8_scale(values, count);
  for (std::uint64_t i = 0; i < count; ++i) codes[i] = int8_code(values[i], scale);
  return scale;
}

MOXIE_HD constexpr float quantise_int8x2_group(const float* values,  // [count]
                                               std::uint64_t count,
                                               std::int8_t* high,   // [count]
                                               std::int8_t* low) {  // [count]
  const float scale = int8_scale(values, count);
  for (std::uint64_t i = 0; i < count; ++i) {
    high[i] = int8_code(values[i], scale);
    low[i] = int8x2_low(values[i], scale, high[i]);
  }
  return scale;
}

}  // namespace moxie

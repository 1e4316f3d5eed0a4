// SPDX-License-Identifier: Apache-2.0
// E8M0, the power-of-two scale of MXFP4 groups: 2^(code - 127) for 0x00..0xFE, NaN for 0xFF.
#pragma once

#include <cstdint>

#include "base/host_device.hpp"

namespace moxie {

// There is no zero, no Inf and no sign. Code 0x00 is 2^-127, which is legal and subnormal in fp32:
// arithmetic that flushes subnormals loses it. Combine exponents as integers, or decode to double.
inline constexpr std::uint8_t kE8m0One = 0x7F;
inline constexpr std::uint8_t kE8m0MaxCode = 0xFE;
inline constexpr std::uint8_t kE8m0NanCode = 0xFF;

MOXIE_HD constexpr bool is_nan_e8m0(std::uint8_t code) { return code == kE8m0NanCode; }

// Exact. `code << 23` alone would turn 0x00 into 0 and 0xFF into Inf.
MOXIE_HD constexpr float decode_e8m0(std::uint8_t code) {
  if (is_nan_e8m0(code)) return quiet_nan();
  return code == 0 ? bits_as<float>(std::uint32_t{0x00400000})
                   : bits_as<float>(static_cast<std::uint32_t>(code) << 23);
}

// Exact and always normal. Built from the code, because widening the float flushes 2^-127 to zero
// where subnormal inputs count as zero.
MOXIE_HD constexpr double decode_e8m0_double(std::uint8_t code) {
  if (is_nan_e8m0(code)) return static_cast<double>(quiet_nan());
  return bits_as<double>((static_cast<std::uint64_t>(code) + (1023 - 127)) << 52);
}

enum class E8m0Rounding : std::uint8_t {
  floor,  // toward zero: the exponent of the value
  ceil,   // up: the next exponent, unless the value is a power of two
};

enum class E8m0Overflow : std::uint8_t {
  saturate,  // above 2^127 and Inf: 0xFE
  nan,       // above 2^127 when rounded up, and Inf: 0xFF
};

// Code of |value|; the sign is ignored. NaN stays NaN. Values below 2^-127, zero included, become
// 0x00 under either rounding.
MOXIE_HD constexpr std::uint8_t encode_e8m0(float value, E8m0Rounding rounding,
                                            E8m0Overflow overflow) {
  const std::uint32_t magnitude_bits = bits_as<std::uint32_t>(value) & 0x7FFFFFFFU;
  constexpr std::uint32_t kInfinityBits = 0x7F800000U;
  if (magnitude_bits > kInfinityBits) return kE8m0NanCode;

  // In fp32 the codes 1..254 are the biased exponent; code 0 is the subnormal 0x00400000.
  constexpr std::uint32_t kCodeZeroBits = 0x00400000U;
  const std::uint32_t exponent = magnitude_bits >> 23;
  const bool is_above_code =
      exponent == 0 ? magnitude_bits > kCodeZeroBits : (magnitude_bits & 0x007FFFFFU) != 0;
  const std::uint32_t code = exponent + (rounding == E8m0Rounding::ceil && is_above_code ? 1U : 0U);

  if (code <= kE8m0MaxCode) return static_cast<std::uint8_t>(code);
  return overflow == E8m0Overflow::saturate ? kE8m0MaxCode : kE8m0NanCode;
}

}  // namespace moxie

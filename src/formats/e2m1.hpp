// SPDX-License-Identifier: Apache-2.0
// E2M1, the four-bit element of NVFP4 and MXFP4: 16 codes `s e1 e0 m`, sign-magnitude, no Inf, no
// NaN.
#pragma once

#include <cstdint>

#include "base/host_device.hpp"

namespace moxie {

inline constexpr float kE2m1Max = 6.0F;
inline constexpr std::uint8_t kE2m1SignBit = 0x8;

// Value of a code; bits above the low four are ignored. Code 8 is -0.
// By arithmetic: a GPU keeps a table indexed by the code in local memory.
MOXIE_HD constexpr float decode_e2m1(std::uint8_t code) {
  const std::uint32_t magnitude = code & 0x7U;
  constexpr std::uint32_t kHalf = 0x3F000000U;
  // Codes from 2 on are fp32 numbers with other widths: two bits of exponent, one of fraction.
  const std::uint32_t bits = magnitude < 2 ? magnitude * kHalf : (126U << 23) + (magnitude << 22);
  return bits_as<float>(bits | (code & std::uint32_t{kE2m1SignBit}) << 28);
}

// Nearest code; ties go to the code whose low bit is 0, magnitudes above 5 become 6, zero keeps
// its sign. NaN of either sign becomes +6 (0x7), as in hardware: E2M1 has no NaN, so a caller that
// can meet one counts it before encoding.
//
// The bounds are the midpoints of the grid. Each belongs to the even one of its two neighbours,
// hence `<=` below an even code's upper midpoint and `<` below an odd one's.
MOXIE_HD constexpr std::uint8_t encode_e2m1(float value) {
  if (value != value) return 0x7;

  const std::uint32_t bits = bits_as<std::uint32_t>(value);
  const float magnitude = bits_as<float>(bits & 0x7FFFFFFFU);
  const unsigned sign = (bits >> 31) << 3;

  unsigned index = 7;
  if (magnitude <= 0.25F) {
    index = 0;
  } else if (magnitude < 0.75F) {
    index = 1;
  } else if (magnitude <= 1.25F) {
    index = 2;
  } else if (magnitude < 1.75F) {
    index = 3;
  } else if (magnitude <= 2.5F) {
    index = 4;
  } else if (magnitude < 3.5F) {
    index = 5;
  } else if (magnitude <= 5.0F) {
    index = 6;
  }
  return static_cast<std::uint8_t>(sign | index);
}

}  // namespace moxie

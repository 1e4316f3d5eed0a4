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
MOXIE_HD constexpr float decode_e2m1(std::uint8_t code) {
  constexpr float kMagnitudes[8] = {0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F};
  const float magnitude = kMagnitudes[code & 0x7];
  return (code & kE2m1SignBit) != 0 ? -magnitude : magnitude;
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

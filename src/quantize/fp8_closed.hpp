// SPDX-License-Identifier: Apache-2.0
// The block scales under which all E2M1 codes stand for E4M3 numbers.
#pragma once

#include <cstdint>

namespace moxie {

// E2M1 has the significands 1 and 1.5. Their products with 1, 1.25 and 1.5 need three mantissa
// bits, as E4M3 has; with 1.125, 1.375, 1.625, 1.75 and 1.875 they need more. 6 * 64 is the largest
// product in range, 0.5 * 2^-8 the smallest.
inline constexpr std::uint8_t kLeastClosedScale = 0x02;  // 2^-8
inline constexpr std::uint8_t kMostClosedScale = 0x68;   // 64

constexpr bool is_fp8_closed(std::uint8_t scale) {
  if (scale < kLeastClosedScale || scale > kMostClosedScale) return false;
  // Subnormal scales are 1..7 times 2^-9: half of an odd one is no multiple of 2^-9.
  if (scale < 0x08) return scale % 2 == 0;
  const unsigned mantissa = scale & 0x7U;
  return mantissa == 0 || mantissa == 2 || mantissa == 4;
}

}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// E4M3FN, the eight-bit activation element, and UE4M3, its unsigned half that scales NVFP4 blocks.
#pragma once

#include <cstdint>

#include "base/host_device.hpp"

namespace moxie {

// E4M3FN: `s eeee mmm`, bias 7, no Inf; NaN is 0x7F and 0xFF only.
// UE4M3: the same grid in a byte whose top bit is 0; 127 finite codes 0x00..0x7E, NaN 0x7F.
inline constexpr float kE4m3Max = 448.0F;              // code 0x7E
inline constexpr float kE4m3MinNormal = 0.015625F;     // 2^-6, code 0x08
inline constexpr float kE4m3MinSubnormal = 0x1.0p-9F;  // code 0x01
inline constexpr std::uint8_t kE4m3MaxCode = 0x7E;
inline constexpr std::uint8_t kE4m3NanCode = 0x7F;

MOXIE_HD constexpr bool is_nan_e4m3(std::uint8_t code) { return (code & 0x7F) == kE4m3NanCode; }

MOXIE_HD constexpr float decode_e4m3(std::uint8_t code) {
  if (is_nan_e4m3(code)) return quiet_nan();

  const std::uint32_t exponent = (code >> 3) & 0xFU;
  const std::uint32_t mantissa = code & 0x7U;
  // Normal codes move from bias 7 to the fp32 bias 127, and the mantissa to the top of the
  // fraction.
  const float magnitude = exponent == 0
                              ? static_cast<float>(mantissa) * kE4m3MinSubnormal
                              : bits_as<float>(((exponent + 120) << 23) | (mantissa << 20));
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

// Nearest code, ties to even; magnitudes above 448 and Inf become 448. NaN of either sign becomes
// 0x7F.
MOXIE_HD constexpr std::uint8_t encode_e4m3_sat(float value) {
  if (value != value) return kE4m3NanCode;

  const std::uint32_t bits = bits_as<std::uint32_t>(value);
  const std::uint32_t magnitude_bits = bits & 0x7FFFFFFFU;
  const float magnitude = bits_as<float>(magnitude_bits);
  const std::uint32_t sign = (bits >> 31) << 7;

  std::uint32_t code = kE4m3MaxCode;
  if (magnitude < kE4m3MinNormal) {
    // Next to 2^14 one fp32 ulp is 2^-9, the E4M3 subnormal step: the addition itself rounds to
    // nearest even, and the distance in ulps is the code. A carry to 8 is the smallest normal.
    constexpr float kAnchor = 16384.0F;
    code = bits_as<std::uint32_t>(magnitude + kAnchor) - bits_as<std::uint32_t>(kAnchor);
  } else if (magnitude < kE4m3Max) {
    // 20 mantissa bits go: add half of the dropped range, less one unless the kept bit is odd.
    const std::uint32_t kept_is_odd = (magnitude_bits >> 20) & 1U;
    code = ((magnitude_bits + 0x7FFFFU + kept_is_odd) >> 20) - (120U << 3);
  }
  return static_cast<std::uint8_t>(sign | code);
}

MOXIE_HD constexpr bool is_nan_ue4m3(std::uint8_t code) { return code == kE4m3NanCode; }

// Whether a stored block scale is a number. A set top bit is a corrupt file, not a negative scale.
MOXIE_HD constexpr bool is_valid_ue4m3(std::uint8_t code) { return code < kE4m3NanCode; }

// NaN for every byte that is not a valid scale, so that a corrupt byte can not pass for a number.
MOXIE_HD constexpr float decode_ue4m3(std::uint8_t code) {
  return is_valid_ue4m3(code) ? decode_e4m3(code) : quiet_nan();
}

// As encode_e4m3_sat; the range is [0, 448], so negative values saturate to 0.
MOXIE_HD constexpr std::uint8_t encode_ue4m3_sat(float value) {
  return value < 0.0F ? std::uint8_t{0} : static_cast<std::uint8_t>(encode_e4m3_sat(value) & 0x7F);
}

}  // namespace moxie

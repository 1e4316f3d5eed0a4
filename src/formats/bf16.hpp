// SPDX-License-Identifier: Apache-2.0
// bfloat16, carried as its 16 bits: the upper half of an fp32.
#pragma once

#include <cstdint>

#include "base/host_device.hpp"

namespace moxie {

// Exact; NaN payloads and signs pass through.
MOXIE_HD constexpr float decode_bf16(std::uint16_t bits) {
  return bits_as<float>(static_cast<std::uint32_t>(bits) << 16);
}

// Nearest, ties to even. Values that round past the largest finite bf16 become Inf, as in IEEE 754.
// NaN keeps its sign and upper payload and becomes quiet: rounding a payload such as 0x7FFFFFFF up
// would carry into the sign, and truncating 0x7F800001 would give Inf.
MOXIE_HD constexpr std::uint16_t encode_bf16(float value) {
  const std::uint32_t bits = bits_as<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return static_cast<std::uint16_t>((bits >> 16) | 0x0040U);

  const std::uint32_t kept_is_odd = (bits >> 16) & 1U;
  return static_cast<std::uint16_t>((bits + 0x7FFFU + kept_is_odd) >> 16);
}

}  // namespace moxie

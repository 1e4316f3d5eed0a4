// SPDX-License-Identifier: Apache-2.0
// MXFP4 scales: the exponent from the exponent and mantissa bits of the group's maximum.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "formats/ue8m0.hpp"
#include "moxie/quantize.hpp"

namespace moxie {

inline constexpr std::uint8_t kMxfp4ScaleOfZeros = 0x00;

// 6 = 2^2 * 1.5. No logarithm and no reciprocal of 6: at 6 * 2^k they may land on the wrong side.
// Every fp32 number is normal in double.
constexpr std::uint8_t mxfp4_scale_for(float amax, Mxfp4Recipe recipe) {
  constexpr std::uint64_t kHalf = std::uint64_t{1} << 51;
  constexpr std::uint64_t kThreeQuarters = kHalf | (std::uint64_t{1} << 50);
  constexpr int kBias = 127;
  const auto bits = std::bit_cast<std::uint64_t>(static_cast<double>(amax));
  const std::uint64_t fraction = bits & ((std::uint64_t{1} << 52) - 1);
  int exponent = static_cast<int>(bits >> 52) - 1023 - 2;
  switch (recipe) {
    case Mxfp4Recipe::ceil:
    case Mxfp4Recipe::mse:
      exponent += fraction > kHalf ? 1 : 0;
      break;
    case Mxfp4Recipe::even:
      exponent += fraction >= kThreeQuarters ? 1 : 0;
      break;
    case Mxfp4Recipe::floor:
      break;
  }
  return static_cast<std::uint8_t>(std::clamp<int>(exponent + kBias, 0, kE8m0MaxCode));
}

}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// Which block scales each NVFP4 recipe uses and tries.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "formats/e2m1.hpp"
#include "formats/e4m3.hpp"
#include "moxie/quantize.hpp"
#include "quantize/fp8_closed.hpp"

namespace moxie {

inline constexpr std::uint8_t kNvfp4ScaleOfZeros = 0x38;  // 1.0
inline constexpr std::uint8_t kLeastScaleCode = 0x01;

// decode_ue4m3 of every scale, looked up: it stands in the way of every block.
inline constexpr std::array<float, kE4m3MaxCode + 1> kUe4m3Values = [] {
  std::array<float, kE4m3MaxCode + 1> values{};
  for (unsigned code = 0; code < values.size(); ++code)
    values[code] = decode_ue4m3(static_cast<std::uint8_t>(code));
  return values;
}();

// Which scales a recipe uses, and the multiple of the global that a tensor's maximum becomes.
struct ScaleLimits {
  std::uint8_t least = kLeastScaleCode;
  std::uint8_t most = kE4m3MaxCode;
  float global_reach = kE2m1Max * kE4m3Max;
};

constexpr ScaleLimits limits_of(Nvfp4Recipe recipe) {
  switch (recipe) {
    case Nvfp4Recipe::four_over_six:
      // A maximum that becomes 4 needs one and a half times the scale: 384 instead of 256.
      return {.global_reach = kE2m1Max * 256.0F};
    case Nvfp4Recipe::fp8_closed:
      return {.least = kLeastClosedScale,
              .most = kMostClosedScale,
              .global_reach = kE2m1Max * decode_ue4m3(kMostClosedScale)};
    case Nvfp4Recipe::amax:
    case Nvfp4Recipe::mse:
      break;
  }
  return {};
}

// The scale under which `amax` becomes `becomes`, 6 or 4.
constexpr std::uint8_t scale_for(float amax, float becomes, float global,
                                 const ScaleLimits& limits) {
  const float raw = amax / (becomes * global);
  return encode_ue4m3_sat(std::clamp(raw, kUe4m3Values[limits.least], kUe4m3Values[limits.most]));
}

// Scale bytes to try, from the largest down.
struct Candidates {
  std::array<std::uint8_t, 19> codes{};
  std::uint8_t count = 0;
  constexpr void add(std::uint8_t code) { codes[count++] = code; }
};

// The candidates around every scale that makes a block's maximum 6.
constexpr std::array<Candidates, kE4m3MaxCode + 1> candidates_around(Nvfp4Recipe recipe) {
  // Less than 3/4 takes more from the maximum than the others' rounding gives back. 7/4 includes a
  // maximum of 4, however the centre was rounded; beyond, nothing is gained on Gaussian blocks.
  // Eight codes are a factor of two among normal numbers, and more than that below.
  constexpr int kOctave = 8;
  const ScaleLimits limits = limits_of(recipe);
  std::array<Candidates, kE4m3MaxCode + 1> all{};
  for (int centre = limits.least; centre <= limits.most; ++centre) {
    const float centre_value = decode_ue4m3(static_cast<std::uint8_t>(centre));
    const int least = std::max<int>(limits.least, centre - kOctave);
    for (int code = std::min<int>(limits.most, centre + kOctave); code >= least; --code) {
      const auto byte = static_cast<std::uint8_t>(code);
      const float value = decode_ue4m3(byte);
      if (value < centre_value * 0.75F || value > centre_value * 1.75F) continue;
      if (recipe == Nvfp4Recipe::fp8_closed && !is_fp8_closed(byte)) continue;
      all[static_cast<unsigned>(centre)].add(byte);
    }
  }
  return all;
}

// By the scale that makes the maximum 6.
inline constexpr auto kMseCandidates = candidates_around(Nvfp4Recipe::mse);
inline constexpr auto kFp8ClosedCandidates = candidates_around(Nvfp4Recipe::fp8_closed);

}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// What row_kernel.hpp needs, to be included before a target region begins.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "formats/act_quant.hpp"
#include "formats/e2m1.hpp"
#include "quantize/mxfp4_scales.hpp"
#include "quantize/nvfp4_scales.hpp"
#include "quantize/row_kernels.hpp"

namespace moxie {

// A code stands for code * multiplier, exactly; value / divisor, rounded to fp32 once, is what is
// rounded to E2M1.
struct BlockScale {
  float divisor = 1;
  double multiplier = 1;
};

constexpr BlockScale nvfp4_block_scale(std::uint8_t byte, float global) {
  const float scale = kUe4m3Values[byte];
  return {scale * global, static_cast<double>(scale) * static_cast<double>(global)};
}

// Powers of two: a quotient is exact unless it is subnormal.
constexpr BlockScale mxfp4_block_scale(std::uint8_t byte) {
  return {decode_e8m0(byte), decode_e8m0_double(byte)};
}

// The magnitude that encode_e2m1 chooses for |scaled|; sums of comparisons need no branch.
constexpr float nearest_e2m1_magnitude(float magnitude) {
  const auto one_if = [](bool condition) { return condition ? 1.0F : 0.0F; };
  return 0.5F * (one_if(magnitude > 0.25F) + one_if(magnitude >= 0.75F) +
                 one_if(magnitude > 1.25F) + one_if(magnitude >= 1.75F)) +
         one_if(magnitude > 2.5F) + one_if(magnitude >= 3.5F) + 2.0F * one_if(magnitude > 5.0F);
}

// The largest fp32 number that is not above `bound` > 0: a number is above one if it is above the
// other.
constexpr float float_not_above(double bound) {
  constexpr auto kMost = static_cast<double>(std::numeric_limits<float>::max());
  const auto nearest = static_cast<float>(bound < kMost ? bound : kMost);
  const std::uint32_t is_above = static_cast<double>(nearest) > bound ? 1 : 0;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(nearest) - is_above);
}

constexpr double sum_in_pairs(const double (&sums)[8]) {
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

}  // namespace moxie

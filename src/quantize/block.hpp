// SPDX-License-Identifier: Apache-2.0
// One block under one scale: its error, and its codes with their statistics.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>

#include "formats/act_quant.hpp"
#include "formats/e2m1.hpp"
#include "formats/nibble_order.hpp"
#include "moxie/quantize.hpp"

namespace moxie {

// What a scale makes of a block before rounding: `scaled` is rounded to E2M1, and a code stands for
// code * multiplier. The multiplier is exact; `scaled` is rounded to fp32 once.
template <unsigned kElems>
struct ScaledBlock {
  std::array<float, kElems> scaled{};
  double multiplier = 0;
};

// The magnitude that encode_e2m1 chooses for |scaled|; sums of comparisons need no branch.
constexpr float nearest_e2m1_magnitude(float magnitude) {
  const auto one_if = [](bool condition) { return condition ? 1.0F : 0.0F; };
  return 0.5F * (one_if(magnitude > 0.25F) + one_if(magnitude >= 0.75F) +
                 one_if(magnitude > 1.25F) + one_if(magnitude >= 1.75F)) +
         one_if(magnitude > 2.5F) + one_if(magnitude >= 3.5F) + 2.0F * one_if(magnitude > 5.0F);
}

// Sum of squared errors of a block. Four partial sums, added in a fixed order.
template <unsigned kElems>
double squared_error(const float* values, const ScaledBlock<kElems>& block) {
  std::array<float, kElems> nearest;
  for (unsigned i = 0; i < kElems; ++i)
    nearest[i] = nearest_e2m1_magnitude(magnitude_of(block.scaled[i]));
  std::array<double, 4> sums{};
  for (unsigned i = 0; i < kElems; i += 4) {
    for (unsigned lane = 0; lane < 4; ++lane) {
      const double error = static_cast<double>(magnitude_of(values[i + lane])) -
                           static_cast<double>(nearest[i + lane]) * block.multiplier;
      sums[lane] += error * error;
    }
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// The best of `count` scale bytes, which are ordered from the largest scale down: the first with
// the least error. `scale_block(byte)` gives the ScaledBlock.
template <unsigned kElems, class ScaleBlock>
std::uint8_t best_scale(const float* values, const std::uint8_t* candidates, unsigned count,
                        const ScaleBlock& scale_block) {
  if (count == 1) return candidates[0];
  std::uint8_t best = candidates[0];
  double least = std::numeric_limits<double>::infinity();
  for (unsigned i = 0; i < count; ++i) {
    const double error = squared_error<kElems>(values, scale_block(candidates[i]));
    if (error < least) {
      least = error;
      best = candidates[i];
    }
  }
  return best;
}

// Writes the codes and adds the block to `stats`. A value above `reach` is clipped.
template <unsigned kElems>
void encode_block(const float* values, const ScaledBlock<kElems>& block, double reach,
                  std::uint8_t* packed,  // [kElems / 2]
                  QuantStats& stats) {
  float amax = 0;
  unsigned used = 0;
  for (unsigned i = 0; i < kElems; ++i) {
    const std::uint8_t code = encode_e2m1(block.scaled[i]);
    write_nibble(packed, i, NibbleOrder::even_low, kElems, code);
    const auto value = static_cast<double>(values[i]);
    const double error = value - static_cast<double>(decode_e2m1(code)) * block.multiplier;
    const float magnitude = magnitude_of(values[i]);
    const bool is_zero = (code & 0x7) == 0;
    amax = std::max(amax, magnitude);
    used += is_zero ? 0U : 1U;
    stats.flushed_elems += is_zero && magnitude > 0 ? 1U : 0U;
    stats.clipped_elems += static_cast<double>(magnitude) > reach ? 1U : 0U;
    stats.signal += value * value;
    stats.noise += error * error;
    stats.max_error = std::max(stats.max_error, error < 0 ? -error : error);
  }
  stats.elems += kElems;
  ++stats.blocks;
  stats.zero_blocks += amax == 0 ? 1U : 0U;
  stats.underflowed_blocks += amax > 0 && used == 0 ? 1U : 0U;
}

}  // namespace moxie

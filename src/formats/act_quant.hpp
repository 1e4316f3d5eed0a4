// SPDX-License-Identifier: Apache-2.0
// Activation formats, one scalar definition each: what a row of activations becomes before a matrix
// product. All arithmetic is fp32, round to nearest even, in exactly this order.
#pragma once

#include <cstdint>

#include "base/host_device.hpp"
#include "formats/bf16.hpp"
#include "formats/e4m3.hpp"
#include "formats/ue8m0.hpp"
#include "moxie/types.hpp"

namespace moxie {

// Columns that share one scale, counted from the first column of a rank's part; the last group of a
// row may be short. 1: no scale.
MOXIE_HD constexpr std::uint64_t act_group(ActFormat format) {
  return format == ActFormat::fp8 ? 128 : format == ActFormat::mxfp8 ? 32 : 1;
}

// |value| without a library call; NaN stays NaN.
MOXIE_HD constexpr float magnitude_of(float value) {
  return bits_as<float>(bits_as<std::uint32_t>(value) & 0x7FFFFFFFU);
}

// Largest magnitude of a group. NaN does not count: it becomes a NaN code on its own.
MOXIE_HD constexpr float group_amax(const float* values,  // [count]
                                    std::uint64_t count) {
  float amax = 0.0F;
  for (std::uint64_t i = 0; i < count; ++i) {
    const float magnitude = magnitude_of(values[i]);
    if (magnitude > amax) amax = magnitude;
  }
  return amax;
}

// The scale of an fp8 group: s = 2^ceil(log2(max(amax, 1e-4) / 448)), a power of two from 2^-22 up,
// so that x / s and code * s are exact but for E4M3's own rounding.
MOXIE_HD constexpr float fp8_scale(float amax) {
  constexpr float kLeast = 1e-4F;
  const float ratio = (amax > kLeast ? amax : kLeast) / kE4m3Max;
  return decode_e8m0(encode_e8m0(ratio, E8m0Rounding::ceil, E8m0Overflow::saturate));
}

// What one fp8 value stands for under a scale.
MOXIE_HD constexpr float fp8_value(float value, float scale) {
  return decode_e4m3(encode_e4m3_sat(value / scale)) * scale;
}

MOXIE_HD constexpr float bf16_value(float value) { return decode_bf16(encode_bf16(value)); }

// Quantises the columns of one group: codes E4M3 [count], returns the scale.
MOXIE_HD constexpr float quantise_fp8_group(const float* values,  // [count]
                                            std::uint64_t count,
                                            std::uint8_t* codes) {  // [count]
  const float scale = fp8_scale(group_amax(values, count));
  for (std::uint64_t i = 0; i < count; ++i) codes[i] = encode_e4m3_sat(values[i] / scale);
  return scale;
}

// A row as the values that its codes stand for. `values` and `quantised` may be the same. A format
// without a definition here gives NaN, so that it can not pass for one that has.
MOXIE_HD constexpr void quantise_row(ActFormat format,
                                     const float* values,  // [count]
                                     std::uint64_t count,
                                     float* quantised) {  // [count]
  if (format == ActFormat::fp8 || format == ActFormat::mxfp8) {
    const std::uint64_t group = act_group(format);
    for (std::uint64_t first = 0; first < count; first += group) {
      const std::uint64_t columns = count - first < group ? count - first : group;
      const float scale = fp8_scale(group_amax(values + first, columns));
      for (std::uint64_t i = first; i < first + columns; ++i)
        quantised[i] = fp8_value(values[i], scale);
    }
    return;
  }
  for (std::uint64_t i = 0; i < count; ++i)
    quantised[i] = format == ActFormat::bf16 ? bf16_value(values[i]) : quiet_nan();
}

}  // namespace moxie

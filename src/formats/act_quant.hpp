// SPDX-License-Identifier: Apache-2.0
// Activation formats, one scalar definition each: what a row of activations becomes before a matrix
// product. All arithmetic is fp32, round to nearest even, in exactly this order.
#pragma once

#include <cstdint>

#include "base/host_device.hpp"
#include "formats/act_int8.hpp"
#include "formats/bf16.hpp"
#include "formats/e2m1.hpp"
#include "formats/e4m3.hpp"
#include "formats/ue8m0.hpp"
#include "moxie/types.hpp"

namespace moxie {

// Columns that share one scale, counted from the first column of a rank's part; the last group of a
// row may be short. 1: no scale.
MOXIE_HD constexpr std::uint64_t act_group(ActFormat format) {
  return format == ActFormat::fp8 || format == ActFormat::fp8x2     ? 128
         : format == ActFormat::mxfp8                               ? 32
         : format == ActFormat::int8 || format == ActFormat::int8x2 ? kInt8Group
         : format == ActFormat::nvfp4                               ? 16
                                                                    : 1;
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

// 2^ceil(log2(max(amax, 1e-4) / reach)): a power of two far from fp32's least, so that x / s and
// code * s are exact but for E4M3's own rounding.
MOXIE_HD constexpr float power_of_two_scale(float amax, float reach) {
  constexpr float kLeast = 1e-4F;
  const float ratio = (amax > kLeast ? amax : kLeast) / reach;
  return decode_e8m0(encode_e8m0(ratio, E8m0Rounding::ceil, E8m0Overflow::saturate));
}

// The scale of an fp8 group, from 2^-22 up.
MOXIE_HD constexpr float fp8_scale(float amax) { return power_of_two_scale(amax, kE4m3Max); }

// What one fp8 value stands for under a scale.
MOXIE_HD constexpr float fp8_value(float value, float scale) {
  return decode_e4m3(encode_e4m3_sat(value / scale)) * scale;
}

// fp8x2 values stand for (high + low / 32) * s. The largest magnitude becomes up to 240: above it
// the remainder of the high code, 16 at most, would be 512 in 32nds, which E4M3 does not reach.
inline constexpr float kFp8x2Reach = 240.0F;
inline constexpr float kFp8x2Steps = 32.0F;  // of the low code in one of the high code

struct Fp8Pair {
  std::uint8_t high = 0;  // E4M3
  std::uint8_t low = 0;
};

// The scale of an fp8x2 group, from 2^-21 up.
MOXIE_HD constexpr float fp8x2_scale(float amax) { return power_of_two_scale(amax, kFp8x2Reach); }

// The codes of one value under a scale. The remainder of the high code is exact.
MOXIE_HD constexpr Fp8Pair fp8x2_codes(float value, float scale) {
  const float scaled = value / scale;
  const std::uint8_t high = encode_e4m3_sat(scaled);
  return {high, encode_e4m3_sat((scaled - decode_e4m3(high)) * kFp8x2Steps)};
}

// What they stand for; exact, unless it rounds up to 2^128, which is Inf.
MOXIE_HD constexpr float fp8x2_value(float value, float scale) {
  const Fp8Pair codes = fp8x2_codes(value, scale);
  return (decode_e4m3(codes.high) + decode_e4m3(codes.low) / kFp8x2Steps) * scale;
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

MOXIE_HD constexpr float quantise_fp8x2_group(const float* values,  // [count]
                                              std::uint64_t count,
                                              std::uint8_t* high,   // [count]
                                              std::uint8_t* low) {  // [count]
  const float scale = fp8x2_scale(group_amax(values, count));
  for (std::uint64_t i = 0; i < count; ++i) {
    const Fp8Pair codes = fp8x2_codes(values[i], scale);
    high[i] = codes.high;
    low[i] = codes.low;
  }
  return scale;
}

// nvfp4 values stand for code * s * g: s is the E4M3 scale of a block, g the global scale that
// whoever quantises chooses. 6 (largest E2M1) * 448 (largest E4M3) is what a block reaches.
inline constexpr float kNvfp4Reach = 2688.0F;
// In place of a g that is of no use.
inline constexpr float kNvfp4Fallback = 1.0F / kNvfp4Reach;

// Whether s * g is a normal number for every s > 0 and 2688 g is finite. False for NaN.
MOXIE_HD constexpr bool is_act_scale(float g) { return g >= 0x1p-117F && g <= 0x1p116F; }

// The g under which `margin` times this amax is just not clipped; of no use for an amax of 0.
MOXIE_HD constexpr float nvfp4_global(float amax, float margin = 1.0F) {
  return margin * amax / kNvfp4Reach;
}

// Blocks by what became of them.
struct Nvfp4Blocks {
  std::uint64_t saturated = 0;
  std::uint64_t underflowed = 0;
  std::uint64_t not_numbers = 0;
};

// Quantises the columns of one block as code * s, exact in fp32; the product with g is the
// caller's. s = e4m3_sat((amax / 6) / g), d = s * g, code = e2m1(x / d), all 0 where s is 0. E2M1
// has no NaN: it stays one, and is counted. `values` and `scaled` may be the same.
MOXIE_HD constexpr void quantise_nvfp4_block(const float* values,  // [count]
                                             std::uint64_t count, float g,
                                             float* scaled,  // [count]
                                             Nvfp4Blocks& blocks) {
  const float amax = group_amax(values, count);
  const float scale = decode_e4m3(encode_e4m3_sat((amax / kE2m1Max) / g));
  const float divisor = scale * g;
  bool not_number = false;
  for (std::uint64_t i = 0; i < count; ++i) {
    const float value = values[i];
    not_number = not_number || value != value;
    const float code = scale == 0 ? 0.0F : decode_e2m1(encode_e2m1(value / divisor));
    scaled[i] = value != value ? value : code * scale;
  }
  // Both roundings of 2688 * (amax / 2688) together are less than 2^-22; they clip nothing.
  constexpr float kSlack = 1.0F + 0x1p-22F;
  blocks.saturated += amax > kNvfp4Reach * g * kSlack ? 1 : 0;
  blocks.underflowed += scale == 0 && amax > 0 ? 1 : 0;
  blocks.not_numbers += not_number ? 1 : 0;
}

// A row of blocks, the last of which may be short.
MOXIE_HD constexpr void quantise_nvfp4_row(const float* values,  // [count]
                                           std::uint64_t count, float g,
                                           float* scaled,  // [count]
                                           Nvfp4Blocks& blocks) {
  constexpr std::uint64_t kGroup = act_group(ActFormat::nvfp4);
  for (std::uint64_t first = 0; first < count; first += kGroup) {
    const std::uint64_t columns = count - first < kGroup ? count - first : kGroup;
    quantise_nvfp4_block(values + first, columns, g, scaled + first, blocks);
  }
}

// One group as the values that its codes stand for, in a format that has groups and nothing beside
// them. `values` and `quantised` may be the same.
MOXIE_HD constexpr void quantise_group(ActFormat format,
                                       const float* values,  // [count]
                                       std::uint64_t count,
                                       float* quantised) {  // [count]
  const bool is_int8 = format == ActFormat::int8 || format == ActFormat::int8x2;
  const float amax = is_int8 ? 0.0F : group_amax(values, count);
  const float scale = is_int8                      ? int8_scale(values, count)
                      : format == ActFormat::fp8x2 ? fp8x2_scale(amax)
                                                   : fp8_scale(amax);
  for (std::uint64_t i = 0; i < count; ++i) {
    const float value = values[i];
    if (format == ActFormat::int8) {
      quantised[i] = int8_value(int8_code(value, scale), scale);
    } else if (format == ActFormat::int8x2) {
      const std::int8_t high = int8_code(value, scale);
      quantised[i] = int8x2_value(high, int8x2_low(value, scale, high), scale);
    } else if (format == ActFormat::fp8x2) {
      quantised[i] = fp8x2_value(value, scale);
    } else {
      quantised[i] = fp8_value(value, scale);
    }
  }
}

// A row as the values that its codes stand for. `values` and `quantised` may be the same. nvfp4,
// which needs a global scale, gives NaN, so that it can not pass for a format that does not.
MOXIE_HD constexpr void quantise_row(ActFormat format,
                                     const float* values,  // [count]
                                     std::uint64_t count,
                                     float* quantised) {  // [count]
  if (format != ActFormat::bf16 && format != ActFormat::nvfp4) {
    const std::uint64_t group = act_group(format);
    for (std::uint64_t first = 0; first < count; first += group) {
      const std::uint64_t columns = count - first < group ? count - first : group;
      quantise_group(format, values + first, columns, quantised + first);
    }
    return;
  }
  for (std::uint64_t i = 0; i < count; ++i)
    quantised[i] = format == ActFormat::bf16 ? bf16_value(values[i]) : quiet_nan();
}

}  // namespace moxie

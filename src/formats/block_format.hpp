// SPDX-License-Identifier: Apache-2.0
// What a block-scaled FP4 format is made of, how one value decodes, and how units convert.
#pragma once

#include <cstdint>
#include <limits>
#include <stdexcept>

#include "base/host_device.hpp"
#include "formats/e2m1.hpp"
#include "formats/e4m3.hpp"
#include "formats/nibble_order.hpp"
#include "formats/ue8m0.hpp"
#include "moxie/types.hpp"

namespace moxie {

enum class ScaleKind : std::uint8_t { e8m0, ue4m3 };

struct BlockSpec {
  std::uint64_t group_elems = 0;  // elements along K that share one scale byte
  ScaleKind scale_kind = ScaleKind::e8m0;
  bool has_global =
      false;  // one fp32 multiplier per expert and projection on top of the group scale
};

MOXIE_HD constexpr BlockSpec block_spec(BlockFormat format) {
  return format == BlockFormat::mxfp4 ? BlockSpec{32, ScaleKind::e8m0, false}
                                      : BlockSpec{16, ScaleKind::ue4m3, true};
}

// Elements per scale byte.
MOXIE_HD constexpr std::uint64_t scale_group(BlockFormat format) {
  return block_spec(format).group_elems;
}

// Whether a stored scale byte is a number: MXFP4 refuses 0xFF, NVFP4 refuses 0x7F and every set top
// bit.
MOXIE_HD constexpr bool scale_is_valid(BlockFormat format, std::uint8_t scale_byte) {
  return block_spec(format).scale_kind == ScaleKind::e8m0 ? !is_nan_e8m0(scale_byte)
                                                          : is_valid_ue4m3(scale_byte);
}

// Multiplier of a group. Double, so that the E8M0 scale 2^-127 is a normal number; NaN if not
// valid.
MOXIE_HD constexpr double decode_scale(BlockFormat format, std::uint8_t scale_byte) {
  return block_spec(format).scale_kind == ScaleKind::e8m0
             ? decode_e8m0_double(scale_byte)
             : static_cast<double>(decode_ue4m3(scale_byte));
}

// One value. `dequant_mul` is the tensor's global multiplier; 1 where the format has none. Exact
// for every multiplier that is an fp32 number: 2 + 4 + 24 significant bits. An invalid scale gives
// NaN even for a zero code.
MOXIE_HD constexpr double dequantise(std::uint8_t code, std::uint8_t scale_byte, BlockFormat format,
                                     double dequant_mul) {
  return static_cast<double>(decode_e2m1(code)) * decode_scale(format, scale_byte) * dequant_mul;
}

// Value k of a row in the order of safetensors: even k in the low nibble, one scale per group.
MOXIE_HD constexpr double dequantise_element(const std::uint8_t* packed_row,  // [K / 2]
                                             const std::uint8_t* scale_row,   // [K / group]
                                             std::uint64_t k, BlockFormat format,
                                             double dequant_mul) {
  const std::uint64_t group = scale_group(format);
  return dequantise(read_nibble(packed_row, k, NibbleOrder::even_low, group), scale_row[k / group],
                    format, dequant_mul);
}

// The E8M0 byte of the same value as a UE4M3 scale that is a power of two, 2^-9..2^8; its NaN code
// for every other scale.
MOXIE_HD constexpr std::uint8_t e8m0_of_ue4m3(std::uint8_t scale) {
  const unsigned exponent = (scale >> 3) & 0xFU;
  const unsigned mantissa = scale & 7U;
  if (scale == 1 || scale == 2 || scale == 4)  // subnormal: m * 2^-9
    return static_cast<std::uint8_t>(118 + mantissa / 2);
  const bool power = is_valid_ue4m3(scale) && exponent > 0 && mantissa == 0;
  return power ? static_cast<std::uint8_t>(exponent + 120) : kE8m0NanCode;
}

// The E8M0 scale of 32 elements whose two NVFP4 blocks have these scales: both the same power of
// two; else NaN.
MOXIE_HD constexpr std::uint8_t e8m0_of_pair(std::uint8_t first, std::uint8_t second) {
  return first == second ? e8m0_of_ue4m3(first) : kE8m0NanCode;
}

// Conversions of units. They live here only. Going down a length must be whole, going up it must
// fit in 64 bits; otherwise std::invalid_argument. The predicates let a caller refuse with its own
// words.

constexpr bool is_whole_bytes(Elems elems) { return elems.value % 2 == 0; }

constexpr bool is_whole_groups(Elems elems, BlockFormat format) {
  return elems.value % scale_group(format) == 0;
}

constexpr PackedBytes to_packed_bytes(Elems elems) {
  if (!is_whole_bytes(elems)) {
    throw std::invalid_argument("an odd number of 4-bit elements is not a whole number of bytes");
  }
  return PackedBytes{elems.value / 2};
}

constexpr ScaleGroups to_scale_groups(Elems elems, BlockFormat format) {
  if (!is_whole_groups(elems, format)) {
    throw std::invalid_argument("the element count is not a whole number of scale groups");
  }
  return ScaleGroups{elems.value / scale_group(format)};
}

constexpr Elems to_elems(PackedBytes bytes) {
  if (bytes.value > std::numeric_limits<std::uint64_t>::max() / 2) {
    throw std::invalid_argument("the element count does not fit in 64 bits");
  }
  return Elems{bytes.value * 2};
}

constexpr Elems to_elems(ScaleGroups groups, BlockFormat format) {
  if (groups.value > std::numeric_limits<std::uint64_t>::max() / scale_group(format)) {
    throw std::invalid_argument("the element count does not fit in 64 bits");
  }
  return Elems{groups.value * scale_group(format)};
}

}  // namespace moxie

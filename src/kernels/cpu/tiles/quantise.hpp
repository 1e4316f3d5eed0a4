// SPDX-License-Identifier: Apache-2.0
// Rows of activations to records, by the definitions of src/formats. Included inside a target
// region; plain loops, most of which a compiler turns into vectors.
#pragma once

#include "kernels/cpu/tiles/included.hpp"

namespace moxie::cpu::tiles {

template <class Simd>
struct ToBf16 {
  static void record(const float* values, Bf16Record& to) {
    for (std::uint64_t i = 0; i < kTileColumns; ++i) to.values[i] = encode_bf16(values[i]);
  }
  static void record(const std::uint16_t* bf16, Bf16Record& to) {
    std::memcpy(to.values, bf16, sizeof to.values);
  }
  static void values(const Bf16Record& record, float* to) {
    for (std::uint64_t i = 0; i < kTileColumns; ++i) to[i] = decode_bf16(record.values[i]);
  }
};

// bf16 activations for instruction sets without products of bf16.
template <class Simd>
struct ToF32 {
  static void record(const float* values, F32Record& to) {
    for (std::uint64_t i = 0; i < kTileColumns; ++i) to.values[i] = bf16_value(values[i]);
  }
  static void record(const std::uint16_t* bf16, F32Record& to) {
    for (std::uint64_t i = 0; i < kTileColumns; ++i) to.values[i] = decode_bf16(bf16[i]);
  }
  static void values(const F32Record& record, float* to) {
    std::memcpy(to, record.values, sizeof record.values);
  }
};

// The scalar definitions of formats/act_int8.hpp over one group, in loops without branches: what
// has no codes gets them under a divisor of 1 first.
template <class Simd>
struct Int8Group {
  using Octets = std::int8_t __attribute__((vector_size(kTileColumns)));

  float scale;
  std::int32_t codes[kTileColumns];  // by column

  [[gnu::always_inline]] static Int8Group of(const float* values) {
    std::uint32_t bits[kTileColumns];
    std::memcpy(bits, values, sizeof bits);
    std::uint32_t most = 0;
    for (const std::uint32_t word : bits) {
      const std::uint32_t magnitude = word & 0x7FFFFFFFU;
      most = magnitude > most ? magnitude : most;
    }
    float largest = 0;
    std::memcpy(&largest, &most, sizeof largest);
    Int8Group made;
    made.scale = int8_scale(&largest, 1);
    const bool has_codes = has_int8_codes(made.scale);
    const float divisor = has_codes ? made.scale : 1.0F;
    for (std::uint64_t i = 0; i < kTileColumns; ++i) {
      const float value = has_codes ? values[i] : 0.0F;
      made.codes[i] = static_cast<std::int32_t>(nearest_integer(value / divisor));
    }
    return made;
  }

  // The low codes beside these; the remainder is exact in one rounding.
  [[gnu::always_inline]] void low_codes(const float* values, std::int32_t* low) const {
    const bool has_codes = has_int8_codes(scale);
    const float divisor = has_codes ? scale : 1.0F;
    for (std::uint64_t i = 0; i < kTileColumns; ++i) {
      const float value = has_codes ? values[i] : 0.0F;
      const float rest = __builtin_fmaf(-divisor, static_cast<float>(codes[i]), value);
      low[i] = static_cast<std::int32_t>(nearest_integer(rest * kInt8Steps / divisor));
    }
  }

  // Codes in the order of a record, and what its sums start from.
  [[gnu::always_inline]] static void store(const std::int32_t* by_column, std::int8_t* to,
                                           std::int32_t* start) {
    std::int8_t narrow[kTileColumns];
    for (std::uint64_t i = 0; i < kTileColumns; ++i)
      narrow[i] = static_cast<std::int8_t>(by_column[i]);
    Octets octets;
    std::memcpy(&octets, narrow, sizeof octets);
    octets =
        __builtin_shufflevector(octets, octets, 0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11,
                                15, 16, 20, 17, 21, 18, 22, 19, 23, 24, 28, 25, 29, 26, 30, 27, 31);
    std::memcpy(to, &octets, sizeof octets);
    for (std::uint64_t half = 0; half < kHalves; ++half) {
      std::int32_t even = 0;
      std::int32_t odd = 0;
      for (std::uint64_t i = half * 16; i < half * 16 + 16; i += 2) {
        even += by_column[i];
        odd += by_column[i + 1];
      }
      start[half] = Simd::start_of(even, odd);
    }
  }
};

template <class Simd>
struct ToInt8 {
  static void record(const float* values, Int8Record& to) {
    const auto group = Int8Group<Simd>::of(values);
    to.mul = group.scale;
    Int8Group<Simd>::store(group.codes, to.codes, to.start);
  }
  static void record(const std::uint16_t* bf16, Int8Record& to) {
    float values[kTileColumns];
    for (std::uint64_t i = 0; i < kTileColumns; ++i) values[i] = decode_bf16(bf16[i]);
    record(values, to);
  }
  static void values(const Int8Record& record, float* to) {
    for (std::uint64_t i = 0; i < kTileColumns; ++i)
      to[i] = int8_value(record.codes[byte_of_column(i)], record.mul);
  }
};

// The record's mul is a step of the low code.
template <class Simd>
struct ToInt8x2 {
  static void record(const float* values, Int8x2Record& to) {
    const auto group = Int8Group<Simd>::of(values);
    std::int32_t low[kTileColumns];
    group.low_codes(values, low);
    to.mul = group.scale / kInt8Steps;
    Int8Group<Simd>::store(group.codes, to.high, to.start_high);
    Int8Group<Simd>::store(low, to.low, to.start_low);
  }
  static void record(const std::uint16_t* bf16, Int8x2Record& to) {
    float values[kTileColumns];
    for (std::uint64_t i = 0; i < kTileColumns; ++i) values[i] = decode_bf16(bf16[i]);
    record(values, to);
  }
  static void values(const Int8x2Record& record, float* to) {
    for (std::uint64_t i = 0; i < kTileColumns; ++i) {
      const std::uint64_t at = byte_of_column(i);
      to[i] =
          (kInt8Steps * static_cast<float>(record.high[at]) + static_cast<float>(record.low[at])) *
          record.mul;
    }
  }
};

}  // namespace moxie::cpu::tiles

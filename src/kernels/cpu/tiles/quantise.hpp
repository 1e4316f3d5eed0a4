// SPDX-License-Identifier: Apache-2.0
// Rows of activations to records, by the definitions of src/formats. Included inside a target
// region; plain loops, most of which a compiler turns into vectors.
#pragma once

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

// Sums of codes of the even and the odd columns of each half.
template <class Simd>
[[gnu::always_inline]] inline void start_sums(const std::int8_t* codes,  // by column
                                              std::int32_t* start) {
  for (std::uint64_t half = 0; half < kHalves; ++half) {
    std::int32_t even = 0;
    std::int32_t odd = 0;
    for (std::uint64_t i = half * 16; i < half * 16 + 16; i += 2) {
      even += codes[i];
      odd += codes[i + 1];
    }
    start[half] = Simd::start_of(even, odd);
  }
}

template <class Simd>
[[gnu::always_inline]] inline void to_byte_order(const std::int8_t* by_column, std::int8_t* to) {
  for (std::uint64_t i = 0; i < kTileColumns; ++i) to[byte_of_column(i)] = by_column[i];
}

template <class Simd>
struct ToInt8 {
  static void record(const float* values, Int8Record& to) {
    std::int8_t codes[kTileColumns];
    to.mul = quantise_int8_group(values, kTileColumns, codes);
    to_byte_order<Simd>(codes, to.codes);
    start_sums<Simd>(codes, to.start);
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
    std::int8_t high[kTileColumns];
    std::int8_t low[kTileColumns];
    to.mul = quantise_int8x2_group(values, kTileColumns, high, low) / kInt8Steps;
    to_byte_order<Simd>(high, to.high);
    to_byte_order<Simd>(low, to.low);
    start_sums<Simd>(high, to.start_high);
    start_sums<Simd>(low, to.start_low);
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

// SPDX-License-Identifier: Apache-2.0
// Products of two FP4 weight rows with the activation rows of an expert, fp32 accumulation.
//
// A weight row is decoded block by block and multiplied with a tile of activation rows. Every
// (weight row, activation row) pair has its own kLanes partial sums, column c in lane c % kLanes:
// first those of a block, then, lane by lane, the sum of the blocks, added up in a fixed tree at
// the end. The result of a pair depends on nothing but its two rows, whatever is computed beside
// it, and a product passes few roundings (SumOrder of the catalog's entry).
#pragma once

#include <array>
#include <cstdint>
#include <cstring>

#include "formats/block_format.hpp"
#include "moxie/types.hpp"

namespace moxie::cpu::portable {

inline constexpr std::uint64_t kBlock = 256;  // columns decoded and summed up at once
inline constexpr std::uint64_t kTile = 32;    // activation rows that share a decoded chunk
inline constexpr std::uint64_t kLanes = 8;

// Four floats that the compiler keeps in one register of any SIMD machine.
using Vec4 = float __attribute__((vector_size(16)));

inline Vec4 load4(const float* from) {
  Vec4 value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// The eight partial sums of one pair of rows.
struct Lanes {
  Vec4 low = {0, 0, 0, 0};
  Vec4 high = {0, 0, 0, 0};

  [[nodiscard]] float sum() const {
    const Vec4 four = low + high;
    return (four[0] + four[2]) + (four[1] + four[3]);
  }
};

// One weight matrix of an expert inside its blob: row major codes and scales.
struct WeightRows {
  const std::uint8_t* codes = nullptr;   // [rows, columns/2]
  const std::uint8_t* scales = nullptr;  // [rows, columns/group]
  std::uint64_t columns = 0;             // multiple of 32
  float dequant_mul = 1;                 // applied to the finished sum
  const std::uint8_t* bias = nullptr;    // f32 [rows], added last; null: none

  [[nodiscard]] float finished(float sum, std::uint64_t row) const {
    if (bias == nullptr) return sum * dequant_mul;
    float value = 0;
    std::memcpy(&value, bias + row * sizeof value, sizeof value);
    return sum * dequant_mul + value;
  }
};

// The values of both nibbles of every byte, low nibble first.
consteval std::array<float, 512> make_pair_table() {
  std::array<float, 512> table{};
  for (std::size_t byte = 0; byte < 256; ++byte) {
    table[2 * byte] = decode_e2m1(static_cast<std::uint8_t>(byte & 0xF));
    table[2 * byte + 1] = decode_e2m1(static_cast<std::uint8_t>(byte >> 4));
  }
  return table;
}
inline constexpr std::array<float, 512> kPairs = make_pair_table();

// Columns [first, first + count) of a row as code * scale, exact in fp32 (two significant bits
// times at most four).
template <BlockFormat kFormat>
void decode_columns(const WeightRows& weights, std::uint64_t row, std::uint64_t first,
                    std::uint64_t count, float* out) {  // [count]
  constexpr std::uint64_t kGroup = block_spec(kFormat).group_elems;
  const std::uint8_t* codes = weights.codes + row * (weights.columns / 2) + first / 2;
  const std::uint8_t* scales = weights.scales + row * (weights.columns / kGroup) + first / kGroup;
  for (std::uint64_t group = 0; group < count / kGroup; ++group) {
    const float scale =
        kFormat == BlockFormat::mxfp4 ? decode_e8m0(scales[group]) : decode_ue4m3(scales[group]);
    for (std::uint64_t i = 0; i < kGroup / 2; ++i) {
      const float* pair = &kPairs[2 * static_cast<std::size_t>(*codes++)];
      *out++ = pair[0] * scale;
      *out++ = pair[1] * scale;
    }
  }
}

// Adds the sum of `count` columns (multiple of kLanes) of two weight rows times kRows activation
// rows.
template <std::uint64_t kRows>
void multiply_add(const float* weight0, const float* weight1, const float* const* x,
                  std::uint64_t count,
                  std::array<Lanes, 2>* sums) {  // [kRows], one entry per weight row
  std::array<std::array<Lanes, 2>, kRows> local{};
  for (std::uint64_t i = 0; i < count; i += kLanes) {
    const Vec4 w0_low = load4(weight0 + i);
    const Vec4 w0_high = load4(weight0 + i + 4);
    const Vec4 w1_low = load4(weight1 + i);
    const Vec4 w1_high = load4(weight1 + i + 4);
    for (std::uint64_t r = 0; r < kRows; ++r) {
      const Vec4 x_low = load4(x[r] + i);
      const Vec4 x_high = load4(x[r] + i + 4);
      local[r][0].low += w0_low * x_low;
      local[r][0].high += w0_high * x_high;
      local[r][1].low += w1_low * x_low;
      local[r][1].high += w1_high * x_high;
    }
  }
  for (std::uint64_t r = 0; r < kRows; ++r) {
    for (std::size_t side = 0; side < 2; ++side) {
      sums[r][side].low += local[r][side].low;
      sums[r][side].high += local[r][side].high;
    }
  }
}

// Row `row0` of `first` and row `row1` of `second` (the same width) times `rows` <= kTile
// activation rows: results[r] = {sum with first, sum with second}, dequantised. `x_scale`
// multiplies the sums of its row before that; null: nothing does.
template <BlockFormat kFormat>
void multiply_pair(const WeightRows& first, std::uint64_t row0, const WeightRows& second,
                   std::uint64_t row1, const float* const* x,
                   const float* x_scale,                                 // [rows]
                   std::uint64_t rows, std::array<float, 2>* results) {  // [rows]
  alignas(64) std::array<float, kBlock> weight0;
  alignas(64) std::array<float, kBlock> weight1;
  std::array<std::array<Lanes, 2>, kTile> sums{};
  for (std::uint64_t column = 0; column < first.columns; column += kBlock) {
    const std::uint64_t rest = first.columns - column;
    const std::uint64_t count = rest < kBlock ? rest : kBlock;
    decode_columns<kFormat>(first, row0, column, count, weight0.data());
    decode_columns<kFormat>(second, row1, column, count, weight1.data());
    std::uint64_t r = 0;
    for (; r + 2 <= rows; r += 2) {
      const std::array<const float*, 2> pair = {x[r] + column, x[r + 1] + column};
      multiply_add<2>(weight0.data(), weight1.data(), pair.data(), count, &sums[r]);
    }
    if (r < rows) {
      const std::array<const float*, 1> last = {x[r] + column};
      multiply_add<1>(weight0.data(), weight1.data(), last.data(), count, &sums[r]);
    }
  }
  for (std::uint64_t r = 0; r < rows; ++r) {
    const float scale = x_scale == nullptr ? 1.0F : x_scale[r];
    results[r] = {first.finished(sums[r][0].sum() * scale, row0),
                  second.finished(sums[r][1].sum() * scale, row1)};
  }
}

}  // namespace moxie::cpu::portable

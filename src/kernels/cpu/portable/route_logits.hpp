// SPDX-License-Identifier: Apache-2.0
// Logits of a router: fp32 dot products whose order depends on the width alone.
//
// Every lane sums the columns of one remainder of kLogitLanes in ascending order; at the end the
// lanes are added in a fixed tree. A short last step is filled with zeros.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "moxie/types.hpp"

namespace moxie::cpu::portable {

inline constexpr std::size_t kLogitLanes = 16;

// Tokens that share one pass over a weight row: their lanes and the row's fit in 16 registers.
inline constexpr std::size_t kTokenTile = 2;

using FourFloats = float __attribute__((vector_size(16)));
using FourPairs = std::uint32_t __attribute__((vector_size(16)));

// One value per lane. Even and odd columns lie apart, because that is how a register of bf16 pairs
// comes apart without shuffles. Named members stay in registers.
struct StepValues {
  FourFloats a{};  // columns 0, 2, 4, 6
  FourFloats b{};  // columns 1, 3, 5, 7
  FourFloats c{};  // columns 8, 10, 12, 14
  FourFloats d{};  // columns 9, 11, 13, 15

  void add_product(const StepValues& weight, const StepValues& x) {
    a += weight.a * x.a;
    b += weight.b * x.b;
    c += weight.c * x.c;
    d += weight.d * x.d;
  }
  [[nodiscard]] float sum() const {
    const FourFloats four = (a + c) + (b + d);
    return (four[0] + four[2]) + (four[1] + four[3]);
  }
};

template <DType kType>
inline constexpr std::size_t kElemBytes = kType == DType::f32 ? 4 : 2;

// kLogitLanes elements at any alignment as fp32.
template <DType kType>
inline StepValues load_step(const std::byte* from) {
  static_assert(kType == DType::bf16 || kType == DType::f32, "a router reads bf16 and f32");
  static_assert(std::endian::native == std::endian::little, "bf16 is the upper half of an fp32");
  StepValues values;
  const auto load_eight = [from](std::size_t column, FourFloats& even, FourFloats& odd) {
    if constexpr (kType == DType::f32) {
      FourFloats low;
      FourFloats high;
      std::memcpy(&low, from + 4 * column, sizeof low);
      std::memcpy(&high, from + 4 * column + 16, sizeof high);
      even = __builtin_shufflevector(low, high, 0, 2, 4, 6);
      odd = __builtin_shufflevector(low, high, 1, 3, 5, 7);
    } else {
      FourPairs pairs;
      std::memcpy(&pairs, from + 2 * column, sizeof pairs);
      even = std::bit_cast<FourFloats>(pairs << 16);
      odd = std::bit_cast<FourFloats>(pairs & 0xFFFF0000U);
    }
  };
  load_eight(0, values.a, values.b);
  load_eight(8, values.c, values.d);
  return values;
}

// The first `count` elements of a step, and zeros.
template <DType kType>
inline StepValues load_short_step(const std::byte* from, std::size_t count) {
  std::array<std::byte, kLogitLanes * kElemBytes<kType>> padded{};
  std::memcpy(padded.data(), from, count * kElemBytes<kType>);
  return load_step<kType>(padded.data());
}

// One weight row against kTokens rows of x that are `x_stride` bytes apart.
template <DType kWeight, DType kX, std::size_t kTokens>
void dot_tile(const std::byte* weight, const std::byte* x, std::uint64_t x_stride,
              std::uint64_t hidden, float* logits, std::uint64_t logits_stride) {
  std::array<StepValues, kTokens> lanes{};
  std::uint64_t h = 0;
  for (; h + kLogitLanes <= hidden; h += kLogitLanes) {
    const StepValues w = load_step<kWeight>(weight + h * kElemBytes<kWeight>);
    for (std::size_t t = 0; t < kTokens; ++t) {
      lanes[t].add_product(w, load_step<kX>(x + t * x_stride + h * kElemBytes<kX>));
    }
  }
  if (const auto rest = static_cast<std::size_t>(hidden - h); rest > 0) {
    const StepValues w = load_short_step<kWeight>(weight + h * kElemBytes<kWeight>, rest);
    for (std::size_t t = 0; t < kTokens; ++t) {
      const std::byte* last = x + t * x_stride + h * kElemBytes<kX>;
      lanes[t].add_product(w, load_short_step<kX>(last, rest));
    }
  }
  for (std::size_t t = 0; t < kTokens; ++t) logits[t * logits_stride] = lanes[t].sum();
}

// One weight row against 1 to kTokenTile rows of x.
using DotRow = void (*)(const std::byte* weight, const std::byte* x, std::uint64_t x_stride,
                        std::size_t tokens, std::uint64_t hidden, float* logits,
                        std::uint64_t logits_stride);

template <DType kWeight, DType kX>
void dot_row(const std::byte* weight, const std::byte* x, std::uint64_t x_stride,
             std::size_t tokens, std::uint64_t hidden, float* logits, std::uint64_t logits_stride) {
  static_assert(kTokenTile == 2, "one case per number of tokens");
  if (tokens == 1) {
    dot_tile<kWeight, kX, 1>(weight, x, x_stride, hidden, logits, logits_stride);
  } else {
    dot_tile<kWeight, kX, 2>(weight, x, x_stride, hidden, logits, logits_stride);
  }
}

inline DotRow choose_dot_row(DType weight, DType x) {
  if (weight == DType::bf16) {
    return x == DType::bf16 ? dot_row<DType::bf16, DType::bf16> : dot_row<DType::bf16, DType::f32>;
  }
  return x == DType::bf16 ? dot_row<DType::f32, DType::bf16> : dot_row<DType::f32, DType::f32>;
}

}  // namespace moxie::cpu::portable

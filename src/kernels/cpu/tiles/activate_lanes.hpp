// SPDX-License-Identifier: Apache-2.0
// The activation functions of formats/activation.hpp for several lanes at once, bit for bit.
// Included inside a target region.
#pragma once

#include "kernels/cpu/tiles/included.hpp"

namespace moxie::cpu::tiles {

// Depends on an instruction set's own type, so that no linker takes one for the other.
template <class Simd>
struct ActivateLanes {
  static constexpr std::uint64_t kLanes = Simd::kLanes / 2;  // doubles of one register
  using Floats = typename Simd::FloatLanes;
  using Doubles = typename Simd::DoubleLanes;
  using Words = typename Simd::WordLanes;

  // Functions that have lanes here.
  static bool has(Activation activation) {
    return activation == Activation::silu || activation == Activation::clamped_swiglu ||
           activation == Activation::oai_swiglu;
  }

  // to[i] = activate(activation, limit, gate[i], up[i]); `to` may be one of them.
  [[gnu::always_inline]] static void run(Activation activation, float limit, const float* gate,
                                         const float* up, float* to) {
    Floats g;
    Floats u;
    std::memcpy(&g, gate, sizeof g);
    std::memcpy(&u, up, sizeof u);
    if (activation != Activation::silu) {
      g = g > limit ? Floats{} + limit : g;
      u = u > limit ? Floats{} + limit : u;
      u = u < -limit ? Floats{} - limit : u;
    }
    Floats result;
    if (activation == Activation::oai_swiglu) {
      result = g * sigmoid(1.702F * g) * (u + 1.0F);
    } else {
      result = g / (1.0F + exp(-g)) * u;
    }
    std::memcpy(to, &result, sizeof result);
  }

 private:
  [[gnu::always_inline]] static Floats sigmoid(Floats z) {
    const Floats e = exp(z < 0.0F ? z : -z);
    return (z >= 0.0F ? Floats{} + 1.0F : e) / (1.0F + e);
  }

  // exp_f32(): in double, of an x within its ends; what lies outside is put in afterwards.
  [[gnu::always_inline]] static Floats exp(Floats x) {
    constexpr float kOverflow = 89.0F;
    constexpr float kUnderflow = -105.0F;
    Floats inside = x > kOverflow ? Floats{} + kOverflow : x;
    inside = inside < kUnderflow ? Floats{} + kUnderflow : inside;
    Floats value = __builtin_convertvector(exp(__builtin_convertvector(inside, Doubles)), Floats);
    value = x > kOverflow ? Floats{} + __builtin_inff() : value;
    value = x < kUnderflow ? Floats{} : value;
    return x == x ? value : x;  // NOLINT(misc-redundant-expression): NaN
  }

  // exp_double(), whose comments hold here.
  [[gnu::always_inline]] static Doubles exp(Doubles x) {
    constexpr double kLog2E = 1.4426950408889634;
    constexpr double kLn2High = 0x1.62e42fefap-1;
    constexpr double kLn2Low = 0x1.cf79abc9e3b3ap-40;
    constexpr double kToInteger = 0x1.8p52;
    const Doubles shifted = x * kLog2E + kToInteger;
    const Doubles n = shifted - kToInteger;
    const Doubles r = (x - n * kLn2High) - n * kLn2Low;
    Doubles sum = Doubles{} + 1.0 / 3628800;
    sum = sum * r + 1.0 / 362880;
    sum = sum * r + 1.0 / 40320;
    sum = sum * r + 1.0 / 5040;
    sum = sum * r + 1.0 / 720;
    sum = sum * r + 1.0 / 120;
    sum = sum * r + 1.0 / 24;
    sum = sum * r + 1.0 / 6;
    sum = sum * r + 0.5;
    sum = sum * r + 1.0;
    sum = sum * r + 1.0;
    // The whole number stands in the low bits of `shifted`.
    Words bits;
    std::memcpy(&bits, &shifted, sizeof bits);
    constexpr std::int64_t kToIntegerBits = 0x4338000000000000;
    bits = (bits - kToIntegerBits + 1023) << 52;
    Doubles power;
    std::memcpy(&power, &bits, sizeof power);
    return sum * power;
  }
};

}  // namespace moxie::cpu::tiles

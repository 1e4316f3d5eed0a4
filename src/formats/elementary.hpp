// SPDX-License-Identifier: Apache-2.0
// exp, tanh and log1p in fp32 that give the same bits on every machine: library functions differ
// from host to device and from one release to the next.
//
// All of them compute in double, with additions and multiplications in a stated order and no fused
// multiply-add, and round once; the error is half a unit in the last place of fp32 plus less than
// 2^-16 of one.
#pragma once

#include <cstdint>

#include "base/host_device.hpp"

namespace moxie {

// e^x for |x| <= 160, relative error below 2^-41.
MOXIE_HD constexpr double exp_double(double x) {
  constexpr double kLog2E = 1.4426950408889634;
  constexpr double kLn2High = 0x1.62e42fefap-1;  // 35 bits: the product with n is exact
  constexpr double kLn2Low = 0x1.cf79abc9e3b3ap-40;
  constexpr double kToInteger = 0x1.8p52;  // next to it doubles are the whole numbers
  const double shifted = x * kLog2E + kToInteger;
  const double n = shifted - kToInteger;
  const double r = (x - n * kLn2High) - n * kLn2Low;  // |r| <= ln(2) / 2
  // Taylor's series; the first term that is left out is below 2^-42.
  double sum = 1.0 / 3628800;
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
  const auto exponent = static_cast<std::uint64_t>(1023 + static_cast<std::int64_t>(n));
  return sum * bits_as<double>(exponent << 52);
}

MOXIE_HD constexpr float exp_f32(float x) {
  if (x != x) return x;
  constexpr float kOverflow = 89.0F;     // e^88.73 is already above the largest number
  constexpr float kUnderflow = -105.0F;  // e^-104 is below half of the smallest
  if (x > kOverflow) return bits_as<float>(std::uint32_t{0x7F800000});
  if (x < kUnderflow) return 0.0F;
  const double value = exp_double(static_cast<double>(x));
  constexpr double kMost = 0x1.ffffffp127;  // from here on rounding to fp32 gives Inf
  return value >= kMost ? bits_as<float>(std::uint32_t{0x7F800000}) : static_cast<float>(value);
}

MOXIE_HD constexpr float tanh_f32(float x) {
  if (x != x) return x;
  const auto value = static_cast<double>(x);
  const double magnitude = value < 0 ? -value : value;
  if (magnitude < 0x1p-10) {  // below it e^2x - 1 loses bits, and two terms are enough
    return static_cast<float>(value * (1 - value * value * (1.0 / 3)));
  }
  constexpr double kOne = 10;  // from here on the result rounds to 1
  if (magnitude > kOne) return value < 0 ? -1.0F : 1.0F;
  const double power = exp_double(2 * magnitude);
  const double result = (power - 1) / (power + 1);
  return static_cast<float>(value < 0 ? -result : result);
}

// log(1 + y) for y in [0, 1]; NaN stays NaN.
MOXIE_HD constexpr float log1p_f32(float y) {
  // 2 atanh(s), s <= 1/3: the first term that is left out is below 2^-43 of the sum.
  const double s = static_cast<double>(y) / (2 + static_cast<double>(y));
  const double square = s * s;
  double sum = 1.0 / 27;
  for (int odd = 25; odd >= 1; odd -= 2) sum = sum * square + 1.0 / odd;
  return static_cast<float>(2 * s * sum);
}

}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// What fp32 sums may be off by, and biases.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/ref/reference.hpp"

namespace moxie::ref {

inline constexpr double kFp32Epsilon = 0x1.0p-24;     // largest relative error of one fp32 rounding
inline constexpr double kFp32Subnormal = 0x1.0p-149;  // and absolute, where it underflows

// Error of a sum of fp32 terms, scaled by `mul`, whose magnitudes add up to `magnitude`. A term
// that passes n roundings is off by a factor of at most (1 + eps)^n, and that by n eps / (1 - n
// eps). `unit` is what an engine leaves out of its terms and multiplies the sum by first.
inline double accumulation_error(std::uint64_t roundings, double magnitude, double mul,
                                 double unit = 1) {
  const auto n = static_cast<double>(roundings);
  return n * kFp32Epsilon / (1 - n * kFp32Epsilon) * magnitude * std::abs(mul) +
         n * kFp32Subnormal * std::max(1.0, std::abs(mul)) * std::max(1.0, unit);
}

inline double bias_of(const Matrix& matrix, std::uint64_t row) {
  if (matrix.bias == nullptr) return 0;
  float value = 0;
  std::memcpy(&value, matrix.bias + row * sizeof value, sizeof value);
  return value;
}

// The rounding of a sum to which a bias was added.
inline double bias_error(const Matrix& matrix, double sum) {
  return matrix.bias != nullptr ? 2 * kFp32Epsilon * std::abs(sum) : 0;
}

}  // namespace moxie::ref

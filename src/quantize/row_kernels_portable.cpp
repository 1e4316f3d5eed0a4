// SPDX-License-Identifier: Apache-2.0
// The quantiser's inner loops in plain C++: lanes are arrays.
#include <array>
#include <cstring>

#include "formats/bf16.hpp"
#include "quantize/row_kernel.hpp"
#include "quantize/row_kernels.hpp"
#include "quantize/row_scalars.hpp"

namespace moxie {

namespace {

struct PortableLanes {
  using Floats = std::array<float, 16>;
  using Quad = std::array<double, 4>;
  struct Doubles {
    std::array<double, 8> lanes{};
    Doubles operator+(const Doubles& y) const {
      Doubles sum;
      for (unsigned i = 0; i < 8; ++i) sum.lanes[i] = lanes[i] + y.lanes[i];
      return sum;
    }
    Doubles operator-(const Doubles& y) const {
      Doubles difference;
      for (unsigned i = 0; i < 8; ++i) difference.lanes[i] = lanes[i] - y.lanes[i];
      return difference;
    }
    Doubles operator*(const Doubles& y) const {
      Doubles product;
      for (unsigned i = 0; i < 8; ++i) product.lanes[i] = lanes[i] * y.lanes[i];
      return product;
    }
  };

  static Floats load_f32(const std::byte* from) {
    Floats values;
    std::memcpy(values.data(), from, sizeof(values));
    return values;
  }
  static Floats load_bf16(const std::byte* from) {
    std::array<std::uint16_t, 16> bits;
    std::memcpy(bits.data(), from, sizeof(bits));
    Floats values;
    for (unsigned i = 0; i < 16; ++i) values[i] = decode_bf16(bits[i]);
    return values;
  }

  static Floats magnitude(Floats x) {
    for (float& value : x) value = magnitude_of(value);
    return x;
  }
  static Floats larger(Floats x, const Floats& y) {
    for (unsigned i = 0; i < 16; ++i) x[i] = y[i] > x[i] ? y[i] : x[i];
    return x;
  }
  static float largest_of(const Floats& x) { return group_amax(x.data(), x.size()); }
  static Floats larger_bits(Floats x, const Floats& y) {
    for (unsigned i = 0; i < 16; ++i) {
      x[i] = std::bit_cast<float>(
          std::max(std::bit_cast<std::uint32_t>(x[i]), std::bit_cast<std::uint32_t>(y[i])));
    }
    return x;
  }
  static std::uint32_t largest_bits_of(const Floats& x) {
    std::uint32_t largest = 0;
    for (const float value : x) largest = std::max(largest, std::bit_cast<std::uint32_t>(value));
    return largest;
  }
  static Floats divided(Floats x, float divisor) {
    for (float& value : x) value /= divisor;
    return x;
  }
  static unsigned count_above(const Floats& x, float bound) {
    unsigned count = 0;
    for (const float value : x) count += value > bound ? 1U : 0U;
    return count;
  }

  struct Nearest {
    Floats values;
    std::array<std::uint32_t, 16> codes;
  };
  static Nearest nearest(const Floats& magnitudes) {
    Nearest result;
    for (unsigned i = 0; i < 16; ++i) {
      const float x = magnitudes[i];
      result.values[i] = nearest_e2m1_magnitude(x);
      result.codes[i] = (x > 0.25F ? 1U : 0U) + (x >= 0.75F ? 1U : 0U) + (x > 1.25F ? 1U : 0U) +
                        (x >= 1.75F ? 1U : 0U) + (x > 2.5F ? 1U : 0U) + (x >= 3.5F ? 1U : 0U) +
                        (x > 5.0F ? 1U : 0U);
    }
    return result;
  }

  // Codes with the signs of `values`, even columns in the low nibbles.
  static void write_codes(const std::array<std::uint32_t, 16>& codes, const Floats& values,
                          std::uint8_t* packed) {
    std::array<std::uint32_t, 16> nibbles;
    for (unsigned i = 0; i < 16; ++i)
      nibbles[i] = codes[i] | ((std::bit_cast<std::uint32_t>(values[i]) >> 28) & kE2m1SignBit);
    for (std::size_t i = 0; i < 8; ++i)
      packed[i] = static_cast<std::uint8_t>(nibbles[2 * i] | (nibbles[2 * i + 1] << 4));
  }

  static Doubles zeros() { return {}; }
  static Doubles all(double x) {
    Doubles result;
    result.lanes.fill(x);
    return result;
  }
  static Doubles magnitude(Doubles x) {
    for (double& value : x.lanes) value = value < 0 ? -value : value;
    return x;
  }
  static Doubles larger(Doubles x, const Doubles& y) {
    for (unsigned i = 0; i < 8; ++i) x.lanes[i] = y.lanes[i] > x.lanes[i] ? y.lanes[i] : x.lanes[i];
    return x;
  }
  static Doubles low(const Floats& x) {
    Doubles result;
    for (unsigned i = 0; i < 8; ++i) result.lanes[i] = static_cast<double>(x[i]);
    return result;
  }
  static Doubles high(const Floats& x) {
    Doubles result;
    for (unsigned i = 0; i < 8; ++i) result.lanes[i] = static_cast<double>(x[i + 8]);
    return result;
  }
  static void store(const Doubles& x, double (&to)[8]) {
    std::copy(x.lanes.begin(), x.lanes.end(), to);
  }

  static Quad quad_zeros() { return {}; }
  static Quad add_fours(Quad sums, const Doubles& x) {
    for (unsigned i = 0; i < 8; ++i) sums[i % 4] += x.lanes[i];
    return sums;
  }
  static double sum_of(const Quad& x) { return (x[0] + x[1]) + (x[2] + x[3]); }
};

}  // namespace

using PortableKernel = RowKernel<PortableLanes>;
const RowKernels kPortableRowKernels = {"portable", PortableKernel::largest_bits,
                                        PortableKernel::nvfp4, PortableKernel::mxfp4};

}  // namespace moxie

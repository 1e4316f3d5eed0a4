// SPDX-License-Identifier: Apache-2.0
// Casts between the two formats. Scales that are powers of two move as exponents; codes stay.
#include <algorithm>
#include <bit>
#include <utility>

#include "base/checked.hpp"
#include "formats/block_format.hpp"
#include "formats/e2m1.hpp"
#include "formats/e4m3.hpp"
#include "formats/ue8m0.hpp"
#include "moxie/quantize.hpp"
#include "moxie/status.hpp"
#include "quantize/source_rows.hpp"

namespace moxie {

namespace {

constexpr std::uint64_t kMxGroup = 32;
constexpr std::uint64_t kNvGroup = 16;
constexpr int kE8m0Bias = 127;
constexpr std::uint8_t kMxScaleOfZeros = 0x00;
constexpr std::uint8_t kNvScaleOfZeros = 0x38;
// UE4M3 holds the powers 2^-9..2^8.
constexpr int kLeastNvExponent = -9;
constexpr int kMostNvExponent = 8;
constexpr int kLeastGlobalExponent = -117;  // kNvfp4LeastGlobal

// A positive normal or subnormal power of two as its exponent.
std::optional<int> exponent_of(float value) {
  const auto bits = std::bit_cast<std::uint64_t>(static_cast<double>(value));
  const bool is_power = (bits & ((std::uint64_t{1} << 52) - 1)) == 0 && value > 0;
  if (!is_power) return std::nullopt;
  return static_cast<int>(bits >> 52) - 1023;
}

// 2^exponent for -126..127.
float power_of_two(int exponent) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(exponent + 127) << 23);
}

std::uint8_t ue4m3_power(int exponent) { return encode_ue4m3_sat(power_of_two(exponent)); }

// `bytes` packed codes: are all of them zeros, of either sign?
bool is_zeros(const std::uint8_t* codes, std::uint64_t bytes) {
  return std::all_of(codes, codes + bytes, [](std::uint8_t byte) { return (byte & 0x77) == 0; });
}

// Rounds the codes of a group after multiplying them by 2^shift, shift < 0. Whether a value
// changed.
bool shift_codes(std::uint8_t* codes, std::uint64_t bytes, int shift) {
  // 6 * 2^-5 is below a quarter: everything becomes zero from there on.
  const float factor = power_of_two(std::max(shift, -5));
  bool changed = false;
  const auto shifted = [&](std::uint8_t code) {
    const float exact = decode_e2m1(code) * factor;
    const std::uint8_t rounded = encode_e2m1(exact);
    changed = changed || decode_e2m1(rounded) != exact;
    return rounded;
  };
  for (std::uint64_t i = 0; i < bytes; ++i) {
    const std::uint8_t low = shifted(low_nibble(codes[i]));
    const std::uint8_t high = shifted(high_nibble(codes[i]));
    codes[i] = static_cast<std::uint8_t>(low | (high << 4U));
  }
  return changed;
}

void require_shape(const Fp4MatrixRef& matrix, BlockFormat format) {
  MOXIE_CHECK(matrix.format == format, "a cast gets the format that it casts from");
  require_whole_groups(matrix.cols, format);
}

// The largest scale byte of an MXFP4 matrix; 0 if there is none above 0.
std::uint8_t largest_scale(const Fp4MatrixRef& matrix) {
  std::uint8_t largest = 0;
  const std::uint64_t groups = matrix.cols / kMxGroup;
  for (std::uint64_t i = 0; i < matrix.rows * groups; ++i) {
    if (is_nan_e8m0(matrix.scales[i])) refuse_scale_byte(matrix.format, i / groups, i % groups);
    largest = std::max(largest, matrix.scales[i]);
  }
  return largest;
}

Fp4Matrix cast_one(const Fp4MatrixRef& from, int global_exponent, Nvfp4Cast& counts) {
  const std::uint64_t groups = from.rows * (from.cols / kMxGroup);
  constexpr std::uint64_t kGroupBytes = kMxGroup / 2;
  Fp4Matrix to{.format = BlockFormat::nvfp4,
               .rows = from.rows,
               .cols = from.cols,
               .codes = std::vector<std::uint8_t>(from.codes, from.codes + groups * kGroupBytes),
               .scales = std::vector<std::uint8_t>(groups * 2),
               .dequant_mul = power_of_two(global_exponent)};
  for (std::uint64_t i = 0; i < groups; ++i) {
    std::uint8_t* codes = to.codes.data() + i * kGroupBytes;
    const int exponent = from.scales[i] - kE8m0Bias - global_exponent;
    std::uint8_t scale = ue4m3_power(std::max(exponent, kLeastNvExponent));
    if (from.scales[i] == kMxScaleOfZeros || exponent < kLeastNvExponent) {
      if (is_zeros(codes, kGroupBytes)) {
        scale = kNvScaleOfZeros;
      } else {
        ++counts.requantised_groups;
        counts.changed_groups +=
            shift_codes(codes, kGroupBytes, exponent - kLeastNvExponent) ? 1U : 0U;
      }
    }
    to.scales[2 * i] = to.scales[2 * i + 1] = scale;
  }
  return to;
}

}  // namespace

Nvfp4Cast mxfp4_to_nvfp4(std::span<const Fp4MatrixRef> matrices) {
  std::uint8_t largest = 0;
  for (const Fp4MatrixRef& matrix : matrices) {
    require_shape(matrix, BlockFormat::mxfp4);
    if (matrix.dequant_mul != 1.0F) {
      throw Error(ErrorCode::input, {.code = "MOXIE-Q003",
                                     .message = "an MXFP4 matrix with a global scale of its own",
                                     .expected = "1"});
    }
    largest = std::max(largest, largest_scale(matrix));
  }
  const int most = largest == 0 ? 0 : largest - kE8m0Bias;
  // Below 2^-109 the global would go under the least that is written. It stops there, and smaller
  // scales still reach down to the least one of MXFP4 but for 0x00.
  const int global_exponent = std::max(most - kMostNvExponent, kLeastGlobalExponent);
  Nvfp4Cast result;
  for (const Fp4MatrixRef& matrix : matrices)
    result.matrices.push_back(cast_one(matrix, global_exponent, result));
  return result;
}

std::optional<Fp4Matrix> nvfp4_to_mxfp4(const Fp4MatrixRef& matrix) {
  require_shape(matrix, BlockFormat::nvfp4);
  if (matrix.cols % kMxGroup != 0) return std::nullopt;
  const std::uint64_t groups = matrix.rows * (matrix.cols / kMxGroup);
  constexpr std::uint64_t kBlockBytes = kNvGroup / 2;

  // Exponents of the groups that are not zeros.
  std::vector<std::optional<int>> exponents(groups);
  int least = kMostNvExponent;
  int most = kLeastNvExponent;
  for (std::uint64_t i = 0; i < groups; ++i) {
    for (std::uint64_t half = 2 * i; half < 2 * i + 2; ++half) {
      if (!is_valid_ue4m3(matrix.scales[half])) return std::nullopt;
      if (is_zeros(matrix.codes + half * kBlockBytes, kBlockBytes)) continue;
      const std::optional<int> exponent = exponent_of(decode_ue4m3(matrix.scales[half]));
      if (!exponent || (exponents[i] && *exponents[i] != *exponent)) return std::nullopt;
      exponents[i] = exponent;
      least = std::min(least, *exponent);
      most = std::max(most, *exponent);
    }
  }

  // Byte 0x00 is kept for groups of zeros.
  const int global = exponent_of(matrix.dequant_mul).value_or(kE8m0Bias * 4);
  const bool is_folded =
      least + global + kE8m0Bias > 0 && most + global + kE8m0Bias <= kE8m0MaxCode;
  const int shift = kE8m0Bias + (is_folded ? global : 0);
  Fp4Matrix to{
      .format = BlockFormat::mxfp4,
      .rows = matrix.rows,
      .cols = matrix.cols,
      .codes = std::vector<std::uint8_t>(matrix.codes, matrix.codes + groups * kMxGroup / 2),
      .scales = std::vector<std::uint8_t>(groups, kMxScaleOfZeros),
      .dequant_mul = is_folded ? 1.0F : matrix.dequant_mul};
  for (std::uint64_t i = 0; i < groups; ++i) {
    if (exponents[i]) to.scales[i] = static_cast<std::uint8_t>(*exponents[i] + shift);
  }
  return to;
}

std::optional<Fp4Matrix> fold_dequant_mul(const Fp4MatrixRef& matrix) {
  require_shape(matrix, BlockFormat::nvfp4);
  if (!exponent_of(matrix.dequant_mul)) return std::nullopt;
  const std::uint64_t blocks = matrix.rows * (matrix.cols / kNvGroup);
  Fp4Matrix to{
      .format = matrix.format,
      .rows = matrix.rows,
      .cols = matrix.cols,
      .codes = std::vector<std::uint8_t>(matrix.codes, matrix.codes + blocks * kNvGroup / 2),
      .scales = std::vector<std::uint8_t>(blocks),
      .dequant_mul = 1.0F};
  for (std::uint64_t i = 0; i < blocks; ++i) {
    if (!is_valid_ue4m3(matrix.scales[i])) return std::nullopt;
    const float folded = decode_ue4m3(matrix.scales[i]) * matrix.dequant_mul;
    to.scales[i] = encode_ue4m3_sat(folded);
    if (decode_ue4m3(to.scales[i]) != folded) return std::nullopt;
  }
  return to;
}

}  // namespace moxie

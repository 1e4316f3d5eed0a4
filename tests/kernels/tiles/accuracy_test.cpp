// SPDX-License-Identifier: Apache-2.0
// How far one product is from float64 of the same weights: what each activation format costs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "formats/band_order.hpp"
#include "formats/bf16.hpp"
#include "formats/block_format.hpp"
#include "kernels/tiles/products.hpp"

namespace moxie {
namespace {

using test::BandProduct;
using test::kBandPairRows;
using test::missing_for;

constexpr std::uint64_t kRows = 1024;
constexpr std::uint64_t kColumns = 4096;
constexpr std::uint64_t kTokens = 16;

struct Weights {
  BlockFormat format;
  std::vector<double> values;        // [rows, columns]
  std::vector<std::uint8_t> codes;   // bands
  std::vector<std::uint8_t> scales;  // bands
};

// N(0, 1) in MXFP4 by the ceil rule; in NVFP4 under a global scale of 1.
Weights quantised_weights(BlockFormat format, std::mt19937_64& random) {
  const std::uint64_t group = scale_group(format);
  Weights made{.format = format, .values = {}, .codes = {}, .scales = {}};
  std::vector<std::byte> codes(kRows * kColumns / 2);
  std::vector<std::byte> scales(kRows * kColumns / group);
  std::normal_distribution<float> normal;
  for (std::uint64_t at = 0; at < kRows * kColumns; at += group) {
    std::vector<float> values(group);
    float amax = 0;
    for (float& value : values) amax = std::max(amax, std::abs(value = normal(random)));
    float scale = 0;
    std::uint8_t byte = 0;
    if (format == BlockFormat::mxfp4) {
      byte = encode_e8m0(amax / kE2m1Max, E8m0Rounding::ceil, E8m0Overflow::saturate);
      scale = decode_e8m0(byte);
    } else {
      byte = encode_e4m3_sat(amax / kE2m1Max);
      scale = decode_ue4m3(byte);
    }
    scales[at / group] = static_cast<std::byte>(byte);
    for (std::uint64_t i = 0; i < group; ++i) {
      const std::uint8_t code = encode_e2m1(values[i] / scale);
      made.values.push_back(static_cast<double>(decode_e2m1(code)) * scale);
      const auto half = static_cast<std::uint8_t>((at + i) % 2 == 0 ? code : code << 4);
      codes[(at + i) / 2] |= static_cast<std::byte>(half);
    }
  }
  made.codes.resize(codes.size());
  made.scales.resize(scales.size());
  for (std::uint64_t row = 0; row < kRows; row += kBandRows) {
    codes_to_band(codes.data() + row * kColumns / 2, kColumns / 2, kColumns / 2,
                  reinterpret_cast<std::byte*>(made.codes.data()) + row * kColumns / 2);
    scales_to_band(scales.data() + row * kColumns / group, kColumns / group, kColumns / group,
                   reinterpret_cast<std::byte*>(made.scales.data()) + row * kColumns / group);
  }
  return made;
}

std::vector<float> activations(bool outliers, std::mt19937_64& random) {
  std::normal_distribution<float> normal;
  std::vector<float> x(kTokens * kColumns);
  for (std::uint64_t i = 0; i < x.size(); ++i) {
    const bool outlier = outliers && i % kColumns % 97 == 0;
    x[i] = decode_bf16(encode_bf16(normal(random) * (outlier ? 30.0F : 1.0F)));
  }
  return x;
}

double relative_l2(void (*multiply)(const BandProduct&), const Weights& weights, ActFormat format,
                   const std::vector<float>& x) {
  const std::uint64_t group = scale_group(weights.format);
  double error = 0;
  double norm = 0;
  for (std::uint64_t row = 0; row < kRows; row += kBandPairRows) {
    std::vector<float> sums(kTokens * kBandPairRows);
    multiply({.format = weights.format,
              .act_format = format,
              .codes = weights.codes.data() + row * kColumns / 2,
              .scales = weights.scales.data() + row * kColumns / group,
              .columns = kColumns,
              .x = x.data(),
              .rows = kTokens,
              .sums = sums.data()});
    for (std::uint64_t token = 0; token < kTokens; ++token) {
      for (std::uint64_t lane = 0; lane < kBandPairRows; ++lane) {
        double exact = 0;
        const double* weight = weights.values.data() + (row + lane) * kColumns;
        for (std::uint64_t column = 0; column < kColumns; ++column)
          exact += weight[column] * static_cast<double>(x[token * kColumns + column]);
        const double off = exact - static_cast<double>(sums[token * kBandPairRows + lane]);
        error += off * off;
        norm += exact * exact;
      }
    }
  }
  return std::sqrt(error / norm);
}

void expect_accuracy(void (*multiply)(const BandProduct&)) {
  std::mt19937_64 random(7);
  for (const BlockFormat format : {BlockFormat::mxfp4, BlockFormat::nvfp4}) {
    const Weights weights = quantised_weights(format, random);
    const std::vector<float> normal = activations(false, random);
    const std::vector<float> outliers = activations(true, random);
    const auto check = [&](ActFormat act, const std::vector<float>& x, double most,
                           const std::string& name) {
      const double error = relative_l2(multiply, weights, act, x);
      EXPECT_LE(error, most) << name_of(format) << " " << name;
      EXPECT_GT(error, 0.0) << "fp32 sums are not exact";
      testing::Test::RecordProperty(std::string(name_of(format)) + "_" + name,
                                    std::to_string(error * 1e6) + "e-6");
      std::printf("%s %s %.2e\n", std::string(name_of(format)).c_str(), name.c_str(), error);
    };
    check(ActFormat::bf16, normal, 2e-6, "bf16");
    check(ActFormat::int8x2, normal, 1e-4, "int8x2");
    check(ActFormat::int8, normal, 6e-3, "int8");
    check(ActFormat::int8, outliers, 1.3e-2, "int8_outliers");
  }
}

TEST(ProductAccuracy, OfAvx512IsWhatItsActivationFormatAllows) {
  const std::string missing = missing_for("cpu.avx512.experts.bf16");
  if (!missing.empty()) GTEST_SKIP() << "this machine lacks " << missing;
  expect_accuracy(test::multiply_avx512);
}

TEST(ProductAccuracy, OfAvx2IsWhatItsActivationFormatAllows) {
  const std::string missing = missing_for("cpu.avx2.experts.f32");
  if (!missing.empty()) GTEST_SKIP() << "this machine lacks " << missing;
  expect_accuracy(test::multiply_avx2);
}

}  // namespace
}  // namespace moxie

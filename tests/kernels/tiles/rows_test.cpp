// SPDX-License-Identifier: Apache-2.0
// What a row of activations gets, whatever is computed beside it.
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "formats/block_format.hpp"
#include "kernels/tiles/products.hpp"

namespace moxie {
namespace {

using test::BandProduct;
using test::kBandPairRows;
using test::missing_for;

constexpr std::uint64_t kMostRows = 32;

struct Operands {
  std::vector<std::uint8_t> codes;
  std::vector<std::uint8_t> scales;
  std::vector<float> x;
};

Operands random_operands(BlockFormat format, std::uint64_t columns, std::mt19937_64& random) {
  Operands made;
  made.codes.resize(kBandPairRows * columns / 2);
  for (std::uint8_t& byte : made.codes) byte = static_cast<std::uint8_t>(random());
  made.scales.resize(kBandPairRows * columns / scale_group(format));
  for (std::uint8_t& byte : made.scales)
    byte = static_cast<std::uint8_t>(format == BlockFormat::mxfp4 ? 100 + random() % 40
                                                                  : random() % 0x7F);
  std::normal_distribution<float> normal;
  made.x.resize(kMostRows * columns);
  for (float& value : made.x) value = normal(random);
  return made;
}

// [rows, 32], from row `first` of x on.
std::vector<std::uint32_t> sums_of(void (*multiply)(const BandProduct&), const Operands& operands,
                                   BandProduct product, std::uint64_t first, std::uint64_t rows) {
  std::vector<float> sums(rows * kBandPairRows);
  product.codes = operands.codes.data();
  product.scales = operands.scales.data();
  product.x = operands.x.data() + first * product.columns;
  product.rows = rows;
  product.sums = sums.data();
  multiply(product);
  std::vector<std::uint32_t> bits;
  for (const float sum : sums) bits.push_back(std::bit_cast<std::uint32_t>(sum));
  return bits;
}

void expect_same_bits_beside_others(void (*multiply)(const BandProduct&)) {
  std::mt19937_64 random(11);
  for (const BlockFormat format : {BlockFormat::mxfp4, BlockFormat::nvfp4}) {
    for (const ActFormat act : {ActFormat::bf16, ActFormat::int8, ActFormat::int8x2}) {
      for (const std::uint64_t columns : {32U, 96U, 2048U}) {
        const Operands operands = random_operands(format, columns, random);
        const BandProduct product{.format = format, .act_format = act, .columns = columns};
        std::vector<std::uint32_t> alone;
        for (std::uint64_t row = 0; row < kMostRows; ++row) {
          const auto sums = sums_of(multiply, operands, product, row, 1);
          alone.insert(alone.end(), sums.begin(), sums.end());
        }
        for (std::uint64_t rows = 2; rows <= kMostRows; ++rows) {
          const auto sums = sums_of(multiply, operands, product, 0, rows);
          EXPECT_TRUE(std::equal(sums.begin(), sums.end(), alone.begin()))
              << name_of(format) << " " << name_of(act) << " columns " << columns << " rows "
              << rows;
        }
      }
    }
  }
}

TEST(ProductRows, OfAvx512HaveTheSameBitsBesideAnyNumberOfOthers) {
  const std::string missing = missing_for("cpu.avx512.experts.bf16");
  if (!missing.empty()) GTEST_SKIP() << "this machine lacks " << missing;
  expect_same_bits_beside_others(test::multiply_avx512);
}

TEST(ProductRows, OfAvx2HaveTheSameBitsBesideAnyNumberOfOthers) {
  const std::string missing = missing_for("cpu.avx2.experts.f32");
  if (!missing.empty()) GTEST_SKIP() << "this machine lacks " << missing;
  expect_same_bits_beside_others(test::multiply_avx2);
}

}  // namespace
}  // namespace moxie

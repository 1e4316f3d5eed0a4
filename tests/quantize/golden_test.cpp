// SPDX-License-Identifier: Apache-2.0
// Whole blocks against another implementation (tools/regen_golden.py).
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/host_device.hpp"
#include "moxie/quantize.hpp"
#include "quantize/fp4_values.hpp"
#include "support/csv.hpp"

namespace moxie {
namespace {

// The inputs of all rows of a table.
std::vector<float> inputs_of(const test::Csv& table) {
  std::vector<float> values;
  for (std::size_t row = 0; row < table.rows(); ++row) {
    for (const std::uint64_t bits : table.numbers(row, "fp32_bits"))
      values.push_back(bits_as<float>(static_cast<std::uint32_t>(bits)));
  }
  return values;
}

void expect_row(const Fp4Matrix& matrix, std::uint64_t row, std::uint64_t scale,
                const std::vector<std::uint64_t>& codes) {
  EXPECT_EQ(matrix.scales[row], scale) << row;
  ASSERT_EQ(codes.size(), matrix.cols);
  for (std::uint64_t col = 0; col < matrix.cols; ++col)
    EXPECT_EQ(test::code_at(matrix, row, col), codes[col]) << row << ", " << col;
}

TEST(QuantiseGolden, Nvfp4AmaxIsThatOfAnIndependentImplementation) {
  const test::Csv table = test::golden("nvfp4_amax.csv");
  const std::vector<float> values = inputs_of(table);
  const Fp4Matrix matrix = quantise_nvfp4(test::ref_of(values, table.rows(), 16), {}).matrix;
  EXPECT_EQ(bits_as<std::uint32_t>(matrix.dequant_mul), table.number(0, "dequant_mul_bits"));
  for (std::size_t row = 0; row < table.rows(); ++row)
    expect_row(matrix, row, table.number(row, "scale"), table.numbers(row, "codes"));
}

TEST(QuantiseGolden, Mxfp4VariantsAreThoseOfAnIndependentImplementation) {
  const test::Csv table = test::golden("mxfp4_groups.csv");
  const std::vector<float> values = inputs_of(table);
  for (const Mxfp4Recipe recipe : {Mxfp4Recipe::ceil, Mxfp4Recipe::floor, Mxfp4Recipe::even}) {
    SCOPED_TRACE(name_of(recipe));
    const std::string name(name_of(recipe));
    const Fp4Matrix matrix = quantise_mxfp4(test::ref_of(values, table.rows(), 32), recipe).matrix;
    for (std::size_t row = 0; row < table.rows(); ++row) {
      expect_row(matrix, row, table.number(row, name + "_scale"),
                 table.numbers(row, name + "_codes"));
    }
  }
}

}  // namespace
}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// bf16: all 65,536 values, ties, overflow, and NaNs that must stay NaN.
#include "formats/bf16.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>

#include "support/csv.hpp"

namespace moxie {
namespace {

using test::Csv;
using test::golden;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(Bf16, DecodesAll65536ValuesToTheUpperHalfOfAnFp32) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    ASSERT_EQ(bits_as<std::uint32_t>(decode_bf16(static_cast<std::uint16_t>(bits))), bits << 16);
  }
}

TEST(Bf16, EncodeInvertsDecodeForAllNumbersAndKeepsAllNans) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = decode_bf16(static_cast<std::uint16_t>(bits));
    const std::uint16_t back = encode_bf16(value);
    if (std::isnan(value)) {
      ASSERT_EQ(back, bits | 0x0040) << bits;  // the same NaN, quiet
    } else {
      ASSERT_EQ(back, bits);
    }
  }
}

TEST(Bf16, RoundsEveryTieToEvenAndItsNeighboursToTheirOwnSide) {
  for (std::uint32_t low = 0; low < 0x7F80; ++low) {  // every finite positive value
    const std::uint32_t tie = (low << 16) | 0x8000U;
    const std::uint32_t even = low + (low & 1U);
    ASSERT_EQ(encode_bf16(bits_as<float>(tie)), even) << low;
    ASSERT_EQ(encode_bf16(bits_as<float>(tie | 0x80000000U)), even | 0x8000U) << low;
    ASSERT_EQ(encode_bf16(bits_as<float>(tie - 1)), low) << low;
    ASSERT_EQ(encode_bf16(bits_as<float>(tie + 1)), low + 1) << low;
  }
}

TEST(Bf16, EncodesAsAnIndependentImplementation) {
  const Csv table = golden("bf16_encode.csv");
  for (std::size_t row = 0; row < table.rows(); ++row) {
    const auto bits = static_cast<std::uint32_t>(table.number(row, "fp32_bits"));
    ASSERT_EQ(encode_bf16(bits_as<float>(bits)), table.number(row, "code")) << bits;
  }
}

TEST(Bf16, NanNeverBecomesInfOrChangesSign) {
  EXPECT_EQ(encode_bf16(bits_as<float>(std::uint32_t{0x7F800001})), 0x7FC0);
  EXPECT_EQ(encode_bf16(bits_as<float>(std::uint32_t{0x7FFFFFFF})), 0x7FFF);
  EXPECT_EQ(encode_bf16(bits_as<float>(std::uint32_t{0xFF800001})), 0xFFC0);
  EXPECT_EQ(encode_bf16(bits_as<float>(std::uint32_t{0xFFFFFFFF})), 0xFFFF);
}

TEST(Bf16, OverflowsToInf) {
  EXPECT_EQ(encode_bf16(std::numeric_limits<float>::max()), 0x7F80);
  EXPECT_EQ(encode_bf16(-std::numeric_limits<float>::max()), 0xFF80);
  EXPECT_EQ(encode_bf16(kInfinity), 0x7F80);
  EXPECT_EQ(encode_bf16(0x1.FEp127F), 0x7F7F);  // the largest finite bf16
}

}  // namespace
}  // namespace moxie

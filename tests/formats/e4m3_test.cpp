// SPDX-License-Identifier: Apache-2.0
// E4M3FN and UE4M3: all 256 codes, every tie, saturation, and which scale bytes are valid.
#include "formats/e4m3.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>

#include "formats/bf16.hpp"
#include "support/csv.hpp"

namespace moxie {
namespace {

using test::Csv;
using test::golden;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// The definition, in double: subnormals are multiples of 2^-9, normals (1 + m/8) * 2^(e-7).
double value_by_definition(unsigned code) {
  const int exponent = static_cast<int>((code >> 3) & 0xF);
  const double mantissa = code & 0x7;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(1 + mantissa / 8, exponent - 7);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

float midpoint_above(std::uint8_t code) {
  return (decode_e4m3(code) + decode_e4m3(static_cast<std::uint8_t>(code + 1))) / 2;
}

TEST(E4m3, DecodesAll256Codes) {
  for (unsigned code = 0; code < 256; ++code) {
    const float value = decode_e4m3(static_cast<std::uint8_t>(code));
    if ((code & 0x7F) == 0x7F) {
      EXPECT_TRUE(std::isnan(value)) << code;
      EXPECT_TRUE(is_nan_e4m3(static_cast<std::uint8_t>(code)));
    } else {
      EXPECT_EQ(static_cast<double>(value), value_by_definition(code)) << code;
      EXPECT_EQ(std::signbit(value), code >= 0x80) << code;
      EXPECT_FALSE(is_nan_e4m3(static_cast<std::uint8_t>(code)));
    }
  }
}

TEST(E4m3, DecodesAsAnIndependentImplementation) {
  const Csv table = golden("e4m3fn_decode.csv");
  ASSERT_EQ(table.rows(), 256U);
  for (std::size_t row = 0; row < table.rows(); ++row) {
    const float value = decode_e4m3(static_cast<std::uint8_t>(table.number(row, "code")));
    if (table.text(row, "fp32_bits") == "nan") {
      EXPECT_TRUE(std::isnan(value)) << row;
    } else {
      EXPECT_EQ(bits_as<std::uint32_t>(value), table.number(row, "fp32_bits")) << row;
    }
  }
}

TEST(E4m3, EncodeInvertsDecode) {
  for (unsigned code = 0; code < 256; ++code) {
    const auto byte = static_cast<std::uint8_t>(code);
    EXPECT_EQ(encode_e4m3_sat(decode_e4m3(byte)), is_nan_e4m3(byte) ? 0x7F : code);
  }
}

TEST(E4m3, RoundsEveryTieToTheEvenCodeAndItsNeighboursToTheirOwnSide) {
  for (std::uint8_t low = 0; low < kE4m3MaxCode; ++low) {
    const float tie = midpoint_above(low);
    const int even = low % 2 == 0 ? low : low + 1;
    EXPECT_EQ(encode_e4m3_sat(tie), even) << tie;
    EXPECT_EQ(encode_e4m3_sat(-tie), even | 0x80) << tie;
    EXPECT_EQ(encode_e4m3_sat(std::nextafter(tie, 0.0F)), low) << tie;
    EXPECT_EQ(encode_e4m3_sat(std::nextafter(tie, kInfinity)), low + 1) << tie;
  }
}

TEST(E4m3, EncodesTheWorkedExamples) {
  EXPECT_EQ(encode_e4m3_sat(1.0625F), 0x38);
  EXPECT_EQ(encode_e4m3_sat(1.1875F), 0x3A);
  EXPECT_EQ(encode_e4m3_sat(449.0F), 0x7E);
  EXPECT_EQ(encode_e4m3_sat(0x1.0p-10F), 0x00);
  EXPECT_EQ(encode_e4m3_sat(0.0029296875F), 0x02);
  EXPECT_EQ(encode_e4m3_sat(247.9F), 0x77);
  EXPECT_EQ(encode_e4m3_sat(256.0F), 0x78);
}

TEST(E4m3, SaturatesAndNeverMakesANanOfANumber) {
  for (const float value : {448.0F, 464.0F, 465.0F, 1e30F, kInfinity}) {
    EXPECT_EQ(encode_e4m3_sat(value), 0x7E) << value;
    EXPECT_EQ(encode_e4m3_sat(-value), 0xFE) << value;
    EXPECT_EQ(encode_ue4m3_sat(value), 0x7E) << value;
  }
}

TEST(E4m3, NanStaysNan) {
  EXPECT_EQ(encode_e4m3_sat(kNan), 0x7F);
  EXPECT_EQ(encode_e4m3_sat(-kNan), 0x7F);
  EXPECT_EQ(encode_ue4m3_sat(kNan), 0x7F);
  EXPECT_EQ(encode_ue4m3_sat(-kNan), 0x7F);
}

TEST(E4m3, KeepsTheSignOfZero) {
  EXPECT_EQ(encode_e4m3_sat(-0.0F), 0x80);
  EXPECT_EQ(encode_e4m3_sat(-1e-40F), 0x80);
  EXPECT_EQ(encode_e4m3_sat(1e-40F), 0x00);
}

TEST(E4m3, EncodesEveryFiniteBf16ToANearestCode) {
  for (std::uint32_t bits = 0; bits < 0x7F80; ++bits) {
    const float value = decode_bf16(static_cast<std::uint16_t>(bits));
    const std::uint8_t code = encode_e4m3_sat(value);
    ASSERT_LE(code, kE4m3MaxCode) << value;
    const double error = std::abs(value_by_definition(code) - static_cast<double>(value));
    if (code > 0) {
      ASSERT_LE(error, std::abs(value_by_definition(code - 1U) - static_cast<double>(value)));
    }
    if (code < kE4m3MaxCode) {
      ASSERT_LE(error, std::abs(value_by_definition(code + 1U) - static_cast<double>(value)));
    }
  }
}

TEST(E4m3, EncodesAsAnIndependentImplementation) {
  const Csv table = golden("e4m3fn_encode.csv");
  for (std::size_t row = 0; row < table.rows(); ++row) {
    const auto bits = static_cast<std::uint32_t>(table.number(row, "fp32_bits"));
    const auto code = static_cast<std::uint8_t>(table.number(row, "code"));
    ASSERT_EQ(encode_e4m3_sat(bits_as<float>(bits)), code) << bits;
    if (code < 0x80) {
      ASSERT_EQ(encode_ue4m3_sat(bits_as<float>(bits)), code) << bits;
    }
  }
}

TEST(Ue4m3, DecodesTheNamedCodes) {  // pit7
  EXPECT_EQ(decode_ue4m3(0x3F), 1.875F);
  EXPECT_EQ(decode_ue4m3(0x7E), 448.0F);
  EXPECT_EQ(decode_ue4m3(0x01), 0x1.0p-9F);
  EXPECT_TRUE(std::isnan(decode_ue4m3(0x7F)));
}

TEST(Ue4m3, DecodesAsTheSpecificationTable) {  // pit7
  const Csv table = golden("ue4m3_codes.csv");
  ASSERT_EQ(table.rows(), 128U);
  for (std::size_t row = 0; row < table.rows(); ++row) {
    const auto code = static_cast<std::uint8_t>(table.number(row, "code_hex"));
    if (table.text(row, "kind") == "nan") {
      EXPECT_TRUE(std::isnan(decode_ue4m3(code)));
      EXPECT_TRUE(is_nan_ue4m3(code));
    } else {
      EXPECT_EQ(static_cast<double>(decode_ue4m3(code)), table.real(row, "value")) << row;
    }
  }
}

TEST(Ue4m3, ASetTopBitIsCorruptionAndNotANegativeScale) {  // pit7
  for (unsigned code = 0; code < 256; ++code) {
    const auto byte = static_cast<std::uint8_t>(code);
    EXPECT_EQ(is_valid_ue4m3(byte), code < 0x7F) << code;
    EXPECT_EQ(std::isnan(decode_ue4m3(byte)), code >= 0x7F) << code;
  }
}

TEST(Ue4m3, NegativeInputsSaturateToZero) {
  for (const float value : {-0.0F, -1e-40F, -1.0F, -kInfinity}) {
    EXPECT_EQ(encode_ue4m3_sat(value), 0x00) << value;
  }
}

TEST(Ue4m3, ScaleBytesAreReinterpretedAndNeverCastByValue) {  // B1
  const std::uint32_t word = 0x3F303840;
  const float values[4] = {2.0F, 1.0F, 0.5F, 1.875F};
  const float casts[4] = {64.0F, 56.0F, 48.0F, 64.0F};
  for (unsigned i = 0; i < 4; ++i) {
    const auto byte = static_cast<std::uint8_t>(word >> (8 * i));
    EXPECT_EQ(decode_ue4m3(byte), values[i]);
    EXPECT_EQ(decode_ue4m3(encode_ue4m3_sat(static_cast<float>(byte))), casts[i]);
  }
}

}  // namespace
}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// E8M0: all 256 codes, both ends, and the four encodings.
#include "formats/ue8m0.hpp"

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
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::uint8_t floor_saturating(float value) {
  return encode_e8m0(value, E8m0Rounding::floor, E8m0Overflow::saturate);
}
std::uint8_t floor_to_nan(float value) {
  return encode_e8m0(value, E8m0Rounding::floor, E8m0Overflow::nan);
}
std::uint8_t ceil_saturating(float value) {
  return encode_e8m0(value, E8m0Rounding::ceil, E8m0Overflow::saturate);
}
std::uint8_t ceil_to_nan(float value) {
  return encode_e8m0(value, E8m0Rounding::ceil, E8m0Overflow::nan);
}

TEST(E8m0, DecodesBothEnds) {  // pit5
  EXPECT_EQ(bits_as<std::uint32_t>(decode_e8m0(0x00)), 0x00400000U);
  EXPECT_EQ(decode_e8m0(0x7F), 1.0F);
  EXPECT_EQ(decode_e8m0(0xFE), 0x1.0p127F);
  EXPECT_TRUE(std::isnan(decode_e8m0(0xFF)));
  EXPECT_TRUE(std::isnan(decode_e8m0_double(0xFF)));
}

TEST(E8m0, DecodesAllCodesToPowersOfTwo) {  // pit5
  for (int code = 0; code < 255; ++code) {
    const auto byte = static_cast<std::uint8_t>(code);
    EXPECT_EQ(static_cast<double>(decode_e8m0(byte)), std::ldexp(1.0, code - 127)) << code;
    EXPECT_EQ(decode_e8m0_double(byte), std::ldexp(1.0, code - 127)) << code;
    EXPECT_FALSE(is_nan_e8m0(byte));
  }
  EXPECT_TRUE(is_nan_e8m0(0xFF));
}

TEST(E8m0, DecodesAsTheSpecificationTable) {
  const Csv table = golden("e8m0_codes.csv");
  ASSERT_EQ(table.rows(), 256U);
  for (std::size_t row = 0; row < table.rows(); ++row) {
    const auto code = static_cast<std::uint8_t>(table.number(row, "code_hex"));
    if (table.text(row, "kind") == "nan") {
      EXPECT_TRUE(std::isnan(decode_e8m0(code)));
    } else {
      EXPECT_EQ(bits_as<std::uint32_t>(decode_e8m0(code)), table.number(row, "fp32_bits_hex"));
    }
  }
}

TEST(E8m0, DecodesAsAnIndependentImplementation) {
  const Csv table = golden("e8m0_decode.csv");
  ASSERT_EQ(table.rows(), 256U);
  for (std::size_t row = 0; row < table.rows(); ++row) {
    const float value = decode_e8m0(static_cast<std::uint8_t>(table.number(row, "code")));
    if (table.text(row, "fp32_bits") == "nan") {
      EXPECT_TRUE(std::isnan(value)) << row;
    } else {
      EXPECT_EQ(bits_as<std::uint32_t>(value), table.number(row, "fp32_bits")) << row;
    }
  }
}

TEST(E8m0, DecodesTheBytesOfAThreeElementTensor) {  // R-06 (d)
  const std::uint8_t bytes[3] = {0x7E, 0x7F, 0x80};
  EXPECT_EQ(decode_e8m0(bytes[0]), 0.5F);
  EXPECT_EQ(decode_e8m0(bytes[1]), 1.0F);
  EXPECT_EQ(decode_e8m0(bytes[2]), 2.0F);
}

TEST(E8m0, AValueCopyWouldLoseTheScale) {  // pit6
  EXPECT_EQ(decode_e8m0(0x78), 0x1.0p-7F);
  EXPECT_EQ(static_cast<std::uint8_t>(decode_e8m0(0x78)), 0);
}

TEST(E8m0, EveryEncodingInvertsDecode) {
  for (int code = 0; code < 255; ++code) {
    const float value = decode_e8m0(static_cast<std::uint8_t>(code));
    EXPECT_EQ(floor_saturating(value), code);
    EXPECT_EQ(floor_to_nan(value), code);
    EXPECT_EQ(ceil_saturating(value), code);
    EXPECT_EQ(ceil_to_nan(value), code);
  }
}

TEST(E8m0, FloorAndCeilBracketEveryPowerOfTwo) {
  for (int code = 1; code < 254; ++code) {
    const float power = decode_e8m0(static_cast<std::uint8_t>(code));
    EXPECT_EQ(floor_saturating(std::nextafter(power, kInfinity)), code);
    EXPECT_EQ(ceil_saturating(std::nextafter(power, kInfinity)), code + 1);
    EXPECT_EQ(floor_saturating(std::nextafter(power, 0.0F)), code - 1);
    EXPECT_EQ(ceil_saturating(std::nextafter(power, 0.0F)), code);
  }
}

TEST(E8m0, EncodesAsTheSpecificationTable) {
  struct Row {
    float value;
    int floor_sat, floor_nan, ceil_sat, ceil_nan;
  };
  const Row rows[] = {
      {0.0F, 0x00, 0x00, 0x00, 0x00},
      {std::numeric_limits<float>::denorm_min(), 0x00, 0x00, 0x00, 0x00},
      {bits_as<float>(std::uint32_t{0x003FFFFF}), 0x00, 0x00, 0x00, 0x00},  // just below 2^-127
      {bits_as<float>(std::uint32_t{0x00600000}), 0x00, 0x00, 0x01, 0x01},  // 1.5 * 2^-127
      {1.0F, 0x7F, 0x7F, 0x7F, 0x7F},
      {1.0000001F, 0x7F, 0x7F, 0x80, 0x80},
      {3.0F, 0x80, 0x80, 0x81, 0x81},
      {0x1.8p127F, 0xFE, 0xFE, 0xFE, 0xFF},
      {kInfinity, 0xFE, 0xFF, 0xFE, 0xFF},
      {kNan, 0xFF, 0xFF, 0xFF, 0xFF},
  };
  for (const Row& row : rows) {
    for (const float value : {row.value, -row.value}) {  // the sign is ignored
      EXPECT_EQ(floor_saturating(value), row.floor_sat) << value;
      EXPECT_EQ(floor_to_nan(value), row.floor_nan) << value;
      EXPECT_EQ(ceil_saturating(value), row.ceil_sat) << value;
      EXPECT_EQ(ceil_to_nan(value), row.ceil_nan) << value;
    }
  }
}

}  // namespace
}  // namespace moxie

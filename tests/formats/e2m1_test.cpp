// SPDX-License-Identifier: Apache-2.0
// E2M1 codes: every code, every tie, saturation, signs, and an independent implementation.
#include "formats/e2m1.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
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
constexpr float kGrid[8] = {0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F};

// Nearest grid index by distance in double, ties to the even index; shares nothing with the
// encoder.
std::uint8_t nearest_index(double magnitude) {
  std::uint8_t best = 0;
  for (std::uint8_t i = 1; i < 8; ++i) {
    const double to_best = std::abs(magnitude - static_cast<double>(kGrid[best]));
    const double to_this = std::abs(magnitude - static_cast<double>(kGrid[i]));
    if (to_this < to_best || (to_this == to_best && i % 2 == 0)) best = i;
  }
  return best;
}

static_assert(decode_e2m1(0xD) == -3.0F && encode_e2m1(-3.0F) == 0xD,
              "codecs work at compile time");

TEST(E2m1, DecodesAllSixteenCodes) {  // pit1
  for (unsigned code = 0; code < 16; ++code) {
    const float value = decode_e2m1(static_cast<std::uint8_t>(code));
    EXPECT_EQ(value, code < 8 ? kGrid[code] : -kGrid[code - 8]) << "code " << code;
    EXPECT_EQ(std::signbit(value), code >= 8) << "code " << code;
  }
}

TEST(E2m1, CodeEightIsAMinusZeroThatChangesNothing) {  // pit1
  const float zero = decode_e2m1(0x8);
  EXPECT_TRUE(std::signbit(zero));
  EXPECT_EQ(zero, 0.0F);
  EXPECT_EQ(1.5F + zero * 448.0F, 1.5F);
}

TEST(E2m1, DecodeIgnoresBitsAboveTheCode) {
  for (unsigned byte = 0; byte < 256; ++byte) {
    EXPECT_EQ(decode_e2m1(static_cast<std::uint8_t>(byte)),
              decode_e2m1(static_cast<std::uint8_t>(byte & 0xF)));
  }
}

TEST(E2m1, DecodesAsTheSpecificationTable) {  // pit1
  const Csv table = golden("e2m1_codes.csv");
  ASSERT_EQ(table.rows(), 16U);
  for (std::size_t row = 0; row < table.rows(); ++row) {
    const auto code = static_cast<std::uint8_t>(table.number(row, "code_hex"));
    EXPECT_EQ(static_cast<double>(decode_e2m1(code)), table.real(row, "value"));
    EXPECT_EQ(std::signbit(decode_e2m1(code)), table.number(row, "sign") == 1);
  }
}

TEST(E2m1, DecodesAsAnIndependentImplementation) {
  const Csv table = golden("e2m1_decode.csv");
  ASSERT_EQ(table.rows(), 16U);
  for (std::size_t row = 0; row < table.rows(); ++row) {
    const auto code = static_cast<std::uint8_t>(table.number(row, "code"));
    EXPECT_EQ(bits_as<std::uint32_t>(decode_e2m1(code)), table.number(row, "fp32_bits"));
  }
}

TEST(E2m1, EncodeInvertsDecode) {
  for (unsigned code = 0; code < 16; ++code) {
    EXPECT_EQ(encode_e2m1(decode_e2m1(static_cast<std::uint8_t>(code))), code);
  }
}

TEST(E2m1, RoundsTiesToTheEvenCode) {  // pit15, Q-01
  const float ties[7] = {0.25F, 0.75F, 1.25F, 1.75F, 2.5F, 3.5F, 5.0F};
  const std::uint8_t codes[7] = {0, 2, 2, 4, 4, 6, 6};
  for (int i = 0; i < 7; ++i) {
    EXPECT_EQ(encode_e2m1(ties[i]), codes[i]) << ties[i];
    EXPECT_EQ(encode_e2m1(-ties[i]), codes[i] | 0x8) << -ties[i];
  }
}

TEST(E2m1, RoundsNeighboursOfATieToTheirOwnSide) {  // pit15
  for (std::uint8_t low = 0; low < 7; ++low) {
    const float tie = (kGrid[low] + kGrid[low + 1]) / 2;
    EXPECT_EQ(encode_e2m1(std::nextafter(tie, 0.0F)), low) << tie;
    EXPECT_EQ(encode_e2m1(std::nextafter(tie, kInfinity)), low + 1) << tie;
  }
}

TEST(E2m1, RoundsOnItsGridAndNotToIntegers) {
  const float inputs[4] = {0.5F, 1.5F, 2.4F, 5.2F};
  const float outputs[4] = {0.5F, 1.5F, 2.0F, 6.0F};
  for (int i = 0; i < 4; ++i) EXPECT_EQ(decode_e2m1(encode_e2m1(inputs[i])), outputs[i]);
}

TEST(E2m1, SaturatesToSix) {  // pit16, Q-01
  for (const float value : {6.0F, 6.1F, 7.0F, 1e30F, kInfinity}) {
    EXPECT_EQ(encode_e2m1(value), 0x7) << value;
    EXPECT_EQ(encode_e2m1(-value), 0xF) << -value;
  }
}

TEST(E2m1, EncodesNanOfEitherSignAsPlusSix) {  // pit16
  EXPECT_EQ(encode_e2m1(kNan), 0x7);
  EXPECT_EQ(encode_e2m1(-kNan), 0x7);
  EXPECT_EQ(encode_e2m1(bits_as<float>(std::uint32_t{0xFF800001})), 0x7);
}

TEST(E2m1, KeepsTheSignOfZero) {  // pit17
  EXPECT_EQ(encode_e2m1(0.0F), 0x0);
  for (const float value : {-0.0F, -0.1F, -0.25F, -1e-40F}) EXPECT_EQ(encode_e2m1(value), 0x8);
}

TEST(E2m1, NegationFlipsTheSignBitOnly) {  // pit17, B2a
  EXPECT_EQ(encode_e2m1(-3.0F), 0xD);
  double sum = 0;
  for (std::uint32_t bits = 0; bits <= 0x7F80; ++bits) {  // every bf16 from 0 to Inf
    const float value = decode_bf16(static_cast<std::uint16_t>(bits));
    const std::uint8_t positive = encode_e2m1(value);
    const std::uint8_t negative = encode_e2m1(-value);
    ASSERT_EQ(negative, positive ^ 0x8) << value;
    sum += static_cast<double>(decode_e2m1(positive)) + static_cast<double>(decode_e2m1(negative));
  }
  EXPECT_EQ(sum, 0.0);
}

TEST(E2m1, EncodesEveryFiniteBf16ToTheNearestCode) {
  for (std::uint32_t bits = 0; bits < 0x7F80; ++bits) {
    const float value = decode_bf16(static_cast<std::uint16_t>(bits));
    // Far above the grid all distances are equal in double; 8 is as far as any of them.
    const double clipped = std::min(static_cast<double>(value), 8.0);
    ASSERT_EQ(encode_e2m1(value), nearest_index(clipped)) << value;
  }
}

TEST(E2m1, EncodesAsAnIndependentImplementation) {
  const Csv table = golden("e2m1_encode.csv");
  for (std::size_t row = 0; row < table.rows(); ++row) {
    const auto bits = static_cast<std::uint32_t>(table.number(row, "fp32_bits"));
    ASSERT_EQ(encode_e2m1(bits_as<float>(bits)), table.number(row, "code")) << bits;
  }
}

}  // namespace
}  // namespace moxie

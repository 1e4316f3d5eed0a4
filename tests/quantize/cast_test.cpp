// SPDX-License-Identifier: Apache-2.0
// Casts between MXFP4 and NVFP4: exact as far as scales reach, counted where they do not.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "moxie/quantize.hpp"
#include "quantize/fp4_values.hpp"
#include "support/refusal.hpp"

namespace moxie {
namespace {

// A matrix of random codes with the given E8M0 scales.
Fp4Matrix mxfp4_of(std::vector<std::uint8_t> scales, std::uint64_t rows, unsigned seed) {
  const std::uint64_t groups = scales.size() / rows;
  Fp4Matrix matrix{.format = BlockFormat::mxfp4,
                   .rows = rows,
                   .cols = groups * 32,
                   .codes = std::vector<std::uint8_t>(scales.size() * 16),
                   .scales = std::move(scales)};
  std::mt19937 random(seed);
  for (std::uint8_t& byte : matrix.codes) byte = static_cast<std::uint8_t>(random());
  return matrix;
}

Nvfp4Cast cast(const Fp4Matrix& matrix) {
  const std::vector<Fp4MatrixRef> one = {matrix.ref()};
  return mxfp4_to_nvfp4(one);
}

TEST(CastToNvfp4, pit26_ASpreadOf17IsExactAtEveryPlaceOfTheRange) {
  const unsigned seed = test::fresh_seed();
  SCOPED_TRACE(seed);
  for (int top = 1; top <= 254; ++top) {
    std::vector<std::uint8_t> scales;
    for (int spread = 0; spread <= 17; ++spread) {
      if (top - spread >= 1) scales.push_back(static_cast<std::uint8_t>(top - spread));
    }
    const Fp4Matrix from = mxfp4_of(scales, 1, seed + static_cast<unsigned>(top));
    const Nvfp4Cast to = cast(from);
    ASSERT_EQ(to.requantised_groups, 0U) << top;
    ASSERT_EQ(to.matrices[0].codes, from.codes);
    ASSERT_EQ(test::values_of(to.matrices[0]), test::values_of(from)) << top;
    ASSERT_EQ(to.matrices[0].dequant_mul, std::ldexp(1.0F, std::max(top - 127 - 8, -117)));
    // And back: the same bytes.
    const std::optional<Fp4Matrix> back = nvfp4_to_mxfp4(to.matrices[0].ref());
    ASSERT_TRUE(back.has_value()) << top;
    ASSERT_EQ(back->scales, from.scales) << top;
    ASSERT_EQ(back->codes, from.codes);
    ASSERT_EQ(back->dequant_mul, 1.0F);
  }
}

TEST(CastToNvfp4, ScalesAndTheGlobalAreThoseOfTheFormula) {
  const Nvfp4Cast to = cast(mxfp4_of({120, 118}, 1, 3));
  EXPECT_EQ(to.matrices[0].dequant_mul, 0x1p-15F);  // 2^(-7 - 8)
  EXPECT_EQ(to.matrices[0].scales, (std::vector<std::uint8_t>{0x78, 0x78, 0x68, 0x68}));
}

TEST(CastToNvfp4, pit26_ASpreadOf18IsRequantisedAndReported) {
  Fp4Matrix from = mxfp4_of({127, 109}, 1, 3);
  // Every code of the second group doubles to a code, except that 0.5 * 2^-1 is a tie with zero.
  for (std::size_t i = 16; i < 32; ++i) from.codes[i] = 0x7C;  // -2 and 6 become -1 and 3
  const Nvfp4Cast exact = cast(from);
  EXPECT_EQ(exact.requantised_groups, 1U);
  EXPECT_EQ(exact.changed_groups, 0U);
  EXPECT_EQ(exact.matrices[0].scales[2], 0x01);
  EXPECT_EQ(exact.matrices[0].codes[16], 0x5A);
  EXPECT_EQ(test::values_of(exact.matrices[0]), test::values_of(from));

  from.codes[20] = 0x1B;  // -1.5 and 0.5 become -0.75 and 0.25: -1 and 0
  const Nvfp4Cast changed = cast(from);
  EXPECT_EQ(changed.requantised_groups, 1U);
  EXPECT_EQ(changed.changed_groups, 1U);
  EXPECT_EQ(changed.matrices[0].codes[20], 0x0A);

  // Further down everything becomes zero and keeps its sign.
  from.scales[1] = 60;
  const Nvfp4Cast lost = cast(from);
  EXPECT_EQ(lost.changed_groups, 1U);
  EXPECT_EQ(lost.matrices[0].codes[16], 0x08);
}

TEST(CastToNvfp4, RequantisedCodesAreTheNearestOnes) {
  const unsigned seed = test::fresh_seed();
  SCOPED_TRACE(seed);
  for (int spread = 18; spread <= 30; ++spread) {
    const Fp4Matrix from = mxfp4_of({127, static_cast<std::uint8_t>(127 - spread)}, 1, seed);
    const Fp4Matrix to = cast(from).matrices[0];
    const double unit = std::ldexp(1.0, -9) * static_cast<double>(to.dequant_mul);
    for (unsigned col = 32; col < 64; ++col) {
      EXPECT_EQ(test::code_at(to, 0, col), test::nearest_e2m1(test::value_at(from, 0, col) / unit))
          << spread;
    }
  }
}

TEST(CastToNvfp4, GroupsOfZerosNeitherCountNorMoveTheGlobal) {
  Fp4Matrix from = mxfp4_of({0x00, 100, 99, 60}, 2, 5);
  for (std::size_t i = 0; i < 16; ++i) from.codes[i] = 0x80;  // zeros of both signs
  for (std::size_t i = 48; i < 64; ++i) from.codes[i] = 0x08;
  const Nvfp4Cast to = cast(from);
  EXPECT_EQ(to.requantised_groups, 0U);
  EXPECT_EQ(to.matrices[0].dequant_mul, std::ldexp(1.0F, 100 - 127 - 8));
  EXPECT_EQ(to.matrices[0].codes, from.codes);
  EXPECT_EQ(test::values_of(to.matrices[0]), test::values_of(from));
  const Fp4Matrix zeros{.format = BlockFormat::mxfp4,
                        .rows = 1,
                        .cols = 32,
                        .codes = std::vector<std::uint8_t>(16, 0),
                        .scales = {0x00}};
  EXPECT_EQ(cast(zeros).matrices[0].dequant_mul, 0x1p-8F);
  EXPECT_EQ(cast(zeros).matrices[0].scales, (std::vector<std::uint8_t>{0x38, 0x38}));
}

//
TEST(CastToNvfp4, GateAndUpShareTheGlobalOfTheLargerScale) {
  const Fp4Matrix gate = mxfp4_of({110, 108}, 1, 1);
  const Fp4Matrix up = mxfp4_of({113, 95}, 1, 2);
  const std::vector<Fp4MatrixRef> both = {gate.ref(), up.ref()};
  const Nvfp4Cast to = mxfp4_to_nvfp4(both);
  ASSERT_EQ(to.matrices.size(), 2U);
  EXPECT_EQ(to.matrices[0].dequant_mul, to.matrices[1].dequant_mul);
  EXPECT_EQ(to.matrices[0].dequant_mul, std::ldexp(1.0F, 113 - 127 - 8));
  EXPECT_EQ(test::values_of(to.matrices[0]), test::values_of(gate));
  EXPECT_EQ(to.requantised_groups, 1U);  // 113 - 95 = 18
}

TEST(CastToNvfp4, WhatIsNoNumberOrNoMxfp4IsRefused) {
  test::expect_refusal([] { cast(mxfp4_of({127, 0xFF}, 1, 1)); }, ErrorCode::input, "MOXIE-Q002");
  Fp4Matrix with_global = mxfp4_of({127}, 1, 1);
  with_global.dequant_mul = 0.5F;
  test::expect_refusal([&] { cast(with_global); }, ErrorCode::input, "MOXIE-Q003");
  Fp4Matrix ragged = mxfp4_of({127}, 1, 1);
  ragged.cols = 16;
  test::expect_refusal([&] { cast(ragged); }, ErrorCode::unsupported, "MOXIE-Q001");
}

Fp4Matrix nvfp4_of(std::vector<std::uint8_t> scales, float global) {
  Fp4Matrix matrix{.format = BlockFormat::nvfp4,
                   .rows = 1,
                   .cols = scales.size() * 16,
                   .codes = std::vector<std::uint8_t>(scales.size() * 8, 0x21),
                   .scales = std::move(scales),
                   .dequant_mul = global};
  return matrix;
}

TEST(CastToMxfp4, OnlyPairsOfEqualPowersOfTwoAreRecognised) {
  for (unsigned code = 0; code < 256; ++code) {
    const auto byte = static_cast<std::uint8_t>(code);
    const Fp4Matrix from = nvfp4_of({byte, byte}, 1.0F);
    const std::optional<Fp4Matrix> to = nvfp4_to_mxfp4(from.ref());
    int exponent = 0;
    const bool is_power =
        code < 0x7F && std::frexp(test::e4m3_by_definition(code), &exponent) == 0.5;
    ASSERT_EQ(to.has_value(), is_power) << code;
    if (!to) continue;
    EXPECT_EQ(to->scales[0] - 127, exponent - 1) << code;
    EXPECT_EQ(test::values_of(*to), test::values_of(from));
  }
  EXPECT_FALSE(nvfp4_to_mxfp4(nvfp4_of({0x38, 0x40}, 1.0F).ref()));
  EXPECT_FALSE(nvfp4_to_mxfp4(nvfp4_of({0x38, 0x38, 0x38}, 1.0F).ref()));  // 48 columns
}

TEST(CastToMxfp4, ABlockOfZerosFitsAnyPartner) {
  Fp4Matrix from = nvfp4_of({0x38, 0x3B, 0x3B, 0x20}, 1.0F);
  for (std::size_t i = 8; i < 32; ++i) from.codes[i] = 0x80;
  const std::optional<Fp4Matrix> to = nvfp4_to_mxfp4(from.ref());
  ASSERT_TRUE(to);
  EXPECT_EQ(to->scales, (std::vector<std::uint8_t>{127, 0x00}));
}

TEST(CastToMxfp4, AGlobalThatIsNoPowerOfTwoOrHasNoRoomStays) {
  const Fp4Matrix odd = nvfp4_of({0x38, 0x38, 0x40, 0x40}, 0.3F);
  const std::optional<Fp4Matrix> kept = nvfp4_to_mxfp4(odd.ref());
  ASSERT_TRUE(kept);
  EXPECT_EQ(kept->dequant_mul, 0.3F);
  EXPECT_EQ(kept->scales, (std::vector<std::uint8_t>{127, 128}));
  EXPECT_EQ(test::values_of(*kept), test::values_of(odd));
  for (const float global : {0x1p125F, 0x1p126F, 0x1p127F, 0x1p-125F, 0x1p-126F, 0x1p-127F}) {
    const Fp4Matrix from = nvfp4_of({0x38, 0x38, 0x40, 0x40}, global);
    const std::optional<Fp4Matrix> to = nvfp4_to_mxfp4(from.ref());
    ASSERT_TRUE(to);
    const bool has_room = global < 0x1p127F && global > 0x1p-127F;
    EXPECT_EQ(to->dequant_mul, has_room ? 1.0F : global) << global;
    EXPECT_EQ(test::values_of(*to), test::values_of(from)) << global;
  }
}

TEST(FoldGlobal, pit25_FoldingIsRefusedUnlessExact) {
  // 2^-6 * 2.86e-4 would round to 0, 1.125 * 0.7 to 0.8125.
  EXPECT_FALSE(fold_dequant_mul(nvfp4_of({0x08}, 2.86e-4F).ref()));
  EXPECT_FALSE(fold_dequant_mul(nvfp4_of({0x39}, 0.7F).ref()));
  const Fp4Matrix from = nvfp4_of({0x38, 0x41, 0x08}, 0.25F);
  const std::optional<Fp4Matrix> folded = fold_dequant_mul(from.ref());
  ASSERT_TRUE(folded);
  EXPECT_EQ(folded->dequant_mul, 1.0F);
  EXPECT_EQ(test::values_of(*folded), test::values_of(from));
  EXPECT_FALSE(fold_dequant_mul(nvfp4_of({0x38, 0x01}, 0.5F).ref()));  // 2^-10
  EXPECT_FALSE(fold_dequant_mul(nvfp4_of({0x0F}, 0.25F).ref()));       // 7.5 * 2^-9
  EXPECT_FALSE(fold_dequant_mul(nvfp4_of({0x7E}, 2.0F).ref()));        // 896
  EXPECT_FALSE(fold_dequant_mul(nvfp4_of({0x7F}, 1.0F).ref()));
  EXPECT_FALSE(fold_dequant_mul(nvfp4_of({0x38}, -1.0F).ref()));
}

}  // namespace
}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// The word of eight codes and the step that holds them, as cuda.sm90.experts reads them; on any
// machine.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <set>
#include <vector>

#include "formats/e2m1.hpp"
#include "formats/e4m3.hpp"
#include "kernels/cuda/sm90/tiles.hpp"

namespace moxie::cuda::sm90 {
namespace {

constexpr BlockFormat kFormats[] = {BlockFormat::mxfp4, BlockFormat::nvfp4};

// An fp16 pattern by its definition: 1, 5, 10 bits.
double value_of_half(std::uint32_t bits) {
  const int exponent = static_cast<int>(bits >> 10 & 31U);
  const double fraction = bits & 1023U;
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return (bits & 0x8000U) != 0 ? -magnitude : magnitude;
}

bool is_half(double value) {
  if (value == 0) return true;
  const int exponent = std::ilogb(value);
  if (exponent > 15) return false;
  const double unit = std::ldexp(1.0, std::max(exponent, -14) - 10);
  return value == std::trunc(value / unit) * unit;
}

// An E5M2 byte by its definition.
double value_of_e5m2(std::uint32_t bits) { return value_of_half(bits << 8); }

// What the fp16 kernel makes of a word (products.cuh): registers of two halves, in the order in
// which an m16n8k16 MMA takes them: rows g and g + 8 of columns 1 and 3, then those of 0 and 2.
std::array<std::uint32_t, 4> placed_registers(std::uint32_t word) {
  constexpr std::uint32_t kMask = 0x8E008E00U;
  const std::uint32_t mirrored = reversed(word);
  return {word & kMask, mirrored & kMask, word << 8 & kMask, mirrored << 8 & kMask};
}
// The FP8 kernel (products_fp8.cuh): four columns of row g, and of row g + 8.
std::array<std::uint32_t, 2> placed_bytes(std::uint32_t word) {
  constexpr std::uint32_t kMask = 0x8E8E8E8EU;
  return {word & kMask, reversed(word) & kMask};
}

TEST(Sm90Word, ReversesBits) {
  EXPECT_EQ(reversed(1), 0x80000000U);
  EXPECT_EQ(reversed(0x80000001U), 0x80000001U);
  EXPECT_EQ(reversed(0x12345678U), 0x1E6A2C48U);
  for (int bit = 0; bit < 32; ++bit) EXPECT_EQ(reversed(1U << bit), 0x80000000U >> bit);
}

TEST(Sm90Word, ReturnsEveryCodeInEveryPlaceBesideAnyNeighbours) {
  for (const std::uint32_t rest : {0x0000U, 0xFFFFU, 0x8421U, 0x5A5AU}) {
    for (std::uint32_t half = 0; half < 2; ++half) {
      for (std::uint32_t s = 0; s < 4; ++s) {
        for (std::uint32_t code = 0; code < 16; ++code) {
          WordCodes codes{{rest, rest ^ 0xFFFFU}};
          codes.rows[half] = (codes.rows[half] & ~(15U << 4 * s)) | code << 4 * s;
          const WordCodes back = unpack_word(pack_word(codes));
          EXPECT_EQ(back.rows[0], codes.rows[0]);
          EXPECT_EQ(back.rows[1], codes.rows[1]);
        }
      }
    }
  }
}

TEST(Sm90Word, UsesEveryBitOnce) {
  std::set<std::uint32_t> words;
  for (std::uint32_t half = 0; half < 2; ++half) {
    for (std::uint32_t bit = 0; bit < 16; ++bit) {
      WordCodes codes{};
      codes.rows[half] = 1U << bit;
      const std::uint32_t word = pack_word(codes);
      EXPECT_EQ(word & (word - 1), 0U) << "one bit stays one bit";
      EXPECT_TRUE(words.insert(word).second);
    }
  }
  EXPECT_EQ(words.size(), 32U);
  EXPECT_EQ(pack_word({{0xFFFFU, 0xFFFFU}}), 0xFFFFFFFFU);
}

// The layout by hand: row g holds codes 1, 2, 3, 4 (0.5, 1, 1.5, 2), row g + 8 their negatives.
TEST(Sm90Word, IsTheWordWrittenByHand) {
  // Straight, column 0 lowest: 0x02, 0x04, 0x06, 0x08 of row g. Those of row g + 8 the same way,
  // 0x82, 0x84, 0x86, 0x88, then mirrored as a whole.
  EXPECT_EQ(pack_word({{0x4321U, 0xCBA9U}}), 0x08060402U | reversed(0x88868482U));
  EXPECT_EQ(pack_word({{0x4321U, 0xCBA9U}}), 0x08060402U | 0x41216111U);
}

TEST(Sm90Word, BecomesFp16ValuesByMasksAndAReversal) {
  for (std::uint32_t half = 0; half < 2; ++half) {
    for (std::uint32_t s = 0; s < 4; ++s) {
      for (std::uint32_t code = 0; code < 16; ++code) {
        WordCodes codes{{0x7777U, 0xFFFFU}};  // the neighbours must not show
        codes.rows[half] = (codes.rows[half] & ~(15U << 4 * s)) | code << 4 * s;
        const auto registers = placed_registers(pack_word(codes));
        const std::uint32_t bits = registers[half + (s % 2 == 0 ? 2 : 0)] >> (s / 2 * 16) & 0xFFFFU;
        const double expected =
            std::ldexp(double{decode_e2m1(static_cast<std::uint8_t>(code))}, -14);
        EXPECT_EQ(value_of_half(bits), expected) << "row " << half << ", column " << s;
        EXPECT_EQ((bits & 0x8000U) != 0, code >= 8) << "the sign of zero too";
      }
    }
  }
}

TEST(Sm90Word, BecomesE5m2ValuesByMasksAndAReversal) {
  for (std::uint32_t half = 0; half < 2; ++half) {
    for (std::uint32_t s = 0; s < 4; ++s) {
      for (std::uint32_t code = 0; code < 16; ++code) {
        WordCodes codes{{0x7777U, 0xFFFFU}};  // the neighbours must not show
        codes.rows[half] = (codes.rows[half] & ~(15U << 4 * s)) | code << 4 * s;
        const std::uint32_t bits = placed_bytes(pack_word(codes))[half] >> (8 * s) & 0xFFU;
        const double expected =
            std::ldexp(double{decode_e2m1(static_cast<std::uint8_t>(code))}, -14);
        EXPECT_EQ(value_of_e5m2(bits), expected) << "row " << half << ", column " << s;
        EXPECT_EQ((bits & 0x80U) != 0, code >= 8) << "the sign of zero too";
      }
    }
  }
}

TEST(Sm90Word, TimesABlockScaleIsExactInFp16) {  // 127 scales of E4M3 without a sign, 8 magnitudes
  for (std::uint32_t scale = 0; scale < 127; ++scale) {
    for (std::uint32_t code = 0; code < 8; ++code) {
      const double weight = std::ldexp(double{decode_e2m1(static_cast<std::uint8_t>(code))}, -14);
      const double factor = decode_e4m3(static_cast<std::uint8_t>(scale));
      EXPECT_TRUE(is_half(factor));
      EXPECT_TRUE(is_half(weight * factor)) << "scale " << scale << ", code " << code;
    }
  }
}

// Factor of an E8M0 byte (products.cuh): every byte of a word of four, shifted to the exponent.
TEST(Sm90Scales, AreTheExponentOfAPowerOfTwo) {
  constexpr std::uint32_t kExponent = 0x7F800000U;
  for (std::uint32_t scale = 1; scale < 255; ++scale) {
    const std::uint32_t others = ~scale & 0xFFU;
    const auto word = [&](unsigned byte) {
      std::uint32_t all = 0;
      for (unsigned i = 0; i < 4; ++i) all |= (i == byte ? scale : others) << (8 * i);
      return all;
    };
    EXPECT_EQ(word(0) << 23 & kExponent, scale << 23);
    EXPECT_EQ(word(1) << 15 & kExponent, scale << 23);
    EXPECT_EQ(word(2) << 7 & kExponent, scale << 23);
    EXPECT_EQ(word(3) >> 1 & kExponent, scale << 23);
  }
}

TEST(Sm90Step, HoldsEveryCodeOfItsRowsAndColumnsOnce) {
  for (const BlockFormat format : kFormats) {
    std::set<std::uint32_t> quads;
    std::set<std::uint32_t> places;  // row * 64 + column
    for (std::uint32_t tile = 0; tile < 2; ++tile) {
      for (std::uint32_t lane = 0; lane < 32; ++lane) {
        EXPECT_EQ(quad_offset(tile, lane) % 16, 0U);
        EXPECT_LE(quad_offset(tile, lane) + 16, kStepCodes);
        EXPECT_TRUE(quads.insert(quad_offset(tile, lane)).second);
        for (std::uint32_t word = 0; word < 4; ++word) {
          const std::uint32_t column = word_column(format, lane, word);
          EXPECT_EQ(column % 4, 0U);
          for (std::uint32_t half = 0; half < 2; ++half) {
            const std::uint32_t row = tile * 16 + half * 8 + lane / 4;
            for (std::uint32_t s = 0; s < 4; ++s)
              EXPECT_TRUE(places.insert(row * kStepColumns + column + s).second);
          }
        }
      }
    }
    EXPECT_EQ(quads.size(), kStepCodes / 16);
    EXPECT_EQ(places.size(), kStripRows * kStepColumns);
    EXPECT_EQ(*places.rbegin(), kStripRows * kStepColumns - 1);
  }
}

TEST(Sm90Step, HoldsEveryScaleOfItsRowsAndGroupsOnce) {
  for (const BlockFormat format : kFormats) {
    const std::uint32_t groups = format == BlockFormat::mxfp4 ? 2 : 4;
    std::set<std::uint32_t> offsets;
    for (std::uint32_t tile = 0; tile < 2; ++tile) {
      for (std::uint32_t half = 0; half < 2; ++half) {
        for (std::uint32_t g = 0; g < 8; ++g) {
          for (std::uint32_t group = 0; group < groups; ++group)
            offsets.insert(scale_offset(format, tile, half, g, group));
        }
      }
    }
    EXPECT_EQ(offsets.size(), step_scales(format));
    EXPECT_EQ(*offsets.begin(), kStepCodes);
    EXPECT_EQ(*offsets.rbegin(), step_bytes(format) - 1);
    EXPECT_EQ(step_scales(format), kStripRows * groups);
  }
}

// Words of a lane never leave a scale group half way, and an NVFP4 lane has one group alone, whose
// number is its place among four.
TEST(Sm90Step, KeepsWordsInsideScaleGroups) {
  for (std::uint32_t lane = 0; lane < 32; ++lane) {
    for (std::uint32_t word = 0; word < 4; ++word) {
      EXPECT_EQ(word_column(BlockFormat::nvfp4, lane, word) / 16, lane % 4);
      EXPECT_EQ(word_column(BlockFormat::mxfp4, lane, word) / 32, word / 2);
    }
  }
}

// A few places by hand.
TEST(Sm90Step, IsTheTableWrittenByHand) {
  EXPECT_EQ(step_bytes(BlockFormat::mxfp4), 1088U);
  EXPECT_EQ(step_bytes(BlockFormat::nvfp4), 1152U);
  EXPECT_EQ(quad_offset(0, 5), 80U);
  EXPECT_EQ(quad_offset(1, 0), 512U);
  // Lane 6 is rows 1 and 9, and the third of four that share them.
  constexpr std::uint32_t kMx[] = {16, 20, 48, 52};
  constexpr std::uint32_t kNv[] = {32, 36, 40, 44};
  for (std::uint32_t word = 0; word < 4; ++word) {
    EXPECT_EQ(word_column(BlockFormat::mxfp4, 6, word), kMx[word]);
    EXPECT_EQ(word_column(BlockFormat::nvfp4, 6, word), kNv[word]);
  }
  EXPECT_EQ(scale_offset(BlockFormat::mxfp4, 0, 1, 3, 0), 1024U + 25);
  EXPECT_EQ(scale_offset(BlockFormat::mxfp4, 1, 0, 3, 1), 1024U + 30);
  EXPECT_EQ(scale_offset(BlockFormat::nvfp4, 1, 1, 2, 3), 1024U + 47);
}

}  // namespace
}  // namespace moxie::cuda::sm90

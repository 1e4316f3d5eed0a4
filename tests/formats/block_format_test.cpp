// SPDX-License-Identifier: Apache-2.0
// MXFP4 and NVFP4 as a whole: one value, one row, valid scales, and conversions between units.
#include "formats/block_format.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

namespace moxie {
namespace {

constexpr BlockFormat kBoth[2] = {BlockFormat::mxfp4, BlockFormat::nvfp4};

template <class A, class B>
concept Addable = requires(A a, B b) { a + b; };

static_assert(Addable<PackedBytes, PackedBytes>);
static_assert(!Addable<PackedBytes, ScaleGroups>, "bytes and groups do not add");
static_assert(!std::is_convertible_v<Elems, PackedBytes> &&
                  !std::is_convertible_v<Elems, ScaleGroups>,
              "units convert through named functions only");
static_assert(to_scale_groups(Elems{64}, BlockFormat::mxfp4) == ScaleGroups{2});

// A row of codes `1` (0.5) or `2` (1.0) and so on, all equal.
std::vector<std::uint8_t> row_of(std::uint8_t code, Elems elems) {
  return std::vector<std::uint8_t>(to_packed_bytes(elems).value,
                                   static_cast<std::uint8_t>(code | (code << 4)));
}

TEST(BlockFormat, KnowsGroupsScalesAndGlobals) {
  EXPECT_EQ(scale_group(BlockFormat::mxfp4), 32U);
  EXPECT_EQ(block_spec(BlockFormat::mxfp4).scale_kind, ScaleKind::e8m0);
  EXPECT_FALSE(block_spec(BlockFormat::mxfp4).has_global);
  EXPECT_EQ(scale_group(BlockFormat::nvfp4), 16U);
  EXPECT_EQ(block_spec(BlockFormat::nvfp4).scale_kind, ScaleKind::ue4m3);
  EXPECT_TRUE(block_spec(BlockFormat::nvfp4).has_global);
}

TEST(BlockFormat, KnowsWhichScaleBytesAreNumbers) {  // pit7, pit8
  for (unsigned byte = 0; byte < 256; ++byte) {
    const auto scale = static_cast<std::uint8_t>(byte);
    EXPECT_EQ(scale_is_valid(BlockFormat::mxfp4, scale), byte != 0xFF) << byte;
    EXPECT_EQ(scale_is_valid(BlockFormat::nvfp4, scale), byte < 0x7F) << byte;
  }
}

TEST(BlockFormat, DecodesTheExtremeE8m0Scales) {  // K-05
  const auto one = [](std::uint8_t scale) { return dequantise(2, scale, BlockFormat::mxfp4, 1.0); };
  EXPECT_EQ(one(0), 0x1.0p-127);
  EXPECT_EQ(one(1), 0x1.0p-126);
  EXPECT_EQ(one(127), 1.0);
  EXPECT_EQ(one(254), 0x1.0p127);
  EXPECT_TRUE(std::isnan(one(255)));
  EXPECT_EQ(dequantise(7, 254, BlockFormat::mxfp4, 1.0), 6.0 * 0x1.0p127);  // beyond fp32, not Inf
}

TEST(BlockFormat, ANanScaleMakesNanEvenOfZeroCodes) {  // pit8
  EXPECT_TRUE(std::isnan(dequantise(0, 0xFF, BlockFormat::mxfp4, 1.0)));
  EXPECT_TRUE(std::isnan(dequantise(8, 0xFF, BlockFormat::mxfp4, 1.0)));
  EXPECT_TRUE(std::isnan(dequantise(0, 0x7F, BlockFormat::nvfp4, 1.0)));
  EXPECT_TRUE(std::isnan(dequantise(0, 0xB8, BlockFormat::nvfp4, 1.0)));  // set top bit
}

TEST(BlockFormat, ZeroBlocksDecodeToZerosWhateverTheScale) {  // pit14
  constexpr std::uint8_t kScales[3] = {0x00, 0x20, 0x38};
  constexpr std::uint8_t kZeros[2] = {0x0, 0x8};
  for (const std::uint8_t scale : kScales) {
    for (const std::uint8_t code : kZeros) {
      EXPECT_EQ(dequantise(code, scale, BlockFormat::nvfp4, 0.25), 0.0);
    }
  }
}

TEST(BlockFormat, MultipliesByTheGlobal) {
  EXPECT_EQ(dequantise(2, 0x38, BlockFormat::nvfp4, 1.0 / 256), 1.0 / 256);
  EXPECT_EQ(dequantise(7, 0x01, BlockFormat::nvfp4, 1.0), 0.01171875);
  EXPECT_EQ(dequantise(0xF, 0x7E, BlockFormat::nvfp4, 1.0), -2688.0);
}

TEST(BlockFormat, ReadsOneScalePerGroup) {  // pit9
  const Elems elems{64};
  for (const BlockFormat format : kBoth) {
    const std::vector<std::uint8_t> codes = row_of(2, elems);
    std::vector<std::uint8_t> scales;
    for (std::uint64_t g = 0; g < to_scale_groups(elems, format).value; ++g) {
      scales.push_back(static_cast<std::uint8_t>(0x30 + 8 * g));
    }
    for (std::uint64_t k = 0; k < elems.value; ++k) {
      const std::uint64_t group = k / (format == BlockFormat::mxfp4 ? 32 : 16);
      EXPECT_EQ(dequantise_element(codes.data(), scales.data(), k, format, 1.0),
                decode_scale(format, static_cast<std::uint8_t>(0x30 + 8 * group)))
          << k;
    }
  }
}

TEST(BlockFormat, ATileAlongKSpansTwoScaleGroups) {  // L-04
  const std::vector<std::uint8_t> codes = row_of(2, Elems{32});
  const std::vector<std::uint8_t> scales = {0x38, 0x40};
  double dot = 0;
  for (std::uint64_t k = 0; k < 32; ++k) {
    dot += dequantise_element(codes.data(), scales.data(), k, BlockFormat::nvfp4, 1.0);
  }
  EXPECT_EQ(dot, 48.0);
}

TEST(BlockFormat, ReadsTheEvenElementFromTheLowNibble) {  // R-14, pit2
  const std::uint8_t codes[16] = {0x21, 0x43};
  const std::uint8_t scale = 0x7F;
  const double values[4] = {0.5, 1.0, 1.5, 2.0};
  for (std::uint64_t k = 0; k < 4; ++k) {
    EXPECT_EQ(dequantise_element(codes, &scale, k, BlockFormat::mxfp4, 1.0), values[k]);
  }
}

TEST(BlockFormat, PackedBytesAndLogicalShapeDescribeTheSameMatrix) {  // R-06 (a), (b), (c)
  EXPECT_EQ(to_packed_bytes(Elems{8}) * 2, PackedBytes{8});           // F4 [2, 8] is 8 bytes
  EXPECT_EQ(to_elems(PackedBytes{4}), Elems{8});                      // U8 [2, 4] has rows of 8
  EXPECT_THROW(to_packed_bytes(Elems{3}), std::invalid_argument);
}

TEST(BlockFormat, UnitsConvertOnlyInWholes) {
  EXPECT_EQ(to_scale_groups(Elems{2880}, BlockFormat::mxfp4), ScaleGroups{90});
  EXPECT_EQ(to_scale_groups(Elems{688}, BlockFormat::nvfp4), ScaleGroups{43});
  EXPECT_THROW(to_scale_groups(Elems{688}, BlockFormat::mxfp4), std::invalid_argument);
  EXPECT_THROW(to_scale_groups(Elems{24}, BlockFormat::nvfp4), std::invalid_argument);
  EXPECT_TRUE(is_whole_groups(Elems{24 * 4}, BlockFormat::nvfp4));
  EXPECT_FALSE(is_whole_groups(Elems{24}, BlockFormat::nvfp4));
  EXPECT_FALSE(is_whole_bytes(Elems{3}));
  EXPECT_EQ(to_elems(ScaleGroups{90}, BlockFormat::mxfp4), Elems{2880});
}

TEST(BlockFormat, UnitsThatDoNotFitIn64BitsAreRefused) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
  EXPECT_THROW(to_elems(PackedBytes{kMost / 2 + 1}), std::invalid_argument);
  EXPECT_THROW(to_elems(ScaleGroups{kMost / 16 + 1}, BlockFormat::nvfp4), std::invalid_argument);
  EXPECT_EQ(to_elems(ScaleGroups{kMost / 32}, BlockFormat::mxfp4), Elems{kMost - 31});
}

TEST(BlockFormat, OffsetsOfALargePackedBufferAre64Bit) {  // K-07
  const std::uint64_t expert_bytes = to_packed_bytes(Elems{4096}).value * 4096;
  EXPECT_EQ(expert_bytes * 256, 2147483648U);
  EXPECT_EQ((Elems{4096} * 524288).value, 2147483648U);
}

}  // namespace
}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// Scale layouts proved: inverse, unique offsets, defined padding, printed tables, and independent
// goldens.
#include "formats/scale_layout.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "formats/block_format.hpp"
#include "formats/expert_offsets.hpp"
#include "support/csv.hpp"

namespace moxie {
namespace {

using test::Csv;
using test::golden;

using Shape2d = std::pair<std::uint64_t, std::uint64_t>;  // rows, groups

constexpr Shape2d kShapes[] = {{0, 4},   {1, 1},   {1, 16},   {5, 3},   {7, 4},    {8, 5},
                               {9, 8},   {33, 22}, {100, 6},  {127, 9}, {128, 90}, {129, 43},
                               {130, 5}, {256, 8}, {256, 11}, {300, 22}};

template <class Layout>
class EveryScaleLayout : public testing::Test {};

using AllLayouts =
    testing::Types<LinearScaleLayout, ScaleLayout128x4, ScaleLayout8x4, DeepGemmScaleLayout>;
TYPED_TEST_SUITE(EveryScaleLayout, AllLayouts);

template <class Layout>
Layout make(std::uint64_t rows, std::uint64_t groups) {
  return Layout{rows, ScaleGroups{groups}};
}

// Makes every position visible and is never 0xFF.
std::vector<std::uint8_t> numbered_scales(std::uint64_t rows, std::uint64_t groups) {
  std::vector<std::uint8_t> scales;
  for (std::uint64_t row = 0; row < rows; ++row) {
    for (std::uint64_t group = 0; group < groups; ++group) {
      scales.push_back(static_cast<std::uint8_t>((row * 31 + group * 7) % 251));
    }
  }
  return scales;
}

// The tiled form of `linear`, written over memory that held 0xFF.
template <class Layout>
std::vector<std::uint8_t> tiled(const Layout& layout, const std::vector<std::uint8_t>& linear) {
  std::vector<std::uint8_t> buffer(layout.size_bytes(), 0xFF);
  tile_scales(layout, linear.data(), buffer.data());
  return buffer;
}

TYPED_TEST(EveryScaleLayout, InverseOfOffsetIsTheCoordinateAndOffsetsAreUnique) {  // pit28
  for (const auto& [rows, groups] : kShapes) {
    const auto layout = make<TypeParam>(rows, groups);
    std::vector<int> owners(layout.size_bytes(), 0);
    for (std::uint64_t row = 0; row < rows; ++row) {
      for (std::uint64_t group = 0; group < groups; ++group) {
        const std::uint64_t at = layout.offset(row, group);
        ASSERT_LT(at, layout.size_bytes());
        ++owners[at];
        ASSERT_EQ(layout.coordinate(at), (ScaleCoordinate{row, group})) << rows << "x" << groups;
      }
    }
    for (std::uint64_t at = 0; at < layout.size_bytes(); ++at) {
      ASSERT_EQ(owners[at], layout.coordinate(at).has_value() ? 1 : 0) << at;
    }
    EXPECT_EQ(layout.coordinate(layout.size_bytes()), std::nullopt);
  }
}

TYPED_TEST(EveryScaleLayout, TilingRoundTripsAndLeavesNoPaddingUndefined) {  // pit30, pit31
  for (const auto& [rows, groups] : kShapes) {
    const auto layout = make<TypeParam>(rows, groups);
    const auto linear = numbered_scales(rows, groups);
    const auto buffer = tiled(layout, linear);
    for (std::uint64_t at = 0; at < buffer.size(); ++at) {
      const auto coordinate = layout.coordinate(at);
      const std::uint8_t expected =
          coordinate ? linear[coordinate->row * groups + coordinate->group] : std::uint8_t{0};
      ASSERT_EQ(buffer[at], expected) << rows << "x" << groups << " at " << at;
    }
    std::vector<std::uint8_t> back(linear.size(), 0xFF);
    untile_scales(layout, buffer.data(), back.data());
    EXPECT_EQ(back, linear);
  }
}

TYPED_TEST(EveryScaleLayout, AProbeChangesOneByteOfItsOwnRowAndGroup) {  // pit29, B5
  constexpr std::uint64_t kRows = 256;
  constexpr std::uint64_t kGroups = 112;
  const auto layout = make<TypeParam>(kRows, kGroups);
  const std::vector<std::uint8_t> ones(kRows * kGroups, 0x38);
  const auto plain = tiled(layout, ones);
  const ScaleCoordinate probes[] = {{0, 0},   {0, 1},   {0, 3},    {0, 4},   {0, 100},
                                    {33, 5},  {32, 4},  {96, 111}, {127, 0}, {127, 111},
                                    {128, 0}, {128, 7}, {255, 111}};
  for (const ScaleCoordinate& probe : probes) {
    auto linear = ones;
    linear[probe.row * kGroups + probe.group] = 0x40;
    const auto changed = tiled(layout, linear);
    std::vector<std::uint64_t> places;
    for (std::uint64_t at = 0; at < plain.size(); ++at) {
      if (changed[at] != plain[at]) places.push_back(at);
    }
    ASSERT_EQ(places.size(), 1U);
    EXPECT_EQ(layout.coordinate(places[0]), probe);
  }
}

TYPED_TEST(EveryScaleLayout, OffsetsAbove2To31AreExact) {  // K-07
  constexpr std::uint64_t kRows = std::uint64_t{384} * 4096 * 4;
  constexpr std::uint64_t kGroups = 1024;
  const auto layout = make<TypeParam>(kRows, kGroups);
  EXPECT_EQ(layout.size_bytes(), kRows * kGroups);
  std::uint64_t above = 0;
  for (std::uint64_t row = 5; row < kRows; row += 65537) {
    const std::uint64_t group = row * 509 % kGroups;
    const std::uint64_t at = layout.offset(row, group);
    ASSERT_LT(at, layout.size_bytes());
    ASSERT_EQ(layout.coordinate(at), (ScaleCoordinate{row, group}));
    if (at > (std::uint64_t{1} << 32)) ++above;
  }
  EXPECT_GT(above, 10U);
}

TEST(LinearScaleLayout, OffsetsOfAllExpertsInOneTensor) {  // K-07
  const auto layout = make<LinearScaleLayout>(384 * 4096, 4096);
  EXPECT_EQ(layout.offset(200 * 4096, 0), 3355443200U);
  EXPECT_EQ(layout.offset(300 * 4096 + 4095, 4095), 5049942015U);
  EXPECT_EQ(make<LinearScaleLayout>(384 * 4096, 2048).offset(256 * 4096, 0), 2147483648U);
}

TEST(ScaleLayout128x4, MatchesThePrintedTable) {  // pit27, B5
  const auto layout = make<ScaleLayout128x4>(256, 8);
  EXPECT_EQ(layout.size_bytes(), 2048U);
  const std::map<Shape2d, std::uint64_t> offsets = {
      {{0, 0}, 0},      {{0, 3}, 3},      {{0, 4}, 512},   {{1, 0}, 16},     {{31, 0}, 496},
      {{32, 0}, 4},     {{33, 5}, 533},   {{96, 3}, 15},   {{127, 7}, 1023}, {{128, 0}, 1024},
      {{129, 4}, 1552}, {{160, 2}, 1030}, {{255, 7}, 2047}};
  for (const auto& [at, offset] : offsets) EXPECT_EQ(layout.offset(at.first, at.second), offset);
}

TEST(ScaleLayout128x4, MatchesTheSpotValuesOfOtherWidths) {  // pit31
  const auto wide = make<ScaleLayout128x4>(128, 448);
  EXPECT_EQ(wide.offset(0, 1), 1U);
  EXPECT_EQ(wide.offset(0, 3), 3U);
  EXPECT_EQ(wide.offset(0, 4), 512U);
  EXPECT_EQ(wide.offset(0, 100), 12800U);

  const auto odd = make<ScaleLayout128x4>(256, 22);
  EXPECT_EQ(odd.k_tiles(), 6U);
  EXPECT_EQ(odd.offset(0, 21), 2561U);
  EXPECT_EQ(odd.offset(128, 0), 3072U);
  EXPECT_EQ(odd.size_bytes(), 6144U);

  EXPECT_EQ(make<ScaleLayout128x4>(128, 90).size_bytes(), 128U * 92);
  EXPECT_EQ(make<ScaleLayout128x4>(128, 43).size_bytes(), 128U * 44);
}

TEST(ScaleLayout128x4, PlacesASmallMatrixAsPrinted) {  // pit30
  const auto buffer = tiled(make<ScaleLayout128x4>(5, 3), std::vector<std::uint8_t>(15, 0x38));
  ASSERT_EQ(buffer.size(), 512U);
  for (std::uint64_t at = 0; at < 512; ++at) {
    EXPECT_EQ(buffer[at], at < 80 && at % 16 < 3 ? 0x38 : 0x00) << at;
  }
}

TEST(ScaleLayout128x4, RoundsTheBufferUpToWholeTiles) {  // L-01
  const std::map<std::uint64_t, std::uint64_t> size_of_rows = {
      {1, 2048}, {5, 2048}, {32, 2048}, {127, 2048}, {128, 2048}, {129, 4096}};
  for (const auto& [rows, size] : size_of_rows) {
    EXPECT_EQ(make<ScaleLayout128x4>(rows, 16).size_bytes(), size);
  }
  EXPECT_EQ(make<ScaleLayout128x4>(5, 16).offset(4, 15), 1603U);

  const auto layout = make<ScaleLayout128x4>(100, 6);
  EXPECT_EQ(layout.size_bytes(), 1024U);
  const auto linear = numbered_scales(100, 6);
  std::vector<std::uint8_t> back(600);
  untile_scales(layout, tiled(layout, linear).data(), back.data());
  EXPECT_EQ(back, linear);
}

TEST(ScaleLayout128x4, StridesFollowThePaddedWidth) {  // L-02
  const auto layout = ScaleLayout128x4{256, to_scale_groups(Elems{352}, BlockFormat::mxfp4)};
  EXPECT_EQ(layout.groups, ScaleGroups{11});
  EXPECT_EQ(layout.offset(32, 0), 4U);
  EXPECT_EQ(layout.offset(0, 10), 1026U);
  EXPECT_EQ(layout.offset(128, 0), 1536U);
  EXPECT_EQ(layout.size_bytes(), 3072U);
  EXPECT_EQ(layout.coordinate(1027), std::nullopt);  // group 11 of row 0

  const auto buffer = tiled(layout, std::vector<std::uint8_t>(256 * 11, 0x7F));
  EXPECT_TRUE(scale_is_valid(BlockFormat::mxfp4, buffer[1027]));
  EXPECT_EQ(dequantise(0, buffer[1027], BlockFormat::mxfp4, 1.0), 0.0);
}

TEST(ScaleLayout128x4, SwizzlingEachExpertAloneEqualsSwizzlingAlignedSegments) {  // L-03, pit32
  const std::vector<std::uint64_t> counts = {100, 60};
  const auto offsets = OffsetsWith0::from_counts(counts);
  const ScaleOffsetsExact scale_offsets(offsets);
  const auto whole = make<ScaleLayout128x4>(scale_offsets.rows(), 4);
  EXPECT_EQ(whole.size_bytes(), 1024U);
  EXPECT_EQ(whole.offset(scale_offsets.first(1), 0), 512U);

  const auto linear = numbered_scales(offsets.rows(), 4);
  std::vector<std::uint8_t> rows_in_place(whole.rows * 4, 0);
  std::vector<std::uint8_t> alone;
  for (std::size_t expert = 0; expert < 2; ++expert) {
    for (std::uint64_t row = offsets.first(expert); row < offsets.first(expert + 1); ++row) {
      const std::uint64_t to = scale_row_of(scale_offsets, offsets, expert, row);
      for (std::uint64_t g = 0; g < 4; ++g) rows_in_place[to * 4 + g] = linear[row * 4 + g];
    }
    const std::vector<std::uint8_t> own(
        linear.begin() + static_cast<std::ptrdiff_t>(offsets.first(expert) * 4),
        linear.begin() + static_cast<std::ptrdiff_t>(offsets.first(expert + 1) * 4));
    const auto part = tiled(make<ScaleLayout128x4>(counts[expert], 4), own);
    alone.insert(alone.end(), part.begin(), part.end());
  }
  const auto together = tiled(whole, rows_in_place);
  EXPECT_EQ(together, alone);

  auto changed = rows_in_place;
  for (std::uint64_t i = 0; i < 400; ++i) changed[i] ^= 0x7;  // every scale of expert 0
  const auto other = tiled(whole, changed);
  EXPECT_TRUE(std::equal(together.begin() + 512, together.end(), other.begin() + 512));
}

TEST(ScaleLayout128x4, UnalignedSegmentsLandElsewhere) {
  const auto layout = make<ScaleLayout128x4>(256, 8);
  EXPECT_EQ(layout.offset(128, 0), 1024U);  // row 0 of an expert that starts at a tile
  EXPECT_EQ(layout.offset(4, 0), 64U);      // the same row behind 4 compact rows
  EXPECT_EQ(layout.offset(129, 6), 1554U);
  EXPECT_EQ(layout.offset(5, 6), 594U);
}

TEST(ScaleLayout128x4, EveryRowOfEveryExpertHasItsOwnScales) {  // pit32
  const std::vector<std::uint64_t> counts = {0, 1, 127, 128, 129, 500};
  const auto offsets = OffsetsWith0::from_counts(counts);
  const ScaleOffsetsExact exact(offsets);
  const ScaleOffsetsClosedForm closed(offsets);
  const auto check = [&](const auto& scale_offsets) {
    std::vector<int> owners(scale_offsets.rows(), 0);
    for (std::size_t expert = 0; expert < counts.size(); ++expert) {
      EXPECT_EQ(scale_offsets.first(expert) % 128, 0U);
      for (std::uint64_t row = offsets.first(expert); row < offsets.first(expert + 1); ++row) {
        ++owners.at(scale_row_of(scale_offsets, offsets, expert, row));
      }
    }
    EXPECT_EQ(std::count(owners.begin(), owners.end(), 1), 885);
    EXPECT_EQ(*std::max_element(owners.begin(), owners.end()), 1);
  };
  check(exact);
  check(closed);
}

TEST(ScaleLayout128x4, PaddedScalesOverStaleMemoryAreFiniteAndAddNothing) {  // L-05, pit30
  struct Case {
    BlockFormat format;
    std::uint64_t inter;  // real elements along K
    std::uint8_t scale;
  };
  for (const Case& c : {Case{BlockFormat::nvfp4, 48, 0x40}, Case{BlockFormat::mxfp4, 96, 0x80}}) {
    const ScaleGroups groups = to_scale_groups(Elems{c.inter}, c.format);
    ASSERT_EQ(groups, ScaleGroups{3});
    const ScaleLayout128x4 layout{2, groups};
    const auto buffer = tiled(layout, std::vector<std::uint8_t>(2 * 3, c.scale));
    for (const std::uint8_t byte : buffer) ASSERT_TRUE(scale_is_valid(c.format, byte));

    // Four groups of row 1 as a kernel reads them, with zero codes in the padded one.
    double dot = 0;
    for (std::uint64_t k = 0; k < 4 * scale_group(c.format); ++k) {
      const std::uint8_t code = k < c.inter ? std::uint8_t{2} : std::uint8_t{0};
      dot += dequantise(code, buffer[layout.offset(1, k / scale_group(c.format))], c.format, 1.0);
    }
    EXPECT_EQ(dot, 2.0 * static_cast<double>(c.inter));
    EXPECT_TRUE(scale_is_valid(c.format, 0x00));
    EXPECT_FALSE(scale_is_valid(c.format, 0xFF));
  }
}

TEST(ScaleLayout128x4, AddingRowsMovesNoEarlierRow) {
  const auto few = make<ScaleLayout128x4>(5, 22);
  const auto many = make<ScaleLayout128x4>(500, 22);
  for (std::uint64_t group = 0; group < 22; ++group) {
    EXPECT_EQ(few.offset(4, group), many.offset(4, group));
  }
}

TEST(ScaleLayout128x4, MatchesTheGoldenWalk) {  // pit27, pit28
  const Csv table = golden("sf_128x4_golden.csv");
  std::map<Shape2d, std::uint64_t> seen;
  for (std::size_t row = 0; row < table.rows(); ++row) {
    const Shape2d shape{table.number(row, "rows"), table.number(row, "k_sf")};
    const auto layout = make<ScaleLayout128x4>(shape.first, shape.second);
    const ScaleCoordinate at{table.number(row, "m"), table.number(row, "k")};
    ASSERT_EQ(layout.offset(at.row, at.group), table.number(row, "offset"));
    ASSERT_EQ(layout.coordinate(table.number(row, "offset")), at);
    ++seen[shape];
  }
  EXPECT_EQ(seen,
            (std::map<Shape2d, std::uint64_t>{{{5, 3}, 15}, {{130, 5}, 650}, {{33, 22}, 726}}));
}

TEST(ScaleLayout8x4, MatchesThePrintedValues) {
  const auto layout = make<ScaleLayout8x4>(10, 8);
  EXPECT_EQ(layout.offset(0, 4), 32U);
  EXPECT_EQ(layout.offset(1, 0), 4U);
  EXPECT_EQ(layout.offset(7, 3), 31U);
  EXPECT_EQ(layout.offset(7, 7), 63U);
  EXPECT_EQ(layout.offset(8, 0), 64U);
  EXPECT_EQ(layout.offset(9, 5), 101U);
  EXPECT_EQ(layout.size_bytes(), 128U);
}

TEST(ScaleLayout8x4, IsNotTheLayoutOf128Rows) {
  EXPECT_NE(make<ScaleLayout8x4>(128, 8).offset(1, 0), make<ScaleLayout128x4>(128, 8).offset(1, 0));
}

TEST(DeepGemmScaleLayout, MatchesThePrintedExample) {  // pit37
  const auto layout = DeepGemmScaleLayout{5, to_scale_groups(Elems{256}, BlockFormat::mxfp4)};
  EXPECT_EQ(layout.aligned_rows(), 8U);
  EXPECT_EQ(layout.size_bytes(), 16U * 4);
  EXPECT_EQ(layout.offset(3, 6), 46U);
}

TEST(DeepGemmScaleLayout, MatchesTheGoldenWalk) {  // pit37
  const Csv table = golden("sf_deepgemm_packed_golden.csv");
  for (std::size_t row = 0; row < table.rows(); ++row) {
    const auto layout =
        make<DeepGemmScaleLayout>(table.number(row, "mn"), table.number(row, "k_sf"));
    const ScaleCoordinate at{table.number(row, "m"), table.number(row, "k")};
    const std::uint64_t offset = layout.offset(at.row, at.group);
    ASSERT_EQ(offset, table.number(row, "byte_offset"));
    ASSERT_EQ(offset / 4, table.number(row, "int32_index"));
    ASSERT_EQ(offset % 4, table.number(row, "byte_in_word"));
    ASSERT_EQ(layout.coordinate(offset), at);
  }
}

TEST(DeepGemmScaleLayout, OrdersBlocksRowsFirstWhere128x4OrdersThemAlongK) {  // pit37
  // With rows transposed inside each 128-row block (new position 4*b + a holds old row 32*a + b), a
  // block of 128 rows x 4 groups is the 512-byte tile of 128x4; the order of the blocks differs.
  const auto transposed = [](std::uint64_t row) {
    return row / 128 * 128 + row % 32 * 4 + row % 128 / 32;
  };
  const auto packed = make<DeepGemmScaleLayout>(256, 8);
  const auto tiles = make<ScaleLayout128x4>(256, 8);
  for (std::uint64_t row = 0; row < 256; ++row) {
    for (std::uint64_t group = 0; group < 8; ++group) {
      const std::uint64_t a = packed.offset(transposed(row), group);
      const std::uint64_t b = tiles.offset(row, group);
      ASSERT_EQ(a % 512, b % 512);
      ASSERT_EQ(a / 512, group / 4 * 2 + row / 128);  // rows first
      ASSERT_EQ(b / 512, row / 128 * 2 + group / 4);  // K first
    }
  }
}

}  // namespace
}  // namespace moxie

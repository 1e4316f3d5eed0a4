// SPDX-License-Identifier: Apache-2.0
// The order of bands: a bijection, and its places by hand.
#include "formats/band_order.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace moxie {
namespace {

// The nibble of a column of one row, in rows and in a band, from the text of the header alone.
unsigned in_row(const std::vector<std::byte>& rows, std::uint64_t row_bytes, std::uint64_t row,
                std::uint64_t column) {
  const auto byte = std::to_integer<unsigned>(rows[row * row_bytes + column / 2]);
  return column % 2 == 0 ? byte & 0xFU : byte >> 4;
}
unsigned in_band(const std::vector<std::byte>& band, std::uint64_t row, std::uint64_t column) {
  const std::uint64_t line = column / 32 * 4 + column % 32 / 8;
  const std::uint64_t word = line * 64 + row * 4 + (column % 2) * 2;
  const unsigned low = std::to_integer<unsigned>(band[word]);
  const unsigned both = low | std::to_integer<unsigned>(band[word + 1]) << 8;
  return both >> (4 * (column % 8 / 2)) & 0xFU;
}

std::vector<std::byte> random_bytes(std::uint64_t count, std::mt19937& random) {
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

TEST(BandOrder, PutsEveryCodeWhereItsHeaderSays) {
  std::mt19937 random(1);
  for (const std::uint64_t row_bytes : {16U, 32U, 48U, 2048U}) {
    const auto rows = random_bytes(kBandRows * row_bytes, random);
    std::vector<std::byte> band(rows.size());
    codes_to_band(rows.data(), row_bytes, row_bytes, band.data());
    for (std::uint64_t row = 0; row < kBandRows; ++row) {
      for (std::uint64_t column = 0; column < 2 * row_bytes; ++column)
        ASSERT_EQ(in_band(band, row, column), in_row(rows, row_bytes, row, column));
    }
  }
}

TEST(BandOrder, ComesBackToTheSameRows) {
  std::mt19937 random(2);
  for (const std::uint64_t row_bytes : {16U, 64U, 368U}) {
    const auto rows = random_bytes(kBandRows * row_bytes, random);
    std::vector<std::byte> band(rows.size());
    std::vector<std::byte> back(rows.size());
    codes_to_band(rows.data(), row_bytes, row_bytes, band.data());
    codes_from_band(band.data(), row_bytes, back.data());
    EXPECT_EQ(back, rows);
  }
  for (const std::uint64_t groups : {1U, 2U, 3U, 128U, 256U}) {
    const auto rows = random_bytes(kBandRows * groups, random);
    std::vector<std::byte> band(rows.size());
    std::vector<std::byte> back(rows.size());
    scales_to_band(rows.data(), groups, groups, band.data());
    scales_from_band(band.data(), groups, back.data());
    EXPECT_EQ(back, rows);
  }
}

TEST(BandOrder, PutsTheScalesOfAGroupSideBySide) {
  std::vector<std::byte> rows(kBandRows * 3);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::byte>(i);
  std::vector<std::byte> band(rows.size());
  scales_to_band(rows.data(), 3, 3, band.data());
  EXPECT_EQ(std::to_integer<int>(band[0]), 0);
  EXPECT_EQ(std::to_integer<int>(band[1]), 3);
  EXPECT_EQ(std::to_integer<int>(band[16]), 1);
  EXPECT_EQ(std::to_integer<int>(band[47]), 47);
}

TEST(BandOrder, TakesRowsThatLieApart) {
  std::mt19937 random(3);
  for (const std::uint64_t row_bytes : {16U, 48U, 112U}) {
    const std::uint64_t stride = row_bytes + 13;
    const auto apart = random_bytes(kBandRows * stride, random);
    std::vector<std::byte> rows;
    for (std::uint64_t row = 0; row < kBandRows; ++row) {
      const auto begin = apart.begin() + static_cast<std::ptrdiff_t>(row * stride);
      rows.insert(rows.end(), begin, begin + static_cast<std::ptrdiff_t>(row_bytes));
    }
    std::vector<std::byte> wanted(rows.size());
    std::vector<std::byte> band(rows.size());
    codes_to_band(rows.data(), row_bytes, row_bytes, wanted.data());
    codes_to_band(apart.data(), stride, row_bytes, band.data());
    EXPECT_EQ(band, wanted);
    scales_to_band(rows.data(), row_bytes, row_bytes, wanted.data());
    scales_to_band(apart.data(), stride, row_bytes, band.data());
    EXPECT_EQ(band, wanted);
  }
}

}  // namespace
}  // namespace moxie

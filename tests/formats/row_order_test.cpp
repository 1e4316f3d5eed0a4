// SPDX-License-Identifier: Apache-2.0
// Arrangements of fused gate/up rows: the maps, their inverses, and that codes and scales move
// together.
#include "formats/row_order.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "formats/block_format.hpp"

namespace moxie {
namespace {

constexpr RowOrder kAll[5] = {RowOrder::gate_first, RowOrder::up_first, RowOrder::interleaved_1,
                              RowOrder::interleaved_8, RowOrder::interleaved_64};

// Rows in memory order as +1, +2, ... for gate and -1, -2, ... for up.
std::vector<int> printed(RowOrder order, std::uint64_t inter) {
  const RowArrangement arrangement(order, inter);
  std::vector<int> rows;
  for (std::uint64_t at = 0; at < arrangement.rows(); ++at) {
    const FusedRow row = arrangement.logical(at);
    const int number = static_cast<int>(row.row) + 1;
    rows.push_back(row.half == FusedHalf::gate ? number : -number);
  }
  return rows;
}

TEST(RowOrder, ArrangesAsItsNameSays) {  // pit39
  EXPECT_EQ(printed(RowOrder::gate_first, 3), (std::vector<int>{1, 2, 3, -1, -2, -3}));
  EXPECT_EQ(printed(RowOrder::up_first, 3), (std::vector<int>{-1, -2, -3, 1, 2, 3}));
  EXPECT_EQ(printed(RowOrder::interleaved_1, 3), (std::vector<int>{1, -1, 2, -2, 3, -3}));

  const std::vector<int> by8 = printed(RowOrder::interleaved_8, 16);
  EXPECT_EQ(by8[0], 1);
  EXPECT_EQ(by8[7], 8);
  EXPECT_EQ(by8[8], -1);
  EXPECT_EQ(by8[16], 9);
  EXPECT_EQ(by8[31], -16);

  const std::vector<int> by64 = printed(RowOrder::interleaved_64, 128);
  EXPECT_EQ(by64[0], -1);  // the up block comes first
  EXPECT_EQ(by64[63], -64);
  EXPECT_EQ(by64[64], 1);
  EXPECT_EQ(by64[128], -65);
  EXPECT_EQ(by64[255], 128);
}

TEST(RowOrder, InverseOfPositionIsTheLogicalRow) {
  for (const RowOrder order : kAll) {
    for (const std::uint64_t inter : {std::uint64_t{0}, std::uint64_t{64}, std::uint64_t{192}}) {
      const RowArrangement arrangement(order, inter);
      std::vector<int> seen(arrangement.rows(), 0);
      for (std::uint64_t row = 0; row < inter; ++row) {
        for (const FusedHalf half : {FusedHalf::gate, FusedHalf::up}) {
          const std::uint64_t at = arrangement.position(half, row);
          ++seen.at(at);
          EXPECT_EQ(arrangement.logical(at), (FusedRow{half, row}));
        }
      }
      EXPECT_EQ(seen, std::vector<int>(arrangement.rows(), 1));
    }
  }
}

TEST(RowOrder, RearrangingRoundTripsBetweenAllOrders) {  // pit39
  constexpr std::uint64_t kInter = 128;
  for (const std::size_t row_bytes : {std::size_t{1}, std::size_t{2}, std::size_t{12}}) {
    std::vector<std::uint8_t> source(2 * kInter * row_bytes);
    for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::uint8_t>(i % 251);
    for (const RowOrder from : kAll) {
      for (const RowOrder to : kAll) {
        const RowArrangement a(from, kInter);
        const RowArrangement b(to, kInter);
        std::vector<std::uint8_t> there(source.size());
        std::vector<std::uint8_t> back(source.size());
        rearrange_rows(a, b, source.data(), there.data(), row_bytes);
        rearrange_rows(b, a, there.data(), back.data(), row_bytes);
        EXPECT_EQ(back, source);
        EXPECT_EQ(there == source, from == to);
      }
    }
  }
}

TEST(RowOrder, RefusesPartialBlocks) {
  EXPECT_THROW(RowArrangement(RowOrder::interleaved_8, 12), std::invalid_argument);
  EXPECT_THROW(RowArrangement(RowOrder::interleaved_64, 96), std::invalid_argument);
  EXPECT_NO_THROW(RowArrangement(RowOrder::interleaved_1, 13));
  EXPECT_NO_THROW(RowArrangement(RowOrder::up_first, 13));
}

TEST(RowOrder, TheArrangementDecidesWhichOutputsMeet) {  // B4
  const double l1[4] = {1, 2, 3, 4};
  const auto activated = [&](RowOrder order, std::uint64_t row) {
    const RowArrangement arrangement(order, 2);
    const double gate = l1[arrangement.position(FusedHalf::gate, row)];
    const double up = l1[arrangement.position(FusedHalf::up, row)];
    return gate / (1 + std::exp(-gate)) * up;
  };
  EXPECT_NEAR(activated(RowOrder::gate_first, 0), 2.193176, 1e-6);
  EXPECT_NEAR(activated(RowOrder::gate_first, 1), 7.046377, 1e-6);
  EXPECT_NEAR(activated(RowOrder::interleaved_1, 0), 1.462117, 1e-6);
  EXPECT_NEAR(activated(RowOrder::interleaved_1, 1), 11.430890, 1e-6);
}

TEST(RowOrder, CodesScalesAndBiasMoveTogetherOrTheWeightsChange) {  // pit39, B4
  constexpr std::uint64_t kInter = 64;
  constexpr std::uint64_t kRowBytes = 16;  // one MXFP4 group
  const RowArrangement from(RowOrder::interleaved_1, kInter);

  // Row r holds one code, one scale and one bias that only it has.
  std::vector<std::uint8_t> codes(2 * kInter * kRowBytes);
  std::vector<std::uint8_t> scales(2 * kInter);
  std::vector<std::uint16_t> bias(2 * kInter);
  for (std::uint64_t row = 0; row < 2 * kInter; ++row) {
    codes[row * kRowBytes] = static_cast<std::uint8_t>(1 + row % 7);
    scales[row] = static_cast<std::uint8_t>(60 + row);
    bias[row] = static_cast<std::uint16_t>(row);
  }
  const auto weight = [&](const std::vector<std::uint8_t>& c, const std::vector<std::uint8_t>& s,
                          std::uint64_t at) {
    return dequantise_element(&c[at * kRowBytes], &s[at], 0, BlockFormat::mxfp4, 1.0);
  };

  for (const RowOrder order : kAll) {
    const RowArrangement to(order, kInter);
    std::vector<std::uint8_t> moved_codes(codes.size());
    std::vector<std::uint8_t> moved_scales(scales.size());
    std::vector<std::uint16_t> moved_bias(bias.size());
    rearrange_rows(from, to, codes.data(), moved_codes.data(), kRowBytes);
    rearrange_rows(from, to, scales.data(), moved_scales.data(), 1);
    rearrange_rows(from, to, bias.data(), moved_bias.data(), sizeof(std::uint16_t));

    std::uint64_t wrong_if_scales_stay = 0;
    for (std::uint64_t row = 0; row < kInter; ++row) {
      for (const FusedHalf half : {FusedHalf::gate, FusedHalf::up}) {
        const std::uint64_t source = from.position(half, row);
        const std::uint64_t target = to.position(half, row);
        EXPECT_EQ(weight(moved_codes, moved_scales, target), weight(codes, scales, source));
        EXPECT_EQ(moved_bias[target], bias[source]);
        if (weight(moved_codes, scales, target) != weight(codes, scales, source)) {
          ++wrong_if_scales_stay;
        }
      }
    }
    if (order != RowOrder::interleaved_1) {
      EXPECT_GT(wrong_if_scales_stay, kInter);
    }
  }
}

}  // namespace
}  // namespace moxie

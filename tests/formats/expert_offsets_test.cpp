// SPDX-License-Identifier: Apache-2.0
// Expert offsets: four conventions that do not mix, capacities that hold, and the row lookup.
#include "formats/expert_offsets.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "formats/scale_layout.hpp"
#include "support/csv.hpp"

namespace moxie {
namespace {

using test::Csv;
using test::golden;

using Numbers = std::vector<std::uint64_t>;

static_assert(!std::is_convertible_v<OffsetsWith0, OffsetEnds>);
static_assert(!std::is_convertible_v<OffsetEnds, OffsetsWith0>);
static_assert(!std::is_constructible_v<OffsetsWith0, OffsetEnds>);
static_assert(!std::is_constructible_v<ScaleOffsetsExact, OffsetEnds>,
              "scale offsets come from offsets with a leading 0 only");
static_assert(!std::is_constructible_v<ScaleOffsetsClosedForm, OffsetEnds>);
static_assert(!std::is_constructible_v<ScaleOffsetsExact, Numbers> &&
                  !std::is_constructible_v<ScaleOffsetsClosedForm, Numbers>,
              "an array of fixed tiles can not pose as scale offsets");

std::uint64_t rounded_to_tiles(std::uint64_t rows) { return (rows + 127) / 128 * 128; }

TEST(ExpertOffsets, FollowTheFourConventionsOfTheGoldenTable) {
  const Csv table = golden("offsets_golden.csv");
  for (std::size_t row = 0; row < table.rows(); ++row) {
    const Numbers counts = table.numbers(row, "counts");
    const auto offsets = OffsetsWith0::from_counts(counts);
    EXPECT_EQ(offsets.values(), table.numbers(row, "offsets_with0"));
    EXPECT_EQ(OffsetEnds::from_counts(counts).values(), table.numbers(row, "offsets_ends"));
    EXPECT_EQ(ScaleOffsetsExact(offsets).values(), table.numbers(row, "padded_offsets_exact"));
    EXPECT_EQ(ScaleOffsetsClosedForm(offsets).values(),
              table.numbers(row, "padded_offsets_closed_form"));
  }
}

TEST(ExpertOffsets, GiveEachExpertItsRows) {  // C4
  const Numbers counts = {4, 4, 0};
  const auto with0 = OffsetsWith0::from_counts(counts);
  const auto ends = OffsetEnds::from_counts(counts);
  EXPECT_EQ(with0.values(), (Numbers{0, 4, 8, 8}));
  EXPECT_EQ(ends.values(), (Numbers{4, 8, 8}));
  EXPECT_EQ(with0.experts(), 3U);
  EXPECT_EQ(ends.experts(), 3U);
  EXPECT_EQ(with0.rows(), 8U);
  EXPECT_EQ(ends.rows(), 8U);
  for (std::size_t expert = 0; expert < 3; ++expert) {
    EXPECT_EQ(with0.count(expert), counts[expert]);
    EXPECT_EQ(ends.count(expert), counts[expert]);
    EXPECT_EQ(with0.first(expert), ends.first(expert));
  }
}

TEST(ExpertOffsets, AnArrayWithALeadingZeroIsRefusedAsEnds) {  // pit33, C4
  EXPECT_THROW(OffsetEnds(Numbers{0, 4, 8, 8}, 3), std::invalid_argument);
  EXPECT_NO_THROW(OffsetEnds(Numbers{4, 8, 8}, 3));
}

TEST(ExpertOffsets, EndsAreRefusedAsAnArrayWithALeadingZero) {  // pit33
  EXPECT_THROW(OffsetsWith0(Numbers{4, 8, 8}, 3), std::invalid_argument);
  EXPECT_THROW(OffsetsWith0(Numbers{4, 8, 8}, 2), std::invalid_argument);  // does not start at 0
  EXPECT_NO_THROW(OffsetsWith0(Numbers{0, 4, 8, 8}, 3));
}

TEST(ExpertOffsets, DecreasingArraysAreRefused) {  // pit33
  EXPECT_THROW(OffsetsWith0(Numbers{0, 4, 3}, 2), std::invalid_argument);
  EXPECT_THROW(OffsetEnds(Numbers{4, 3}, 2), std::invalid_argument);
}

TEST(ExpertOffsets, NoExpertsAndNoRowsAreLegal) {
  EXPECT_THROW(OffsetsWith0(Numbers{}, 0), std::invalid_argument);
  EXPECT_EQ(OffsetsWith0(Numbers{0}, 0).rows(), 0U);
  EXPECT_EQ(OffsetEnds(Numbers{}, 0).rows(), 0U);
  EXPECT_EQ(OffsetEnds::from_counts({0, 0}).expert_of(0), 2U);
  EXPECT_EQ(ScaleOffsetsExact(OffsetsWith0::from_counts({0, 0})).rows(), 0U);
}

TEST(ExpertOffsets, RowLookupIsAnUpperBound) {  // C2, pit36
  EXPECT_EQ(OffsetEnds(Numbers{4, 8, 8}, 3).expert_of(4), 1U);
  EXPECT_EQ(OffsetEnds(Numbers{4, 4, 8}, 3).expert_of(4), 2U);
  EXPECT_EQ(OffsetEnds(Numbers{0, 0, 3}, 3).expert_of(0), 2U);
  EXPECT_EQ(OffsetEnds(Numbers{4, 8, 8}, 3).expert_of(7), 1U);
  EXPECT_EQ(OffsetEnds(Numbers{4, 8, 8}, 3).expert_of(8), 3U);  // past the last row
}

TEST(ExpertOffsets, RowLookupStepsOverEmptyExpertsAnywhere) {  // pit36
  std::mt19937 random(7);
  for (int trial = 0; trial < 500; ++trial) {
    Numbers counts(1 + random() % 9);
    for (auto& count : counts) count = random() % 2 == 0 ? 0 : random() % 5;
    const auto with0 = OffsetsWith0::from_counts(counts);
    const auto ends = OffsetEnds::from_counts(counts);
    std::uint64_t row = 0;
    for (std::size_t expert = 0; expert < counts.size(); ++expert) {
      for (std::uint64_t i = 0; i < counts[expert]; ++i, ++row) {
        ASSERT_EQ(with0.expert_of(row), expert);
        ASSERT_EQ(ends.expert_of(row), expert);
      }
    }
    ASSERT_EQ(with0.expert_of(row), counts.size());
  }
}

TEST(ExpertOffsets, ScaleSegmentsStartAtTilesAndHoldTheirRows) {  // pit32
  const auto offsets = OffsetsWith0::from_counts({0, 1, 127, 128, 129, 500});
  const ScaleOffsetsExact exact(offsets);
  EXPECT_EQ(exact.values(), (Numbers{0, 0, 128, 256, 384, 640, 1152}));
  EXPECT_EQ(scale_row_of(exact, offsets, 5, 385), 640U);
  EXPECT_EQ(scale_row_of(exact, offsets, 5, 885 - 1), 640U + 499);
}

// Two experts of 4 rows, 8 groups: with segments of their own expert 1 begins in its own tiles; one
// swizzle over all compact rows would put it into expert 0's.
TEST(ExpertOffsets, SegmentsAndSwizzleAgreeOnWhereAnExpertBegins) {  // C1, C11
  const auto offsets = OffsetsWith0::from_counts({4, 4});
  const ScaleOffsetsExact exact(offsets);
  const std::uint64_t row = scale_row_of(exact, offsets, 1, offsets.first(1));
  const ScaleLayout128x4 segments{exact.rows(), ScaleGroups{8}};
  EXPECT_EQ(segments.offset(row, 0), 1024U);
  const ScaleLayout128x4 alone{offsets.count(1), ScaleGroups{8}};
  for (std::uint64_t in_expert = 0; in_expert < 4; ++in_expert) {
    const std::uint64_t compact = offsets.first(1) + in_expert;
    for (std::uint64_t group = 0; group < 8; ++group) {
      EXPECT_EQ(segments.offset(scale_row_of(exact, offsets, 1, compact), group),
                1024 + alone.offset(in_expert, group));
    }
  }
  const ScaleLayout128x4 whole{offsets.rows(), ScaleGroups{8}};
  EXPECT_EQ(whole.offset(offsets.first(1), 0), 64U);
}

TEST(ExpertOffsets, ClosedFormLeavesRoomForAnyCounts) {  // pit34
  std::mt19937 random(11);
  for (int trial = 0; trial < 100000; ++trial) {
    Numbers counts(1 + random() % 6);
    for (auto& count : counts) count = random() % 4 == 0 ? 0 : random() % 600;
    const auto offsets = OffsetsWith0::from_counts(counts);
    const ScaleOffsetsExact exact(offsets);
    const ScaleOffsetsClosedForm closed(offsets);
    for (std::size_t i = 0; i < counts.size(); ++i) {
      ASSERT_EQ(closed.first(i) % 128, 0U);
      ASSERT_GE(closed.first(i + 1) - closed.first(i), rounded_to_tiles(counts[i]));
    }
    ASSERT_LE(exact.rows(), ScaleOffsetsExact::capacity_rows(offsets.rows(), counts.size()));
    ASSERT_LE(closed.rows(), ScaleOffsetsClosedForm::capacity_rows(offsets.rows(), counts.size()));
  }
}

TEST(ExpertOffsets, CapacityMatchesThePrintedTable) {  // C9
  EXPECT_EQ(rows_max(49152, 48), 55168U);
  EXPECT_EQ(rows_max(49152, 32), 53120U);
  EXPECT_EQ(rows_max(49152, 256), 81664U);
  EXPECT_EQ(rows_max(384, 256), 32896U);
  EXPECT_EQ(rows_max(6, 48), 768U);
  EXPECT_EQ(rows_max(0, 48), 0U);
  EXPECT_EQ(OffsetsWith0::capacity_rows(49152, 48), 49152U);
  EXPECT_EQ(OffsetEnds::capacity_rows(49152, 48), 49152U);
}

TEST(ExpertOffsets, TheWorstCaseFillsTheCapacityExactly) {  // C9, pit35
  Numbers counts(48, 1);
  counts.back() = 49105;
  const auto offsets = OffsetsWith0::from_counts(counts);
  EXPECT_EQ(offsets.rows(), 49152U);
  EXPECT_EQ(ScaleOffsetsExact(offsets).rows(), 55168U);
  EXPECT_EQ(ScaleOffsetsExact::capacity_rows(49152, 48), 55168U);
  EXPECT_GT(ScaleOffsetsExact(offsets).rows(), 48U * 128);  // neither of these is enough
  EXPECT_GT(ScaleOffsetsExact(offsets).rows(), 49152U);
}

TEST(ExpertOffsets, NoDistributionOfFewSlotsExceedsTheCapacity) {  // C9
  // All ways to give 260 slots to three experts; the bound is reached.
  constexpr std::uint64_t kSlots = 260;
  std::uint64_t most = 0;
  for (std::uint64_t a = 0; a <= kSlots; ++a) {
    for (std::uint64_t b = 0; a + b <= kSlots; ++b) {
      const auto offsets = OffsetsWith0::from_counts({a, b, kSlots - a - b});
      most = std::max(most, ScaleOffsetsExact(offsets).rows());
    }
  }
  EXPECT_EQ(most, rows_max(kSlots, 3));
}

}  // namespace
}  // namespace moxie

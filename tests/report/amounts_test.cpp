// SPDX-License-Identifier: Apache-2.0
// Sizes and counts as text.
#include <gtest/gtest.h>

#include "moxie/report.hpp"

namespace moxie {
namespace {

TEST(Amounts, BytesHaveOneDecimalAndPowersOfAThousand) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(352), "352 B");
  EXPECT_EQ(format_bytes(999), "999 B");
  EXPECT_EQ(format_bytes(1000), "1.0 kB");
  EXPECT_EQ(format_bytes(13369344), "13.4 MB");
  EXPECT_EQ(format_bytes(159609485896), "159.6 GB");
}

TEST(Amounts, BytesThatRoundToAThousandMoveToTheNextUnit) {
  EXPECT_EQ(format_bytes(999949), "999.9 kB");
  EXPECT_EQ(format_bytes(999950), "1.0 MB");
  EXPECT_EQ(format_bytes(1049), "1.0 kB");
  EXPECT_EQ(format_bytes(1050), "1.1 kB");
  EXPECT_EQ(format_bytes(~0ULL), "18.4 EB");
}

TEST(Amounts, CountsAreGroupedByThousands) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(1000), "1,000");
  EXPECT_EQ(format_count(13369344), "13,369,344");
  EXPECT_EQ(format_count(~0ULL), "18,446,744,073,709,551,615");
}

TEST(Amounts, OneThingIsNamedInTheSingular) {
  EXPECT_EQ(format_count(0, "layer"), "0 layers");
  EXPECT_EQ(format_count(1, "layer"), "1 layer");
  EXPECT_EQ(format_count(2, "layer"), "2 layers");
  EXPECT_EQ(format_count(1001, "rank"), "1,001 ranks");
}

TEST(Amounts, SlowWorkIsNotCalledAtRest) {
  EXPECT_EQ(format_rate(0.004321, "expert"), "0.0043 experts/s");
  EXPECT_EQ(format_rate(0.25, "expert"), "0.25 experts/s");
  EXPECT_EQ(format_rate(9.96, "step"), "10 steps/s");
  EXPECT_EQ(format_rate(1234.5, "step"), "1,234 steps/s");
}

}  // namespace
}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// Size arithmetic at the edge of 64 bits, and what a broken promise of our own raises.
#include "base/checked.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "support/refusal.hpp"

namespace moxie {
namespace {

constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();

TEST(Checked, MultiplyAnswersNothingOnlyWhenTheProductNeedsMoreThan64Bits) {
  EXPECT_EQ(checked_multiply(0, kMax), 0U);
  EXPECT_EQ(checked_multiply(kMax, 0), 0U);
  EXPECT_EQ(checked_multiply(kMax, 1), kMax);
  EXPECT_EQ(checked_multiply(1ULL << 32, (1ULL << 32) - 1), kMax - (1ULL << 32) + 1);
  EXPECT_EQ(checked_multiply(1ULL << 32, 1ULL << 32), std::nullopt);
  EXPECT_EQ(checked_multiply(1ULL << 33, 1ULL << 33), std::nullopt);
  EXPECT_EQ(checked_multiply(3, kMax / 3), kMax);
  EXPECT_EQ(checked_multiply(3, kMax / 3 + 1), std::nullopt);
  EXPECT_EQ(checked_multiply(kMax, kMax), std::nullopt);
}

TEST(Checked, AddAnswersNothingOnlyWhenTheSumNeedsMoreThan64Bits) {
  EXPECT_EQ(checked_add(kMax, 0), kMax);
  EXPECT_EQ(checked_add(kMax - 1, 1), kMax);
  EXPECT_EQ(checked_add(kMax, 1), std::nullopt);
  EXPECT_EQ(checked_add(kMax, kMax), std::nullopt);
}

TEST(Checked, RoundingGoesUpToTheNextMultipleOnly) {
  EXPECT_EQ(round_up(0, 8), 0U);
  EXPECT_EQ(round_up(1, 8), 8U);
  EXPECT_EQ(round_up(8, 8), 8U);
  EXPECT_EQ(divide_up(0, 3), 0U);
  EXPECT_EQ(divide_up(7, 3), 3U);
  EXPECT_EQ(divide_up(9, 3), 3U);
}

TEST(Checked, CheckRaisesAnInternalErrorThatAsksForAReport) {
  const int two = 2;
  MOXIE_CHECK(two == 2, "arithmetic holds");
  const Error error = test::refusal_of([&] { MOXIE_CHECK(two == 3, "arithmetic must hold"); });
  EXPECT_EQ(error.code(), ErrorCode::internal);
  const std::string text = error.what();
  EXPECT_NE(text.find("arithmetic must hold"), std::string::npos) << text;
  EXPECT_NE(text.find("two == 3"), std::string::npos) << text;
  EXPECT_NE(text.find("checked_test.cpp"), std::string::npos) << text;
  EXPECT_NE(text.find("report"), std::string::npos) << text;
}

}  // namespace
}  // namespace moxie

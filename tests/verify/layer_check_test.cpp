// SPDX-License-Identifier: Apache-2.0
// What a check of a layer's output passes and what it must not.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "layer_case.hpp"
#include "moxie/verify.hpp"

namespace moxie {
namespace {

using test::any_probe;
using test::clamped_spec;
using test::floats;
using test::moderate;
using test::TinyModel;

constexpr std::uint64_t kTokens = 64;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// A reference of 64 tokens of a tiny model, and the result of an engine that makes no error.
class LayerCheckTest : public testing::TestWithParam<BlockFormat> {
 protected:
  LayerCheckTest()
      : model_(moderate(GetParam())),
        plan_(test::plan_of(*model_, 1)),
        probe_(any_probe(kTokens, plan_.hidden, plan_.experts, std::random_device()())),
        reference_(make_reference(*model_, 0, plan_, clamped_spec(), probe_)),
        y_(floats(reference_.y)) {}

  [[nodiscard]] LayerCheck check(const std::vector<float>& y, DType output = DType::f32) const {
    return check_output(y, reference_, plan_, output);
  }
  [[nodiscard]] std::vector<float> scaled(float factor) const {
    std::vector<float> y = y_;
    for (float& value : y) value *= factor;
    return y;
  }
  std::span<float> row(std::vector<float>& y, std::uint64_t token) const {
    return std::span(y).subspan(token * plan_.hidden, plan_.hidden);
  }

  TinyModel model_;
  ShardPlan plan_;
  Probe probe_;
  LayerReference reference_;
  std::vector<float> y_;
};
INSTANTIATE_TEST_SUITE_P(Formats, LayerCheckTest, testing::ValuesIn(test::kFormats),
                         [](const auto& instance) { return std::string(name_of(instance.param)); });

void expect_failure(const LayerCheck& check) {
  EXPECT_FALSE(check.passed);
  ASSERT_EQ(check.findings.size(), 1U);
  EXPECT_EQ(check.findings[0].code, "MOXIE-R010");
  EXPECT_EQ(check.findings[0].severity, Severity::error);
  EXPECT_FALSE(check.max_err_over_bound <= 1);
}

TEST_P(LayerCheckTest, TheRoundedReferencePasses) {
  const LayerCheck good = check(y_);
  EXPECT_TRUE(good.passed);
  EXPECT_TRUE(good.findings.empty());
  EXPECT_LE(good.max_err_over_bound, 1);
  EXPECT_LE(good.relative_l2, 0x1p-24);
  EXPECT_LE(good.worst_row, 0x1p-24);
  EXPECT_NEAR(good.norm_ratio, 1, 1e-7);
  EXPECT_GT(good.unquantised_l2, 5e-4);  // bf16 was exercised
  EXPECT_LT(good.unquantised_l2, 2e-2);
}

// C16, pit78: a cosine of 1 is no acceptance.
TEST_P(LayerCheckTest, C04a_C16_pit78_AUniformFactorFails) {
  const LayerCheck doubled = check(scaled(2));
  expect_failure(doubled);
  EXPECT_NEAR(doubled.relative_l2, 1, 1e-6);
  EXPECT_NEAR(doubled.worst_row, 1, 1e-6);
  EXPECT_NEAR(doubled.norm_ratio, 2, 1e-6);
  const LayerCheck six = check(scaled(6));
  expect_failure(six);
  EXPECT_NEAR(six.norm_ratio, 6, 1e-5);
  EXPECT_NEAR(six.relative_l2, 5, 1e-5);
}

TEST_P(LayerCheckTest, C04b_TwoExchangedScaleGroupsFail) {
  for (const char* projection : {"w1", "w2", "w3"}) {
    const auto exchange = [&](test::TinyTensor& tensor) {
      const bool scales = tensor.name.ends_with(".scale") || tensor.name.ends_with("weight_scale");
      const auto stem = std::string(".0.") + projection + ".";
      if (!scales || tensor.name.find(stem) == std::string::npos) return true;
      // The first two neighbours that differ.
      for (std::size_t i = 1; i < tensor.bytes.size(); ++i) {
        if (tensor.bytes[i - 1] == tensor.bytes[i]) continue;
        std::swap(tensor.bytes[i - 1], tensor.bytes[i]);
        break;
      }
      return true;
    };
    const TinyModel other(moderate(GetParam(), {exchange}));
    const auto wrong = make_reference(*other, 0, plan_, clamped_spec(), probe_);
    expect_failure(check(floats(wrong.y)));
  }
}

TEST_P(LayerCheckTest, C04c_OneDeadTokenAmong64FailsInTheWorstRow) {
  std::vector<float> y = y_;
  std::ranges::fill(row(y, 31), 0.0F);
  const LayerCheck dead = check(y);
  expect_failure(dead);
  EXPECT_EQ(dead.worst_token, 31U);
  EXPECT_EQ(dead.worst_row, 1);
  EXPECT_LT(dead.relative_l2, 0.5);
  EXPECT_NE(dead.findings[0].message.find("token 31"), std::string::npos);
  EXPECT_NE(dead.findings[0].message.find("1 of 64 tokens"), std::string::npos);
}

TEST_P(LayerCheckTest, C04d_OneNanOrInfFails) {
  for (const float bad : {kNan, -kNan, std::numeric_limits<float>::infinity()}) {
    std::vector<float> y = y_;
    row(y, 6)[17] = bad;
    const LayerCheck wrong = check(y);
    expect_failure(wrong);
    EXPECT_EQ(wrong.max_err_over_bound, std::numeric_limits<double>::infinity());
    EXPECT_EQ(wrong.worst_token, 6U);
    EXPECT_EQ(wrong.worst_column, 17U);
    EXPECT_FALSE(wrong.relative_l2 < 1);
    EXPECT_FALSE(wrong.norm_ratio < 2);
  }
}

TEST_P(LayerCheckTest, C16_ResultsOfOtherTokensOrExpertsFail) {
  std::vector<float> rotated = y_;
  std::ranges::rotate(rotated, rotated.begin() + static_cast<std::ptrdiff_t>(plan_.hidden));
  expect_failure(check(rotated));
  Probe shifted = probe_;
  for (auto& id : shifted.topk_ids)
    if (id >= 0) id = (id + 1) % static_cast<std::int32_t>(plan_.experts);
  expect_failure(check(floats(make_reference(*model_, 0, plan_, clamped_spec(), shifted).y)));
}

TEST_P(LayerCheckTest, AMaskedTokenIsExactlyZeroOrFails) {
  for (std::uint64_t i = 2 * plan_.hidden; i < 3 * plan_.hidden; ++i) {
    EXPECT_EQ(reference_.y[i], 0);
    EXPECT_EQ(check(y_).bound[i], 0);
  }
  std::vector<float> y = y_;
  row(y, 2)[5] = 1e-44F;
  const LayerCheck wrong = check(y);
  expect_failure(wrong);
  EXPECT_EQ(wrong.worst_token, 2U);
  EXPECT_EQ(wrong.worst_bound, 0);
  EXPECT_EQ(wrong.worst_row, std::numeric_limits<double>::infinity());
}

TEST_P(LayerCheckTest, AnErrorJustBeyondTheBoundFailsAndOneJustInsidePasses) {
  const LayerCheck good = check(y_);
  for (const double sign : {-1.0, 1.0}) {
    for (std::size_t i = 0; i < y_.size(); i += 7) {
      if (good.bound[i] == 0) continue;
      std::vector<float> y = y_;
      y[i] = static_cast<float>(reference_.y[i] + sign * good.bound[i] * 0.9);
      EXPECT_TRUE(check(y).passed) << i;
      y[i] = static_cast<float>(reference_.y[i] + sign * good.bound[i] * 1.1);
      const LayerCheck wrong = check(y);
      expect_failure(wrong);
      EXPECT_EQ(wrong.worst_token * plan_.hidden + wrong.worst_column, i);
      EXPECT_EQ(wrong.worst_got, y[i]);
      EXPECT_EQ(wrong.worst_expected, reference_.y[i]);
    }
  }
}

TEST_P(LayerCheckTest, Bf16OutputIsCheckedWithItsOwnRounding) {
  std::vector<float> y = y_;
  for (float& value : y) value = decode_bf16(encode_bf16(value));
  EXPECT_TRUE(check(y, DType::bf16).passed);
  EXPECT_FALSE(check(y, DType::f32).passed);
  const auto f32 = check(y_, DType::f32).bound;
  const auto bf16 = check(y_, DType::bf16).bound;
  for (std::size_t i = 0; i < f32.size(); ++i) {
    // Half a unit of 8 bits: between 2^-9 and 2^-8 of the value.
    EXPECT_LE(bf16[i] - f32[i], 0x1p-8 * (std::abs(reference_.y[i]) + f32[i]));
    EXPECT_GE(bf16[i] - reference_.bound[i], 0x1p-9 * std::abs(reference_.y[i]));
  }
  // A whole unit off fails.
  const auto largest = static_cast<std::size_t>(
      std::ranges::max_element(y, {}, [](float v) { return std::abs(v); }) - y.begin());
  y[largest] *= 1 + 0x1p-6F;
  expect_failure(check(y, DType::bf16));
}

TEST_P(LayerCheckTest, TheSumOverRanksHasItsOwnShareOfTheBound) {
  const ShardPlan split = test::plan_of(*model_, 2);
  ASSERT_EQ(split.ranks.size(), 2U);
  const auto one = check_output(y_, reference_, plan_).bound;
  const auto two = check_output(y_, reference_, split).bound;
  for (std::size_t i = 0; i < one.size(); ++i) {
    const double share = 2 * 0x1p-24 * reference_.magnitude[i];
    // The last rounding's half ulp is that of the number plus its bound, which may cross a power.
    EXPECT_NEAR(two[i] - one[i], share, 0x1p-24 * (std::abs(reference_.y[i]) + two[i]) + 1e-30);
    EXPECT_EQ(two[i] > one[i], reference_.magnitude[i] > 0);
  }
}

// A reference that is no number judges nothing.
TEST(LayerCheck, AReferenceOrABoundThatIsNotFiniteFails) {
  const ShardPlan plan = [] {
    ShardPlan made;
    made.ranks.resize(1);
    return made;
  }();
  const auto check = [&](double expected, double bound, float got) {
    const LayerReference reference{.tokens = 1,
                                   .hidden = 1,
                                   .y = {expected},
                                   .bound = {bound},
                                   .magnitude = {1},
                                   .unquantised = {1}};
    return check_output(std::vector{got}, reference, plan);
  };
  EXPECT_TRUE(check(1, 0.5, 1.4F).passed);
  expect_failure(check(1, 0.5, 1.6F));
  expect_failure(check(kNan, 0.5, kNan));
  expect_failure(check(kNan, 0.5, 1));
  expect_failure(check(1, kNan, 1));
  expect_failure(check(1, std::numeric_limits<double>::infinity(), 1));
  expect_failure(
      check(std::numeric_limits<double>::infinity(), 1, std::numeric_limits<float>::infinity()));
}

TEST(LayerCheck, NoTokensPass) {
  ShardPlan plan;
  plan.ranks.resize(1);
  const LayerCheck check = check_output({}, LayerReference{.hidden = 64}, plan);
  EXPECT_TRUE(check.passed);
  EXPECT_EQ(check.max_err_over_bound, 0);
  EXPECT_EQ(check.norm_ratio, 1);
}

}  // namespace
}  // namespace moxie

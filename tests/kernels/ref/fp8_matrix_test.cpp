// SPDX-License-Identifier: Apache-2.0
#include "kernels/ref/fp8_matrix.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/ref/fp8_weights.hpp"
#include "support/refusal.hpp"

namespace moxie {
namespace {

using test::Fp8Weights;

TEST(Fp8Matrix, EveryTileHasItsOwnScaleAndTheLastOnesMayBeRagged) {
  Fp8Weights weights(3, 5, 2);
  ASSERT_EQ(weights.scales.size(), 6U);
  for (auto& code : weights.codes) code = 0x38;  // 1
  weights.scales = {127, 128, 129, 130, 131, 126};
  const auto values = ref::decode(weights.view());
  EXPECT_EQ(values, (std::vector<double>{1, 1, 2, 2, 4, 1, 1, 2, 2, 4, 8, 8, 16, 16, 0.5}));
}

TEST(Fp8Matrix, CodesAndScalesReachTheEndsOfTheirRanges) {
  Fp8Weights weights(1, 4, 1);
  weights.codes = {0x01, 0x7E, 0xFE, 0x80};
  weights.scales = {0x00, 0xFE, 0x7F, 0xFE};
  const auto values = ref::decode(weights.view());
  EXPECT_EQ(values[0], 0x1p-136);
  EXPECT_EQ(values[1], 448 * 0x1p127);
  EXPECT_EQ(values[2], -448);
  EXPECT_EQ(values[3], 0);
  EXPECT_TRUE(std::signbit(values[3]));
}

TEST(Fp8Matrix, NanCodesAndNanScalesComeOutAsNan) {
  Fp8Weights weights(2, 4, 2);
  std::ranges::fill(weights.scales, 0x7F);
  weights.code(0, 0) = 0x7F;
  weights.code(1, 1) = 0xFF;
  weights.scales[1] = 0xFF;  // over codes of zero
  const auto values = ref::decode(weights.view());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const bool nan = i == 0 || i == 5 || i % 4 >= 2;
    EXPECT_EQ(std::isnan(values[i]), nan) << i;
  }
  const std::vector<double> x(4, 0.0);
  EXPECT_TRUE(std::isnan(ref::row_product(weights.view(), 1, x).sum));
  EXPECT_TRUE(std::isnan(ref::row_product(weights.view(), 1, x).magnitude));
}

TEST(Fp8Matrix, AProductTakesColumnsFromTheMiddleAndMagnitudesOfItsOwn) {
  const Fp8Weights weights(4, {0, 0, 0, 0, 1, -2, 3, -4});
  const std::vector<double> x = {5, 7};
  const std::vector<double> magnitude = {10, 100};
  const auto product = ref::row_product(weights.view(), 1, 1, x, magnitude);
  EXPECT_EQ(product.sum, -10 + 21);
  EXPECT_EQ(product.magnitude, 20 + 300);
  const auto whole = ref::row_product(weights.view(), 1, std::vector<double>{1, 1, -1, 1});
  EXPECT_EQ(whole.sum, -8);
  EXPECT_EQ(whole.magnitude, 10);
}

TEST(Fp8Matrix, AScaleTooFewIsABugOfTheCaller) {
  Fp8Weights weights(3, 3, 2);
  weights.scales.pop_back();
  EXPECT_EQ(test::refusal_of([&] { ref::decode(weights.view()); }).code(), ErrorCode::internal);
}

}  // namespace
}  // namespace moxie

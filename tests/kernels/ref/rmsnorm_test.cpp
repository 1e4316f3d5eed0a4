// SPDX-License-Identifier: Apache-2.0
#include "kernels/ref/rmsnorm.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/ref/fp8_weights.hpp"

namespace moxie {
namespace {

TEST(RmsNorm, DividesByTheRootOfTheMeanSquareAndMultipliesByTheWeight) {
  const std::vector<double> x = {3, -4, 0, 0};
  const std::vector<double> weight = {1, 0.5, 7, -1};
  test::expect_near(ref::rmsnorm(x, weight, 0), std::vector<double>{1.2, -0.8, 0, 0}, 1e-15);
  test::expect_near(ref::rmsnorm(x, {}, 0), std::vector<double>{1.2, -1.6, 0, 0}, 1e-15);
}

TEST(RmsNorm, EpsilonIsAddedToTheMeanAndKeepsZerosFinite) {
  EXPECT_DOUBLE_EQ(ref::rms_factor(std::vector<double>{1, 1}, 3), 0.5);
  EXPECT_EQ(ref::rmsnorm(std::vector<double>{0, 0}, {}, 1e-6), (std::vector<double>{0, 0}));
}

TEST(RmsNorm, ANanReachesTheWholeRow) {
  for (const double value : ref::rmsnorm(std::vector<double>{1, std::nan(""), 2}, {}, 1e-6))
    EXPECT_TRUE(std::isnan(value));
}

}  // namespace
}  // namespace moxie

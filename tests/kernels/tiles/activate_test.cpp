// SPDX-License-Identifier: Apache-2.0
// The activation functions in lanes have the bits of their definitions. They run here as plain
// vectors of the baseline.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "formats/activation.hpp"
#include "kernels/cpu/tiles/included.hpp"
//
#include "kernels/cpu/tiles/activate_lanes.hpp"

namespace moxie {
namespace {

struct Plain {
  static constexpr std::uint64_t kLanes = 4;
  using DoubleLanes = double __attribute__((vector_size(16)));
  using FloatLanes = float __attribute__((vector_size(8)));
  using WordLanes = std::int64_t __attribute__((vector_size(16)));
};
using Lanes = cpu::tiles::ActivateLanes<Plain>;

TEST(ActivateLanes, HaveTheBitsOfTheScalarFunctions) {
  std::mt19937 random(3);
  std::vector<float> values = {0.0F,
                               -0.0F,
                               1.0F,
                               -1.0F,
                               88.7F,
                               88.73F,
                               89.0F,
                               -103.9F,
                               -104.0F,
                               -105.0F,
                               -106.0F,
                               1e-30F,
                               -1e-30F,
                               std::numeric_limits<float>::infinity(),
                               -std::numeric_limits<float>::infinity(),
                               std::numeric_limits<float>::quiet_NaN(),
                               std::numeric_limits<float>::max(),
                               std::numeric_limits<float>::denorm_min()};
  for (int i = 0; i < 20000; ++i)
    values.push_back(
        std::ldexp(std::normal_distribution<float>()(random), static_cast<int>(random() % 12) - 4));
  if (values.size() % 2 != 0) values.push_back(0.5F);
  for (const Activation activation :
       {Activation::silu, Activation::clamped_swiglu, Activation::oai_swiglu}) {
    ASSERT_TRUE(Lanes::has(activation));
    for (std::size_t at = 0; at < values.size(); at += Lanes::kLanes) {
      float gate[Lanes::kLanes];
      float up[Lanes::kLanes];
      float got[Lanes::kLanes];
      std::memcpy(gate, values.data() + at, sizeof gate);
      for (float& value : up) value = values[random() % values.size()];
      Lanes::run(activation, 7.0F, gate, up, got);
      for (std::uint64_t lane = 0; lane < Lanes::kLanes; ++lane) {
        const float expected = activate(activation, 7.0F, gate[lane], up[lane]);
        const bool both_nan = std::isnan(expected) && std::isnan(got[lane]);
        ASSERT_TRUE(both_nan || std::memcmp(&expected, &got[lane], sizeof expected) == 0)
            << name_of(activation) << " of " << gate[lane] << ", " << up[lane] << ": " << got[lane]
            << ", expected " << expected;
      }
    }
  }
}

TEST(ActivateLanes, LeaveTheOtherFunctionsToTheScalarOnes) {
  for (const Activation activation : {Activation::situ, Activation::relu2, Activation::gelu_tanh})
    EXPECT_FALSE(Lanes::has(activation));
}

}  // namespace
}  // namespace moxie

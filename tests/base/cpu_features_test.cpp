// SPDX-License-Identifier: Apache-2.0
// What the processor says about itself.
#include "base/cpu_features.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace moxie {
namespace {

TEST(CpuFeatures, NamesEachInstructionSetOnceAndTheSameEveryTime) {
  const auto features = cpu_features();
  EXPECT_EQ(std::set(features.begin(), features.end()).size(), features.size());
  EXPECT_EQ(features, cpu_features());
}

TEST(CpuFeatures, AlwaysHasAProcessorName) { EXPECT_FALSE(cpu_name().empty()); }

}  // namespace
}  // namespace moxie

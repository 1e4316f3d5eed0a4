// SPDX-License-Identifier: Apache-2.0
// The counter-based generator.
#include "base/random.hpp"

#include <gtest/gtest.h>

#include <set>

namespace moxie {
namespace {

TEST(Random, IsSplitMix64) {
  // First outputs of the published generator for the state 0.
  EXPECT_EQ(mix64(kGoldenGamma), 0xE220A8397B1DCDAF);
  EXPECT_EQ(mix64(2 * kGoldenGamma), 0x6E789E6AA1B965F4);
  EXPECT_EQ(mix64(3 * kGoldenGamma), 0x06C45D188009454F);
}

TEST(Random, StreamsDifferInSeedAndInEveryStepOfTheirPath) {
  std::set<std::uint64_t> words;
  for (const std::uint64_t seed : {0U, 1U}) {
    for (const std::uint64_t layer : {0U, 1U}) {
      for (const std::uint64_t expert : {0U, 1U}) {
        for (std::uint64_t index = 0; index < 100; ++index) {
          words.insert(Stream(seed, {layer, expert}).word(index));
        }
      }
    }
  }
  EXPECT_EQ(words.size(), 800U);
}

}  // namespace
}  // namespace moxie

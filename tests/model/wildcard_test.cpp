// SPDX-License-Identifier: Apache-2.0
// Patterns as quantisers write them, and a few that are meant to cost time.
#include "model/wildcard.hpp"

#include <gtest/gtest.h>

#include <string>

namespace moxie {
namespace {

TEST(Wildcard, MatchesWholeNamesWithStarsOverDots) {
  EXPECT_TRUE(matches_wildcard("mtp.0.ffn.experts", "mtp*"));
  EXPECT_TRUE(matches_wildcard("layers.3.attn.wq_a", "*.attn.*"));
  EXPECT_FALSE(matches_wildcard("layers.3.ffn.experts", "*.attn.*"));
  EXPECT_FALSE(matches_wildcard("model.mtp.0", "mtp*")) << "the whole name must match";
  EXPECT_TRUE(matches_wildcard("model.layers.78.mlp.experts", "model.layers.78*"));
  EXPECT_TRUE(matches_wildcard("model.layers.13.mlp", "model.layers.1*")) << "taken literally";
  EXPECT_FALSE(matches_wildcard("model.layers.2.mlp", "model.layers.1*"));
  EXPECT_TRUE(matches_wildcard("lm_head", "lm_head"));
  EXPECT_FALSE(matches_wildcard("lm_head.weight", "lm_head"));
  EXPECT_TRUE(matches_wildcard("", "*"));
  EXPECT_TRUE(matches_wildcard("", ""));
  EXPECT_FALSE(matches_wildcard("", "?"));
  EXPECT_FALSE(matches_wildcard("a", ""));
  EXPECT_TRUE(matches_wildcard("abcabd", "*ab?"));
  EXPECT_FALSE(matches_wildcard("re:.*mlp.*", "re:x*"));
}

TEST(Wildcard, SetsStandForOneCharacter) {
  EXPECT_TRUE(matches_wildcard("layers.2.", "layers.[0-2]."));
  EXPECT_FALSE(matches_wildcard("layers.3.", "layers.[0-2]."));
  EXPECT_TRUE(matches_wildcard("layers.3.", "layers.[!0-2]."));
  EXPECT_TRUE(matches_wildcard("a-b", "a[-x]b"));
  EXPECT_TRUE(matches_wildcard("a]b", "a[]]b"));
  EXPECT_TRUE(matches_wildcard("a[b", "a[b")) << "an open bracket stands for itself";
}

TEST(Wildcard, ManyStarsTakeNoTime) {
  std::string pattern;
  for (int i = 0; i < 200; ++i) pattern += "a*";
  EXPECT_FALSE(matches_wildcard(std::string(5000, 'a') + "b", pattern + "c"));
}

}  // namespace
}  // namespace moxie

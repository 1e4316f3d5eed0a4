// SPDX-License-Identifier: Apache-2.0
// Probes from a seed: rows that do not depend on the number of tokens, and the stated
// distributions.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "formats/bf16.hpp"
#include "moxie/probe.hpp"
#include "support/refusal.hpp"

namespace moxie {
namespace {

ProbeOptions options_of(std::uint64_t seed, Routing routing = {}) {
  return {.tokens = 37,
          .hidden = 65,  // odd: the last pair of normal numbers is cut
          .experts = 40,
          .top_k = 6,
          .vocab = 1000,
          .routed_scaling = 2.5,
          .routing = routing,
          .seed = seed};
}

std::uint64_t fresh_seed() {
  const std::uint64_t seed = std::random_device{}();
  testing::Test::RecordProperty("seed", std::to_string(seed));
  return seed;
}

std::vector<float> values_of(const Probe& probe) {
  std::vector<float> values(probe.tokens * probe.hidden);
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, probe.x.data() + i * sizeof bits, sizeof bits);
    values[i] = decode_bf16(bits);
  }
  return values;
}

const Routing kZipf{.kind = RoutingKind::zipf, .exponent = 1.3};

TEST(RandomProbe, GivesATokenTheSameRowWhateverTheNumberOfTokens) {
  const std::uint64_t seed = fresh_seed();
  for (const Routing& routing : {Routing{}, kZipf}) {
    SCOPED_TRACE(testing::Message() << "seed " << seed << " " << to_string(routing));
    ProbeOptions options = options_of(seed, routing);
    const Probe many = make_probe(options);
    options.tokens = 5;
    const Probe few = make_probe(options);
    EXPECT_TRUE(std::equal(few.x.begin(), few.x.end(), many.x.begin()));
    EXPECT_TRUE(std::equal(few.topk_ids.begin(), few.topk_ids.end(), many.topk_ids.begin()));
    EXPECT_TRUE(
        std::equal(few.topk_weights.begin(), few.topk_weights.end(), many.topk_weights.begin()));
    EXPECT_TRUE(std::equal(few.token_ids.begin(), few.token_ids.end(), many.token_ids.begin()));
    options.seed = seed + 1;
    const Probe other = make_probe(options);
    EXPECT_NE(other.x, few.x);
    EXPECT_NE(other.topk_ids, few.topk_ids);
  }
}

TEST(RandomProbe, HasNormalActivations) {
  const std::uint64_t seed = fresh_seed();
  SCOPED_TRACE(seed);
  ProbeOptions options = options_of(seed);
  options.tokens = 400;
  options.hidden = 501;
  const std::vector<float> values = values_of(make_probe(options));
  double sum = 0, squares = 0, fourths = 0, neighbours = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double value = values[i];
    sum += value;
    squares += value * value;
    fourths += value * value * value * value;
    if (i > 0) neighbours += value * values[i - 1];
  }
  // Six standard errors of each moment of N(0, 1): 1, sqrt 2, sqrt 96 and 1 over sqrt n.
  const auto n = static_cast<double>(values.size());
  EXPECT_LT(std::abs(sum / n), 6 / std::sqrt(n));
  EXPECT_LT(std::abs(squares / n - 1), 6 * std::sqrt(2 / n) + 1e-3);
  EXPECT_LT(std::abs(fourths / n - 3), 6 * std::sqrt(96 / n) + 1e-2);
  EXPECT_LT(std::abs(neighbours / n), 6 / std::sqrt(n));
}

TEST(RandomProbe, RoutesATokenToDifferentExpertsAllEquallyLikely) {
  const std::uint64_t seed = fresh_seed();
  SCOPED_TRACE(seed);
  ProbeOptions options = options_of(seed);
  options.tokens = 4000;
  options.hidden = 1;
  const Probe probe = make_probe(options);
  std::vector<double> counts(options.experts);
  std::vector<double> first(options.experts);
  for (std::uint64_t token = 0; token < probe.tokens; ++token) {
    std::set<std::int32_t> seen;
    for (std::uint64_t slot = 0; slot < probe.top_k; ++slot) {
      const std::int32_t expert = probe.topk_ids[token * probe.top_k + slot];
      ASSERT_GE(expert, 0);
      ASSERT_LT(expert, 40);
      seen.insert(expert);
      ++counts[static_cast<std::size_t>(expert)];
      if (slot == 0) ++first[static_cast<std::size_t>(expert)];
    }
    EXPECT_EQ(seen.size(), probe.top_k) << token;
  }
  for (std::size_t expert = 0; expert < counts.size(); ++expert) {
    EXPECT_NEAR(counts[expert], 600, 6 * std::sqrt(600 * 0.85)) << expert;
    EXPECT_NEAR(first[expert], 100, 6 * std::sqrt(100)) << expert;
  }
}

TEST(RandomProbe, RoutesByZipfWithoutRepeatingAnExpert) {
  const std::uint64_t seed = fresh_seed();
  SCOPED_TRACE(seed);
  ProbeOptions options = options_of(seed, kZipf);
  options.tokens = 20000;
  options.hidden = 1;
  options.experts = 8;
  options.top_k = 3;
  const Probe probe = make_probe(options);
  double mass = 0;
  for (int expert = 0; expert < 8; ++expert) mass += std::pow(expert + 1, -1.3);
  std::vector<double> first(8);
  double second_is_1 = 0;  // after expert 0
  for (std::uint64_t token = 0; token < probe.tokens; ++token) {
    const std::int32_t* ids = probe.topk_ids.data() + token * 3;
    EXPECT_EQ((std::set<std::int32_t>(ids, ids + 3)).size(), 3U);
    ++first[static_cast<std::size_t>(ids[0])];
    if (ids[0] == 0 && ids[1] == 1) ++second_is_1;
  }
  for (int expert = 0; expert < 8; ++expert) {
    const double expected = 20000 * std::pow(expert + 1, -1.3) / mass;
    EXPECT_NEAR(first[static_cast<std::size_t>(expert)], expected, 6 * std::sqrt(expected));
  }
  const double share = std::pow(2, -1.3) / (mass - 1);
  EXPECT_NEAR(second_is_1 / first[0], share, 6 * std::sqrt(0.25 / first[0]));
}

TEST(RandomProbe, TakesEveryExpertWhenTopKIsAllOfThem) {
  for (const Routing& routing : {Routing{}, Routing{.kind = RoutingKind::zipf, .exponent = 16}}) {
    ProbeOptions options = options_of(fresh_seed(), routing);
    options.top_k = options.experts;
    const Probe probe = make_probe(options);
    for (std::uint64_t token = 0; token < probe.tokens; ++token) {
      const std::int32_t* ids = probe.topk_ids.data() + token * 40;
      EXPECT_EQ((std::set<std::int32_t>(ids, ids + 40)).size(), 40U) << to_string(routing);
    }
  }
}

TEST(RandomProbe, RoutesEverySlotToOneExpert) {
  ProbeOptions options =
      options_of(fresh_seed(), {.kind = RoutingKind::one, .exponent = 1, .expert = 39});
  const Probe probe = make_probe(options);
  EXPECT_EQ(probe.topk_ids, std::vector<std::int32_t>(37 * 6, 39));
}

TEST(RandomProbe, GivesEveryTokenTheHotExpertAndOthersUniformly) {
  for (const std::uint64_t hot : {0U, 17U, 39U}) {
    ProbeOptions options =
        options_of(fresh_seed(), {.kind = RoutingKind::hot, .exponent = 1, .expert = hot});
    options.tokens = 4000;
    const Probe probe = make_probe(options);
    std::map<std::int32_t, int> seen;
    for (std::uint64_t token = 0; token < probe.tokens; ++token) {
      const std::int32_t* ids = probe.topk_ids.data() + token * 6;
      EXPECT_EQ((std::set<std::int32_t>(ids, ids + 6)).size(), 6U);
      for (std::uint64_t slot = 0; slot < 6; ++slot) ++seen[ids[slot]];
    }
    ASSERT_EQ(seen.size(), 40U);
    for (const auto& [expert, count] : seen) {
      const double expected = expert == static_cast<std::int32_t>(hot) ? 4000 : 4000.0 * 5 / 39;
      EXPECT_NEAR(count, expected, expert == static_cast<std::int32_t>(hot) ? 0 : 150) << expert;
    }
  }
}

TEST(RandomProbe, HasPositiveWeightsThatSumToTheScaling) {
  const Probe probe = make_probe(options_of(fresh_seed()));
  std::set<float> seen;
  for (std::uint64_t token = 0; token < probe.tokens; ++token) {
    double sum = 0;
    for (std::uint64_t slot = 0; slot < 6; ++slot) {
      const float weight = probe.topk_weights[token * 6 + slot];
      EXPECT_GT(weight, 0);
      seen.insert(weight);
      sum += weight;
    }
    EXPECT_NEAR(sum, 2.5, 1e-6);
  }
  EXPECT_GT(seen.size(), 200U);
}

TEST(RandomProbe, DrawsTokenIdsBelowTheVocabulary) {
  ProbeOptions options = options_of(fresh_seed());
  const Probe probe = make_probe(options);
  ASSERT_EQ(probe.token_ids.size(), 37U);
  for (const std::int64_t id : probe.token_ids) EXPECT_TRUE(id >= 0 && id < 1000) << id;
  EXPECT_GT(std::set(probe.token_ids.begin(), probe.token_ids.end()).size(), 25U);
  options.vocab = 0;
  EXPECT_TRUE(make_probe(options).token_ids.empty());
}

TEST(RandomProbe, TakesNoTokens) {
  ProbeOptions options = options_of(fresh_seed());
  options.tokens = 0;
  const Probe probe = make_probe(options);
  EXPECT_EQ(probe.tokens, 0U);
  EXPECT_EQ(probe.top_k, 6U);
  EXPECT_TRUE(probe.x.empty() && probe.topk_ids.empty());
}

TEST(RandomProbe, RefusesARoutingThatTheModelCanNotHave) {
  ProbeOptions options = options_of(1);
  const auto refused = [&] {
    const Error error = test::refusal_of([&] { make_probe(options); });
    return error.code() == ErrorCode::usage && test::code_of(error) == "MOXIE-U003";
  };
  options.top_k = 41;
  EXPECT_TRUE(refused());
  options.top_k = 0;
  EXPECT_TRUE(refused());
  options = options_of(1, {.kind = RoutingKind::one, .exponent = 1, .expert = 40});
  EXPECT_TRUE(refused());
  for (const double exponent : {-1.0, std::nan(""), HUGE_VAL}) {
    options = options_of(1, {.kind = RoutingKind::zipf, .exponent = exponent});
    EXPECT_TRUE(refused()) << exponent;
  }
}

TEST(Routing, IsWrittenAsItIsAskedFor) {
  EXPECT_EQ(to_string(Routing{}), "uniform");
  EXPECT_EQ(to_string(Routing{.kind = RoutingKind::zipf, .exponent = 1.2}), "zipf:1.2");
  EXPECT_EQ(to_string(Routing{.kind = RoutingKind::zipf, .exponent = 1}), "zipf:1");
  EXPECT_EQ(to_string(Routing{.kind = RoutingKind::one, .exponent = 1, .expert = 7}), "one:7");
  EXPECT_EQ(to_string(Routing{.kind = RoutingKind::hot, .exponent = 1, .expert = 7}), "hot:7");
}

}  // namespace
}  // namespace moxie

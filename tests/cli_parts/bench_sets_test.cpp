// SPDX-License-Identifier: Apache-2.0
// Routing sets of a graph: independent, moved where they prefer experts, with a slot for the rank.
#include "cli/bench_sets.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "cli/figures.hpp"
#include "support/refusal.hpp"
#include "support/temp_folder.hpp"

namespace moxie::cli {
namespace {

class Sets : public testing::Test {
 protected:
  Sets() {
    SynthOptions options;
    options.config = synth_config("tiny");
    options.experts = 40;
    synthesise_config(folder_.path(), options);
    args_.model = folder_.path();
    args_.weights_seed = 1;
    args_.top_k = 3;
    args_.tokens = 50;
    args_.seed = 9;
  }

  void route(RoutingKind kind, std::uint64_t expert = 0) {
    args_.routing =
        GivenRouting{.drawn = {.kind = kind, .exponent = 1, .expert = expert}, .file = {}};
  }
  // The expert with the most slots.
  static std::int32_t favourite(const Probe& probe) {
    std::map<std::int32_t, int> counts;
    for (const std::int32_t id : probe.topk_ids) ++counts[id];
    return std::ranges::max_element(counts, {}, [](const auto& pair) { return pair.second; })
        ->first;
  }
  static void expect_different_experts(const Probe& probe) {
    for (std::uint64_t token = 0; token < probe.tokens; ++token) {
      const auto* ids = probe.topk_ids.data() + token * probe.top_k;
      EXPECT_EQ((std::set<std::int32_t>(ids, ids + probe.top_k)).size(), probe.top_k);
    }
  }

  test::TempFolder folder_;
  RunArgs args_;
};

TEST_F(Sets, AreAsManyAsTheDesignSays) {
  for (const auto& [tokens, sets] : std::vector<std::pair<std::uint64_t, std::uint64_t>>{
           {1, 8}, {64, 8}, {65, 4}, {512, 4}, {513, 2}, {8192, 2}})
    EXPECT_EQ(default_sets(tokens), sets) << tokens;
}

TEST_F(Sets, DifferInInputsAndExpertsAndAreTheSameAgain) {
  const RunSubject subject(args_);
  const BenchSets sets = make_sets(args_, subject, 4);
  ASSERT_EQ(sets.probes.size(), 4U);
  EXPECT_EQ(sets.seeds, (std::vector<std::uint64_t>{9, 10, 11, 12}));
  EXPECT_EQ(sets.routing, "uniform");
  const BenchSets again = make_sets(args_, subject, 4);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(sets.probes[i].topk_ids, again.probes[i].topk_ids);
    EXPECT_EQ(sets.probes[i].x, again.probes[i].x);
    for (std::size_t j = 0; j < i; ++j) {
      EXPECT_NE(sets.probes[i].topk_ids, sets.probes[j].topk_ids);
      EXPECT_NE(sets.probes[i].x, sets.probes[j].x);
    }
  }
  // The first is what a call alone would get.
  EXPECT_EQ(sets.probes[0].topk_ids, make_run_probe(args_, subject).probe.topk_ids);
}

TEST_F(Sets, PreferOtherExpertsInEverySet) {
  for (const RoutingKind kind : {RoutingKind::zipf, RoutingKind::one, RoutingKind::hot}) {
    route(kind, kind == RoutingKind::zipf ? 0 : 7);
    const RunSubject subject(args_);
    const BenchSets sets = make_sets(args_, subject, 8);
    std::set<std::int32_t> favourites;
    for (const Probe& probe : sets.probes) {
      favourites.insert(favourite(probe));
      if (kind != RoutingKind::one) expect_different_experts(probe);
    }
    EXPECT_GE(favourites.size(), 6U) << sets.routing;
    EXPECT_EQ(favourite(sets.probes[0]), kind == RoutingKind::zipf ? 0 : 7);
  }
}

TEST_F(Sets, KeepAHotExpertOnTheRankThatIsHeldAlone) {
  route(RoutingKind::hot, 21);
  args_.plan.ep = 4;
  args_.rank = 2;  // experts 20 to 29
  const RunSubject subject(args_);
  for (const Probe& probe : make_sets(args_, subject, 8).probes) {
    EXPECT_GE(favourite(probe), 20);
    EXPECT_LT(favourite(probe), 30);
  }
}

TEST_F(Sets, LeaveOutSeedsWithoutASlotForTheRank) {
  args_.tokens = 1;
  args_.plan.ep = 20;
  args_.rank = 5;  // 2 of 40 experts, 3 slots: about one seed in seven
  const RunSubject subject(args_);
  const BenchSets sets = make_sets(args_, subject, 4);
  ASSERT_EQ(sets.probes.size(), 4U);
  EXPECT_GT(sets.seeds.back(), 9U + 3);
  for (const Probe& probe : sets.probes) {
    EXPECT_TRUE(std::ranges::any_of(
        probe.topk_ids, [&](std::int32_t id) { return holds(subject.plans().front(), id); }));
  }
}

TEST_F(Sets, B005RefuseNoTokensAndAnExpertThatIsElsewhere) {
  args_.tokens = 0;
  test::expect_refusal([&] { (void)make_sets(args_, RunSubject(args_), 1); }, ErrorCode::usage,
                       "MOXIE-B005");
  args_.tokens = 4;
  route(RoutingKind::one, 0);
  args_.plan.ep = 4;
  args_.rank = 1;  // the first set is not moved
  test::expect_refusal([&] { (void)make_sets(args_, RunSubject(args_), 2); }, ErrorCode::usage,
                       "MOXIE-B005");
  args_.routing = GivenRouting{.source = RoutingSource::file, .drawn = {}, .file = "routing"};
  test::expect_refusal([&] { (void)make_sets(args_, RunSubject(args_), 2); }, ErrorCode::usage,
                       "MOXIE-B005");
}

}  // namespace
}  // namespace moxie::cli

// SPDX-License-Identifier: Apache-2.0
// Which rank holds which experts in which slots, who computes what, and which maps are refused.
#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>
#include <vector>

#include "plan/plan_model.hpp"
#include "support/random_placement.hpp"
#include "support/refusal.hpp"

namespace moxie {
namespace {

using test::expect_refusal;
using test::interleaved;
using test::placed;
using test::plan_model;

using Ids = std::vector<std::uint64_t>;

ShardPlan plan_with(const Placement& placement, unsigned tp, unsigned ep, unsigned experts = 8) {
  return make_plan(plan_model({.experts = experts, .layers = 3}, BlockFormat::mxfp4),
                   {.tp = tp, .ep = ep, .placement = placement});
}

TEST(RankExperts, SlotsAndIdsAreInversesOfEachOther) {
  const RankExperts holders[] = {ExpertRange{4, 9}, RankExperts(Ids{7, 2, 30, 0, 3}),
                                 RankExperts(Ids{5})};
  for (const RankExperts& experts : holders) {
    std::uint64_t found = 0;
    for (std::uint64_t expert = 0; expert < 40; ++expert) {
      const auto slot = experts.slot_of(expert);
      EXPECT_EQ(slot.has_value(), experts.holds(expert));
      if (!slot) continue;
      ++found;
      ASSERT_LT(*slot, experts.count());
      EXPECT_EQ(experts.id(*slot), expert);
    }
    EXPECT_EQ(found, experts.count());
    EXPECT_EQ(RankExperts(experts.ids()), experts);
  }
  EXPECT_EQ(RankExperts(Ids{4, 5, 6, 7, 8}), RankExperts(ExpertRange{4, 9}));
  EXPECT_EQ(holders[2].range(), (ExpertRange{5, 6}));
  EXPECT_FALSE(holders[1].range());
  EXPECT_NE(RankExperts(Ids{5, 4}), RankExperts(Ids{4, 5})) << "slots are in another order";
  EXPECT_EQ(RankExperts().count(), 0U);
  EXPECT_FALSE(RankExperts().holds(0));
}

TEST(Placement, P06_InterleavedGivesRankOneTheOddExperts) {
  const ShardPlan plan = plan_with(interleaved(), 1, 2);
  EXPECT_EQ(plan.ranks[0].experts.ids(), (Ids{0, 2, 4, 6}));
  EXPECT_EQ(plan.ranks[1].experts.ids(), (Ids{1, 3, 5, 7}));
  EXPECT_EQ(plan.ranks[1].experts.slot_of(5), 2U);
  EXPECT_EQ(plan.ranks[1].experts.slot_of(4), std::nullopt);
}

// The same counts as contiguous ranges have; every expert once.
TEST(Placement, InterleavedIsAsEvenAsContiguous) {  // P-05
  for (std::uint64_t experts = 1; experts < 40; ++experts) {
    for (unsigned ep = 1; ep <= experts; ++ep) {
      std::set<std::uint64_t> seen;
      for (unsigned rank = 0; rank < ep; ++rank) {
        const RankExperts held = experts_of(interleaved(), experts, ep, rank);
        EXPECT_EQ(held.count(), experts_of(experts, ep, rank).count());
        for (const std::uint64_t id : held.ids()) EXPECT_TRUE(seen.insert(id).second);
      }
      EXPECT_EQ(seen.size(), experts);
    }
  }
}

TEST(Placement, InterleavedOnOneGroupIsContiguous) {
  EXPECT_EQ(to_json(plan_with(interleaved(), 2, 1)).dump(), to_json(plan_with({}, 2, 1)).dump());
}

TEST(Placement, RanksOfOneGroupHoldTheSameAndCountTheirOwnBytes) {
  const ShardPlan plan = plan_with(placed({{6, 1, 0, 7, 2}, {3, 4, 5, 1}}), 3, 2);
  ASSERT_EQ(plan.ranks.size(), 6U);
  for (const RankPlan& rank : plan.ranks) {
    EXPECT_EQ(rank.experts.ids(), rank.ep_rank == 0 ? (Ids{6, 1, 0, 7, 2}) : (Ids{3, 4, 5, 1}));
    EXPECT_EQ(rank.bytes_layer, plan.layout.expert_bytes * (rank.ep_rank == 0 ? 5 : 4));
    EXPECT_EQ(rank.bytes_total, 3 * rank.bytes_layer);
  }
  EXPECT_TRUE(has_redundant_experts(plan));
  EXPECT_FALSE(has_redundant_experts(plan_with(interleaved(), 3, 2)));
  EXPECT_FALSE(has_redundant_experts(plan_with({}, 3, 2)));
}

TEST(Placement, MapsThatDoNotFitAreRefusedByName) {
  const auto refusal = [](const Placement& placement, unsigned ep) {
    return test::refusal_of([&] { (void)plan_with(placement, 1, ep); });
  };
  const Error lists = refusal(placed({{0, 1, 2, 3}, {4, 5, 6, 7}}), 3);
  EXPECT_EQ(lists.code(), ErrorCode::usage);
  EXPECT_EQ(test::code_of(lists), "MOXIE-P020");
  const std::pair<Placement, std::optional<std::uint64_t>> wrong[] = {
      {placed({{0, 1, 2, 3, 4, 5, 6, 7}, {}}), std::nullopt},
      {placed({{0, 1, 2, 3}, {4, 5, 6, 8}}), std::nullopt},
      {placed({{0, 1, 2, 3, 4, 5}, {6, 7, 6}}), 6},
  };
  for (const auto& [placement, expert] : wrong) {
    const Error error = refusal(placement, 2);
    EXPECT_EQ(error.code(), ErrorCode::input);
    EXPECT_EQ(test::code_of(error), "MOXIE-P021");
    EXPECT_EQ(error.findings()[0].where.expert, expert);
  }
  const Error missing = refusal(placed({{0, 1, 2, 4}, {7, 6, 4, 5}}), 2);
  EXPECT_EQ(missing.code(), ErrorCode::input);
  EXPECT_EQ(test::code_of(missing), "MOXIE-P022");
  EXPECT_EQ(missing.findings()[0].where.expert, 3U);
}

TEST(Placement, AFileIsOneObjectOfListsOfIds) {
  const auto read = [](const char* text) {
    return placement_from_json(Json::parse(text, "map"), "map.json");
  };
  EXPECT_EQ(read(R"({"experts": [[0, 2], [3, 1, 0]]})"), placed({{0, 2}, {3, 1, 0}}));
  for (const char* text :
       {"[]", "{}", R"({"experts": 3})", R"({"experts": [0, 1]})", R"({"experts": [[0], [-1]]})",
        R"({"experts": [["0"]]})", R"({"experts": [[0.5]]})", R"({"experts": [[0]], "ep": 1})"}) {
    const Error error = test::refusal_of([&] { (void)read(text); });
    EXPECT_EQ(error.code(), ErrorCode::input) << text;
    EXPECT_EQ(test::code_of(error), "MOXIE-P023") << text;
    EXPECT_EQ(error.findings()[0].where.file, "map.json") << text;
  }
}

TEST(Placement, EveryChoiceHasOneOwnerWhoHoldsTheExpert) {
  std::mt19937_64 random(5);
  for (int repeat = 0; repeat < 50; ++repeat) {
    const unsigned ep = 2 + repeat % 4;
    const ShardPlan plan = plan_with(test::random_placement(16, ep, random), 2, ep, 16);
    const ExpertOwners owners = owners_of(plan);
    EXPECT_EQ(owners.redundant(), has_redundant_experts(plan));
    for (int token = 0; token < 50; ++token) {
      std::vector<std::int32_t> ids(4);
      for (std::int32_t& id : ids) id = static_cast<std::int32_t>(random() % 20) - 2;
      for (std::size_t choice = 0; choice < ids.size(); ++choice) {
        const auto owner = owners.owner(ids, choice);
        ASSERT_EQ(owner.has_value(), ids[choice] >= 0 && ids[choice] < 16);
        EXPECT_TRUE(!owner || plan.ranks[*owner * 2].experts.holds(ids[choice]));
      }
    }
  }
}

// docs/layouts.md states the rule: of the holders in rank order number (sum of the ids) mod count.
TEST(Placement, OfSeveralHoldersTheSumOfTheIdsChooses) {
  const ExpertOwners owners =
      owners_of(plan_with(placed({{0, 1, 2, 3, 4}, {4, 5}, {6, 4, 7}}), 1, 3));
  EXPECT_EQ(std::vector(owners.holders(4).begin(), owners.holders(4).end()),
            (std::vector<std::uint32_t>{0, 1, 2}));
  const auto owner = [&](std::vector<std::int32_t> ids) { return owners.owner(ids, 0); };
  EXPECT_EQ(owner({4}), 1U);          // 4 mod 3
  EXPECT_EQ(owner({4, 1}), 2U);       // 5 mod 3
  EXPECT_EQ(owner({4, 1, 7}), 0U);    // 12 mod 3
  EXPECT_EQ(owner({4, -1, 99}), 1U);  // what names no expert does not count
  EXPECT_EQ(owner({5, 1}), 1U);       // one holder
  EXPECT_EQ(owner({-1, 4}), std::nullopt);
  EXPECT_EQ(owner({8}), std::nullopt);
}

TEST(Placement, ReplicasOfExpertsAreRefusedWhereNoKernelChoosesAmongThem) {
  const MoeModel model = plan_model({.experts = 8}, BlockFormat::mxfp4);
  const auto plan = [&](Target target, const Placement& placement) {
    return make_plan(model, {.ep = 2, .target = target, .placement = placement});
  };
  const Placement twice = placed({{0, 1, 2, 3, 4}, {4, 5, 6, 7}});
  EXPECT_NO_THROW((void)plan(Target::cpu, twice));
  for (const Target gpu : {Target::sm90, Target::sm100, Target::sm120}) {
    const Error error = test::refusal_of([&] { (void)plan(gpu, twice); });
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    EXPECT_EQ(test::code_of(error), "MOXIE-P002");
    EXPECT_TRUE(error.findings().back().message.ends_with("on several")) << error.what();
    EXPECT_NO_THROW((void)plan(gpu, interleaved()));
    EXPECT_NO_THROW((void)plan(gpu, placed({{7, 5, 3}, {0, 1, 2, 4, 6}})));
  }
}

TEST(Placement, ARankAloneKeepsItsIdsUnlessOthersComputeAPartOfThem) {
  const ShardPlan alone = plan_of_rank(plan_with(interleaved(), 2, 2), 3);
  EXPECT_EQ(alone.ranks[0].experts.ids(), (Ids{1, 3, 5, 7}));
  EXPECT_EQ(owners_of(alone).owner(std::vector<std::int32_t>{5, 4}, 0), 0U);
  EXPECT_EQ(owners_of(alone).owner(std::vector<std::int32_t>{5, 4}, 1), std::nullopt);
  expect_refusal(
      [] { (void)plan_of_rank(plan_with(placed({{0, 1, 2, 3, 4}, {4, 5, 6, 7}}), 1, 2), 1); },
      ErrorCode::unsupported, "MOXIE-P024");
}

TEST(PlacementJson, IsThereOnlyWhereItIsNotContiguous) {
  const Json contiguous = to_json(plan_with({}, 2, 2));
  EXPECT_EQ(contiguous.find("placement"), nullptr);
  EXPECT_EQ(contiguous.find("ranks")->elements()[2].find("experts")->dump_compact(), "[4,8]");
  const Json json = to_json(plan_with(interleaved(), 2, 2));
  EXPECT_EQ(json.find("placement")->as_string(), "interleaved");
  const Json& rank = json.find("ranks")->elements()[2];
  EXPECT_EQ(rank.find("experts"), nullptr);
  EXPECT_EQ(rank.find("expert_ids")->dump_compact(), "[1,3,5,7]");
  const Json map = to_json(plan_with(placed({{3, 0, 1, 2, 4}, {4, 5, 6, 7}}), 1, 2));
  EXPECT_EQ(map.find("placement")->as_string(), "file");
  EXPECT_EQ(map.find("ranks")->elements()[0].find("expert_ids")->dump_compact(), "[3,0,1,2,4]");
}

TEST(PlacementJson, ReadsBackAsTheSamePlan) {
  std::mt19937_64 random(1);
  for (int repeat = 0; repeat < 20; ++repeat) {
    const Placement placement = repeat == 0 ? interleaved() : test::random_placement(8, 3, random);
    const ShardPlan plan = plan_with(placement, 2, 3);
    const ShardPlan back = plan_from_json(Json::parse(to_json(plan).dump(), "plan"), "plan.json");
    EXPECT_EQ(to_json(back).dump(), to_json(plan).dump());
    EXPECT_EQ(back.placement, plan.placement);
    for (std::size_t i = 0; i < plan.ranks.size(); ++i)
      EXPECT_EQ(back.ranks[i].experts, plan.ranks[i].experts);
  }
}

// A document in which one rank's list was replaced.
Json with_ids(const Json& document, std::size_t rank, Json ids) {
  Json::Array ranks = document.find("ranks")->elements();
  ranks[rank].set("expert_ids", std::move(ids));
  return Json(document).set("ranks", Json(std::move(ranks)));
}

TEST(PlacementJson, ListsThatContradictEachOtherAreRefused) {
  const Json mapped = to_json(plan_with(placed({{6, 1, 0, 7, 2}, {3, 4, 5, 1}}), 2, 2));
  const Json even = to_json(plan_with(interleaved(), 2, 2));
  const auto list = [](const char* text) { return Json::parse(text, "list"); };
  const Json wrong[] = {
      with_ids(mapped, 0, list("[1,6,0,7,2]")),     // another order than the group's second rank
      with_ids(mapped, 1, list("[6,1,0,7]")),       // shorter
      with_ids(mapped, 2, list("[3,4,5,1,1]")),     // twice
      with_ids(mapped, 3, list(R"(["3",4,5,1])")),  // no number
      with_ids(mapped, 0, Json()),                  // none
      with_ids(even, 0, list("[0,2,4,6,1]")),       // not interleaved
      Json(even).set("placement", "file").set("ep", 4),
      Json(even).set("placement", "contiguous"),
      Json(even).set("placement", "diagonal"),
      Json(even).set("experts", 16'777'216),
      Json(mapped).set("placement", "interleaved"),
      Json(to_json(plan_with({}, 2, 2))).set("placement", "interleaved"),
      Json(to_json(plan_with({}, 2, 1))).set("placement", "interleaved"),
  };
  for (const Json& document : wrong) {
    const Error error = test::refusal_of([&] { (void)plan_from_json(document, "plan.json"); });
    EXPECT_EQ(error.code(), ErrorCode::input) << document.dump_compact();
    EXPECT_EQ(test::code_of(error), "MOXIE-K006") << error.what();
  }
}

}  // namespace
}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// Experts in the slots of a map: bound, drawn and replaced.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "support/layer_rig.hpp"
#include "support/packed_model.hpp"
#include "support/random_placement.hpp"

namespace moxie {
namespace {

using test::interleaved;
using test::placed;
using test::RigModel;

// The bytes beside the wrong slots would be another expert's.
TEST(PlacedExperts, RanksPackedUnderAnotherMapAreRefused) {
  const RigModel model({.experts = 6});
  const LayerSpec spec = spec_of(model->config);
  const auto plan = [&](const Placement& placement) {
    return make_plan(*model, {.ep = 2, .placement = placement});
  };
  const ShardPlan right = plan(placed({{0, 1, 2}, {3, 4, 5}}));
  for (const Placement& other : {placed({{1, 2, 0}, {3, 4, 5}}), placed({{0, 1, 3}, {2, 4, 5}}),
                                 placed({{0, 1, 2, 3}, {3, 4, 5}}), interleaved()}) {
    try {
      MoeLayer(right, spec, test::pack_all(*model, plan(other)));
      ADD_FAILURE() << "another map was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.findings().front().code, "MOXIE-R003");
    }
  }
  EXPECT_NO_THROW(MoeLayer(right, spec, test::pack_all(*model, plan({}))));
}

TEST(PlacedExperts, HoldersOfOneExpertDrawTheSame) {
  const RigModel model({.experts = 6});
  const ShardPlan plan =
      make_plan(*model, {.tp = 2, .ep = 2, .placement = placed({{0, 1, 2, 3, 4}, {5, 4, 0}})});
  std::vector<PackedExperts> ranks;
  for (unsigned rank = 0; rank < 4; ++rank) ranks.push_back(draw_experts(plan, rank, 7));
  for (const std::uint64_t expert : {0U, 4U}) {
    for (unsigned tp_rank = 0; tp_rank < 2; ++tp_rank) {
      EXPECT_TRUE(test::same_bytes(ranks[tp_rank].blob(expert), ranks[2 + tp_rank].blob(expert)));
    }
    EXPECT_FALSE(std::ranges::equal(ranks[0].blob(expert), ranks[1].blob(expert)));
  }
}

TEST(PlacedExperts, ReloadFindsTheSlotOfAnExpert) {
  const RigModel model({.experts = 6});
  const ShardPlan plan =
      make_plan(*model, {.ep = 2, .placement = placed({{5, 0, 2}, {4, 3, 1, 5}})});
  const std::vector<PackedExperts> ranks = test::pack_all(*model, plan);
  MoeLayer layer(plan, spec_of(model->config), ranks);
  layer.reload(1, 3, ranks[0].blob(2));
  EXPECT_TRUE(test::same_bytes(layer.blob(1, 3), ranks[0].blob(2)));
  for (const std::uint64_t expert : {4U, 1U, 5U})
    EXPECT_TRUE(test::same_bytes(layer.blob(1, expert), ranks[1].blob(expert)));
  EXPECT_THROW((void)layer.blob(1, 0), Error);
}

}  // namespace
}  // namespace moxie

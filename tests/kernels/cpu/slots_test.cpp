// SPDX-License-Identifier: Apache-2.0
// Slots to rows: order, masks, ids of other ranks, ids that exist nowhere.
#include "kernels/cpu/portable/slots.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "formats/expert_offsets.hpp"

namespace moxie::cpu::portable {
namespace {

using Ids = std::vector<std::int32_t>;

// The map of one rank that owns the global experts [first, first + local).
struct Mapped {
  Ids rows;                          // row of slot
  std::vector<std::uint32_t> slots;  // slot of row
  std::vector<std::uint32_t> with0;
  Ids active;
  std::uint32_t flags = 0;
};

Mapped map_slots(const Ids& ids, std::uint64_t top_k, std::uint64_t experts, std::uint64_t first,
                 std::uint64_t local) {
  Ids local_of_expert(experts, -1);
  for (std::uint64_t i = 0; i < local; ++i)
    local_of_expert[first + i] = static_cast<std::int32_t>(i);
  Mapped mapped{.rows = Ids(ids.size(), 77),
                .slots = std::vector<std::uint32_t>(ids.size(), 77),
                .with0 = std::vector<std::uint32_t>(local + 1, 77),
                .active = Ids(local, 77)};
  ExpertsArgs args;
  args.shape.experts = experts;
  args.shape.local_experts = local;
  args.shape.top_k = top_k;
  args.weights.local_of_expert = local_of_expert.data();
  args.tokens = ids.size() / top_k;
  args.topk_ids = ids.data();
  args.flags = &mapped.flags;
  SlotMap map{.with0 = mapped.with0.data(),
              .row_of_slot = mapped.rows.data(),
              .slot_of_row = mapped.slots.data(),
              .active_experts = mapped.active.data(),
              .local_experts = local,
              .top_k = top_k};
  build_slots(args, map);
  mapped.slots.resize(map.rows());
  mapped.active.resize(map.active);
  return mapped;
}

TEST(Slots, ReproduceTheExampleOfTheSpecification) {  // pit52
  const Ids ids = {2, 0, 0, 3, 3, 2};
  const Mapped mapped = map_slots(ids, 2, 4, 0, 4);
  EXPECT_EQ(mapped.with0, (std::vector<std::uint32_t>{0, 2, 2, 4, 6}));
  EXPECT_EQ(mapped.slots, (std::vector<std::uint32_t>{1, 2, 0, 5, 3, 4}));
  EXPECT_EQ(mapped.rows, (Ids{2, 0, 1, 4, 5, 3}));
  EXPECT_EQ(mapped.active, (Ids{0, 2, 3}));
  EXPECT_EQ(mapped.flags, 0U);
}

TEST(Slots, EverySlotIsValidOnExactlyOneOfTheRanks) {  // pit53
  const Ids ids = {2, 0, 0, 3, 3, 2};
  const Mapped rank0 = map_slots(ids, 2, 4, 0, 2);
  EXPECT_EQ(rank0.slots, (std::vector<std::uint32_t>{1, 2}));
  EXPECT_EQ(rank0.with0, (std::vector<std::uint32_t>{0, 2, 2}));
  const Mapped rank1 = map_slots(ids, 2, 4, 2, 2);
  EXPECT_EQ(rank1.slots, (std::vector<std::uint32_t>{0, 5, 3, 4}));
  EXPECT_EQ(rank1.with0, (std::vector<std::uint32_t>{0, 2, 4}));
  EXPECT_EQ(rank0.slots.size() + rank1.slots.size(), ids.size());
}

TEST(Slots, MapGlobalIdsOfTheLastRankToLocalOnes) {  // C8, pit53: V4-Pro, rank 7 of 8
  const Mapped mapped = map_slots({336, 383, 335, 384}, 1, 384, 336, 48);
  EXPECT_EQ(mapped.rows, (Ids{0, 1, -1, -1}));
  EXPECT_EQ(mapped.with0[1], 1U);
  EXPECT_EQ(mapped.with0[48] - mapped.with0[47], 1U);
  EXPECT_EQ(mapped.flags, kFlagBadExpertId) << "384 exists on no rank; 335 does";
}

TEST(Slots, MinusOneIsMaskedWithoutAFlagAndOtherNegativeIdsWithOne) {
  EXPECT_EQ(map_slots({-1, 1}, 1, 2, 0, 2).flags, 0U);
  for (const std::int32_t id : {-2, -2147483647 - 1, 2, 2147483647}) {
    const Mapped mapped = map_slots({id, 1}, 1, 2, 0, 2);
    EXPECT_EQ(mapped.flags, kFlagBadExpertId) << id;
    EXPECT_EQ(mapped.rows, (Ids{-1, 0})) << id;
  }
}

TEST(Slots, AnExpertTwiceInATokenHasTwoRows) {  // S-04
  EXPECT_EQ(map_slots({3, 3}, 2, 4, 0, 4).slots, (std::vector<std::uint32_t>{0, 1}));
}

TEST(Slots, EmptyExpertsMayComeFirstInTheMiddleAndLast) {  // K-10
  EXPECT_EQ(map_slots({1, 1, 3, 1}, 1, 4, 0, 4).with0, (std::vector<std::uint32_t>{0, 0, 3, 3, 4}));
  EXPECT_EQ(map_slots({3, 3, 3, 3}, 1, 4, 0, 4).with0, (std::vector<std::uint32_t>{0, 0, 0, 0, 4}));
  EXPECT_EQ(map_slots({0, 0, 0, 0}, 1, 4, 0, 4).with0, (std::vector<std::uint32_t>{0, 4, 4, 4, 4}));
}

TEST(Slots, MoreTokensThanACountingBlockStayInOrder) {  // S-05
  Ids ids(257);
  for (std::size_t t = 0; t < ids.size(); ++t) ids[t] = static_cast<std::int32_t>(t % 2);
  const Mapped mapped = map_slots(ids, 1, 2, 0, 2);
  EXPECT_EQ(mapped.with0, (std::vector<std::uint32_t>{0, 129, 257}));
  EXPECT_TRUE(std::is_sorted(mapped.slots.begin(), mapped.slots.begin() + 129));
  EXPECT_TRUE(std::is_sorted(mapped.slots.begin() + 129, mapped.slots.end()));
  std::vector<bool> seen(257);
  for (const std::int32_t row : mapped.rows) seen.at(static_cast<std::size_t>(row)) = true;
  EXPECT_EQ(std::count(seen.begin(), seen.end(), true), 257);
}

TEST(Slots, NoTokensAndNoLocalWorkGiveNoRows) {  // K-09, pit54
  EXPECT_EQ(map_slots({}, 2, 4, 0, 4).slots.size(), 0U);
  const Mapped foreign = map_slots({0, 1, 0}, 1, 4, 2, 2);
  EXPECT_EQ(foreign.rows, (Ids{-1, -1, -1}));
  EXPECT_EQ(foreign.active, Ids{});
}

TEST(Slots, TheTokenOfASlotFollowsFromTheCallersTopK) {  // C10, pit51
  std::vector<std::uint32_t> slots = {49151};
  SlotMap map{.slot_of_row = slots.data(), .top_k = 6};
  EXPECT_EQ(map.token_of_row(0), 8191U);
  map.top_k = 8;
  EXPECT_EQ(map.token_of_row(0), 6143U);
}

TEST(Slots, AgreeWithASortOnRandomIds) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 200; ++round) {
    const std::uint64_t experts = 1 + random() % 40;
    const std::uint64_t top_k = 1 + random() % 8;
    const std::uint64_t first = random() % experts;
    const std::uint64_t local = 1 + random() % (experts - first);
    Ids ids(top_k * (random() % 70));
    for (std::int32_t& id : ids) id = static_cast<std::int32_t>(random() % (experts + 1)) - 1;

    struct Pair {
      std::int32_t expert;
      std::uint32_t slot;
    };
    std::vector<Pair> pairs;
    std::vector<std::uint64_t> counts(local, 0);
    for (std::uint32_t slot = 0; slot < ids.size(); ++slot) {
      const std::int64_t mine = ids[slot] - static_cast<std::int64_t>(first);
      if (ids[slot] < 0 || mine < 0 || mine >= static_cast<std::int64_t>(local)) continue;
      pairs.push_back({static_cast<std::int32_t>(mine), slot});
      ++counts[static_cast<std::size_t>(mine)];
    }
    std::ranges::stable_sort(pairs, {}, &Pair::expert);

    const Mapped mapped = map_slots(ids, top_k, experts, first, local);
    ASSERT_EQ(mapped.slots.size(), pairs.size());
    const OffsetsWith0 offsets = OffsetsWith0::from_counts(counts);
    EXPECT_TRUE(std::ranges::equal(mapped.with0, offsets.values()));
    Ids rows(ids.size(), -1);
    for (std::size_t row = 0; row < pairs.size(); ++row) {
      EXPECT_EQ(mapped.slots[row], pairs[row].slot);
      rows[pairs[row].slot] = static_cast<std::int32_t>(row);
      EXPECT_EQ(offsets.expert_of(row), static_cast<std::uint64_t>(pairs[row].expert));
    }
    EXPECT_EQ(mapped.rows, rows);
  }
}

}  // namespace
}  // namespace moxie::cpu::portable

// SPDX-License-Identifier: Apache-2.0
// Slots between threads that fill and one that empties, without a device: turns, order and the end.
#include "layer/staging_ring.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "base/parallel.hpp"
#include "support/threads.hpp"

namespace moxie {
namespace {

// Empties until the ring is closed, keeping up to `held` slots as copies on their way do.
std::vector<std::uint64_t> empty_all(StagingRing& ring, std::vector<std::uint64_t>& memory,
                                     std::size_t held) {
  std::vector<std::uint64_t> seen;
  std::vector<std::size_t> on_their_way;
  for (;;) {
    const auto filled = on_their_way.empty() ? ring.take() : ring.try_take();
    if (filled && on_their_way.size() < held) {
      seen.push_back(memory[filled->slot]);
      EXPECT_EQ(memory[filled->slot], filled->item);
      memory[filled->slot] = ~std::uint64_t{0};
      on_their_way.push_back(filled->slot);
    } else if (filled) {
      ADD_FAILURE() << "more slots than there are";
      return seen;
    } else if (on_their_way.empty()) {
      return seen;
    } else {
      ring.give_back(on_their_way.back());
      on_their_way.pop_back();
    }
  }
}

// Some parts at a time, as those who pack do; whoever ends last looks at what all have written.
void fill_all(StagingRing& ring, std::uint64_t items, unsigned parts,
              std::vector<std::uint64_t>& memory,
              std::vector<std::vector<std::uint64_t>>& by_part) {
  const RingCloser closer(ring);
  parallel_for(items * parts, [&](std::uint64_t index) {
    const std::uint64_t item = index / parts;
    const auto slot = ring.slot_of(item);
    if (!slot) return;
    by_part[*slot][index % parts] = item;
    if (!ring.end_part(item)) return;
    for (const std::uint64_t written : by_part[*slot]) EXPECT_EQ(written, item);
    memory[*slot] = item;
    ring.hand_over(item);
  });
}

TEST(StagingRing, EveryItemPassesOnceHoweverFewSlotsThereAre) {
  constexpr std::uint64_t kItems = 1000;
  const test::Threads threads(6);  // more than this machine may have
  for (const std::size_t slots : {1U, 2U, 7U}) {
    for (const unsigned parts : {1U, 2U, 9U}) {
      StagingRing ring(slots, parts);
      std::vector<std::uint64_t> memory(slots);
      std::vector<std::vector<std::uint64_t>> by_part(slots, std::vector<std::uint64_t>(parts));
      std::vector<std::uint64_t> seen;
      run_beside([&] { seen = empty_all(ring, memory, slots); },
                 [&] { fill_all(ring, kItems, parts, memory, by_part); });
      std::ranges::sort(seen);
      ASSERT_EQ(seen.size(), kItems) << slots << " slots, " << parts << " parts";
      for (std::uint64_t item = 0; item < kItems; ++item) EXPECT_EQ(seen[item], item);
    }
  }
}

TEST(StagingRing, TheOneWhoEmptiesWaitsUntilTheRingIsClosed) {
  StagingRing ring(3, 1);
  std::size_t taken = 0;
  run_beside(
      [&] {
        while (ring.take()) ++taken;
      },
      [&] {
        for (const std::uint64_t item : {0U, 1U}) {
          (void)ring.slot_of(item);
          EXPECT_TRUE(ring.end_part(item));
          ring.hand_over(item);
        }
        ring.close();
      });
  EXPECT_EQ(taken, 2U);
}

// Long enough for a thread to have gone on if nothing held it.
void give_time() { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }

TEST(StagingRing, PartsOfAnItemShareASlotAndTheLastOneEndsIt) {
  StagingRing ring(2, 3);
  const auto slot = ring.slot_of(0);
  EXPECT_EQ(ring.slot_of(0), slot);
  EXPECT_NE(ring.slot_of(1), slot);
  EXPECT_FALSE(ring.end_part(0));
  EXPECT_FALSE(ring.end_part(0));
  EXPECT_TRUE(ring.end_part(0));
  EXPECT_FALSE(ring.try_take().has_value());  // whole, but not handed over
  ring.hand_over(0);
  const auto filled = ring.try_take();
  ASSERT_TRUE(filled.has_value());
  EXPECT_EQ(filled->item, 0U);
  EXPECT_EQ(filled->slot, slot);
}

TEST(StagingRing, ItemsAreTakenInTheOrderInWhichTheyAreDone) {
  StagingRing ring(3, 2);
  for (const std::uint64_t item : {0U, 1U, 2U}) (void)ring.slot_of(item);
  for (const std::uint64_t item : {0U, 2U, 1U, 2U, 0U, 1U}) {
    if (ring.end_part(item)) ring.hand_over(item);
  }
  ring.close();
  std::vector<std::uint64_t> taken;
  while (const auto filled = ring.take()) taken.push_back(filled->item);
  EXPECT_EQ(taken, (std::vector<std::uint64_t>{2, 0, 1}));
}

TEST(StagingRing, AnItemThatIsAskedForEarlyWaitsForItsTurn) {
  StagingRing ring(1, 1);
  std::atomic<bool> has_slot = false;
  std::thread early([&] {
    EXPECT_TRUE(ring.slot_of(1).has_value());
    has_slot = true;
  });
  give_time();
  EXPECT_FALSE(has_slot);
  ASSERT_TRUE(ring.slot_of(0).has_value());  // the only slot is left for it
  EXPECT_TRUE(ring.end_part(0));
  ring.hand_over(0);
  give_time();
  EXPECT_FALSE(has_slot);
  ring.give_back(ring.take()->slot);
  early.join();
  EXPECT_TRUE(has_slot);
}

TEST(StagingRing, OnceStoppedOnlyItemsWithASlotGoOn) {
  StagingRing ring(1, 2);
  const auto slot = ring.slot_of(0);
  std::atomic<int> dismissed = 0;
  std::vector<std::thread> waiting;
  for (const std::uint64_t item : {1U, 1U, 2U})
    waiting.emplace_back([&, item] { dismissed += ring.slot_of(item) ? 0 : 1; });
  give_time();
  EXPECT_EQ(dismissed, 0);
  ring.stop();
  for (std::thread& thread : waiting) thread.join();
  EXPECT_EQ(dismissed, 3);
  EXPECT_EQ(ring.slot_of(0), slot);
  EXPECT_FALSE(ring.slot_of(3).has_value());
}

}  // namespace
}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// Slots between threads that fill and one that empties, without a device.
#include "layer/staging_ring.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/parallel.hpp"

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

TEST(StagingRing, EveryItemPassesOnceHoweverFewSlotsThereAre) {
  constexpr std::uint64_t kItems = 2000;
  for (const std::size_t slots : {1U, 2U, 7U}) {
    StagingRing ring(slots);
    std::vector<std::uint64_t> memory(slots);
    std::vector<std::uint64_t> seen;
    run_beside([&] { seen = empty_all(ring, memory, slots); },
               [&] {
                 parallel_for(kItems, [&](std::uint64_t item) {
                   FreeSlot slot(ring);
                   memory[slot.index()] = item;
                   slot.hand_over(item);
                 });
                 ring.close();
               });
    std::ranges::sort(seen);
    ASSERT_EQ(seen.size(), kItems) << slots << " slots";
    for (std::uint64_t item = 0; item < kItems; ++item) EXPECT_EQ(seen[item], item);
  }
}

TEST(StagingRing, ASlotThatIsNotHandedOverIsFreeAgain) {
  StagingRing ring(1);
  for (int attempt = 0; attempt < 3; ++attempt) {
    EXPECT_THROW(
        {
          const FreeSlot slot(ring);
          throw std::runtime_error("not packed");
        },
        std::runtime_error);
  }
  EXPECT_FALSE(ring.try_take());
  EXPECT_EQ(ring.acquire(), 0U);
}

TEST(StagingRing, ThoseWhoWaitForASlotGetWhatMadeTheEmptierStop) {
  StagingRing ring(2);
  std::atomic<int> passed{0};
  const auto load = [&] {
    run_beside(
        [&] {
          (void)ring.take();  // which is never given back
          ring.fail(std::make_exception_ptr(std::runtime_error("the device is gone")));
        },
        [&] {
          for (std::uint64_t item = 0;; ++item) {
            FreeSlot slot(ring);
            slot.hand_over(item);
            ++passed;
          }
        });
  };
  try {
    load();
    FAIL() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_EQ(std::string(error.what()), "the device is gone");
  }
  EXPECT_LE(passed, 2);
}

TEST(StagingRing, TheOneWhoEmptiesWaitsUntilTheRingIsClosed) {
  StagingRing ring(3);
  std::size_t taken = 0;
  run_beside(
      [&] {
        while (ring.take()) ++taken;
      },
      [&] {
        ring.hand_over({.slot = ring.acquire(), .item = 5});
        ring.hand_over({.slot = ring.acquire(), .item = 6});
        ring.close();
      });
  EXPECT_EQ(taken, 2U);
}

}  // namespace
}  // namespace moxie

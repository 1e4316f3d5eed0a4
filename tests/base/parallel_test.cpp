// SPDX-License-Identifier: Apache-2.0
// Work handed to threads: every index once, exceptions in a fixed order.
#include "base/parallel.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace moxie {
namespace {

TEST(Parallel, CallsEveryIndexOnce) {
  for (const std::uint64_t count : {0U, 1U, 2U, 3U, 1000U}) {
    std::vector<std::atomic<int>> calls(count);
    parallel_for(count, [&](std::uint64_t i) { ++calls.at(i); });
    for (const auto& call : calls) EXPECT_EQ(call, 1);
  }
}

TEST(Parallel, CallsEveryIndexOnceOnAtMostSoManyThreads) {
  for (const unsigned threads : {0U, 1U, 2U, 1000U}) {
    std::vector<std::atomic<int>> calls(200);
    std::mutex mutex;
    std::set<std::thread::id> callers;
    parallel_for(calls.size(), threads, [&](std::uint64_t i) {
      ++calls.at(i);
      std::this_thread::yield();
      const std::lock_guard lock(mutex);
      callers.insert(std::this_thread::get_id());
    });
    for (const auto& call : calls) EXPECT_EQ(call, 1);
    EXPECT_LE(callers.size(), std::max<std::size_t>(1, std::min(threads, usable_threads())));
    if (threads > 1) continue;
    EXPECT_EQ(*callers.begin(), std::this_thread::get_id());
  }
}

TEST(Parallel, NestsAndStillCallsEveryIndexOnce) {
  std::vector<std::atomic<int>> calls(30 * 40);
  parallel_for(30, [&](std::uint64_t outer) {
    parallel_for(40, [&](std::uint64_t inner) { ++calls[outer * 40 + inner]; });
  });
  for (const auto& call : calls) EXPECT_EQ(call, 1);
}

TEST(Parallel, ThrowsTheExceptionOfTheLowestIndexThatThrew) {
  for (int round = 0; round < 50; ++round) {
    std::atomic<std::uint64_t> lowest{~std::uint64_t{0}};
    try {
      parallel_for(64, [&](std::uint64_t i) {
        if (i % 3 != 1) return;
        if (i < 10) std::this_thread::yield();
        std::uint64_t seen = lowest;
        while (i < seen && !lowest.compare_exchange_weak(seen, i)) {
        }
        throw std::runtime_error(std::to_string(i));
      });
      FAIL() << "nothing was thrown";
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(error.what(), std::to_string(lowest));
    }
  }
}

TEST(Parallel, HandsOutNoIndexAfterAnException) {
  std::atomic<std::uint64_t> calls{0};
  EXPECT_THROW(parallel_for(1'000'000,
                            [&](std::uint64_t i) {
                              ++calls;
                              if (i == 0) throw std::runtime_error("stop");
                              std::this_thread::yield();
                            }),
               std::runtime_error);
  EXPECT_LT(calls, 1'000'000U);
}

TEST(Parallel, WorksAgainAfterAnException) {
  EXPECT_THROW(parallel_for(8, [](std::uint64_t) { throw std::logic_error("x"); }),
               std::logic_error);
  std::atomic<int> calls{0};
  parallel_for(8, [&](std::uint64_t) { ++calls; });
  EXPECT_EQ(calls, 8);
}

TEST(Parallel, CountsAtLeastOneUsableThread) { EXPECT_GE(usable_threads(), 1U); }

TEST(Team, DoesEveryItemOfEveryStageOnceAndStagesInOrder) {
  for (const unsigned threads : {1U, 2U, 7U}) {
    std::vector<std::atomic<int>> first(1000);
    std::vector<std::atomic<int>> second(333);
    std::atomic<int> early{0};
    std::atomic<unsigned> callers{0};
    parallel_team(threads, [&](Team& team) {
      team.for_each(first.size(), [&](std::uint64_t i) { ++first[i]; });
      team.for_each(0, [&](std::uint64_t) { ++early; });
      team.for_each(second.size(), [&](std::uint64_t i) {
        for (const auto& count : first) early += count == 1 ? 0 : 1;
        ++second[i];
      });
      if (team.is_caller()) ++callers;
    });
    for (const auto& count : first) EXPECT_EQ(count, 1);
    for (const auto& count : second) EXPECT_EQ(count, 1);
    EXPECT_EQ(early, 0) << "a later stage began before an earlier one was done";
    EXPECT_EQ(callers, 1U);
  }
}

TEST(Team, WorksFromSeveralCallersAtOnceAndNested) {
  std::atomic<std::uint64_t> total{0};
  const auto sum = [&] {
    for (int round = 0; round < 50; ++round) {
      parallel_team(3, [&](Team& team) {
        team.for_each(20, [&](std::uint64_t i) {
          parallel_team(
              2, [&](Team& inner) { inner.for_each(2, [&](std::uint64_t) { total += i; }); });
        });
      });
    }
  };
  std::thread other(sum);
  sum();
  other.join();
  EXPECT_EQ(total, 2U * 50U * 2U * 190U);
}

}  // namespace
}  // namespace moxie

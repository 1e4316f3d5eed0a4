// SPDX-License-Identifier: Apache-2.0
// The only place that knows how threads are made.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace moxie {

// Threads that this process may use: its affinity mask, narrowed by OMP_NUM_THREADS.
unsigned usable_threads();

// Calls body(i) for every i in [0, count), handed out in order to `usable_threads()` threads. After
// a body throws no further index is handed out, and the exception of the lowest index that threw is
// thrown here.
void parallel_for(std::uint64_t count, const std::function<void(std::uint64_t)>& body);
// The same on at most `threads` of them.
void parallel_for(std::uint64_t count, unsigned threads,
                  const std::function<void(std::uint64_t)>& body);

// Calls `beside` on a thread of its own while `body` runs on this one; returns when both have. What
// `body` throws is thrown here, else what `beside` throws.
void run_beside(const std::function<void()>& beside, const std::function<void()>& body);

// The counters of one stage of a team's work, on a cache line of their own.
struct alignas(64) StageCounters {
  std::atomic<std::uint64_t> next{0};
  std::atomic<std::uint64_t> done{0};
};

// Threads that go through the same stages together. Every member calls for_each() with the same
// counts in the same order. Nothing waits for a member: a stage is over when its items are done, so
// a thread that wakes late, or never comes, costs nothing but its help.
class Team {
 public:
  static constexpr std::size_t kMaxStages = 8;

  Team(StageCounters* stages, bool is_caller) : stages_(stages), is_caller_(is_caller) {}

  // True on the thread that called parallel_team().
  [[nodiscard]] bool is_caller() const { return is_caller_; }

  // Takes items, handed out in order, until none is left; returns when all `count` are done. What
  // their bodies wrote is then visible. `body` must not throw.
  template <class Body>
  void for_each(std::uint64_t count, const Body& body) {
    StageCounters& stage = stages_[stage_++];
    std::uint64_t finished = 0;
    for (;;) {
      const std::uint64_t item = stage.next.fetch_add(1, std::memory_order_relaxed);
      if (item >= count) break;
      body(item);
      ++finished;
    }
    finish(stage, finished, count);
  }

  // The same with ranges of neighbouring items, [first, end): long ones at first, so that few begin
  // anew, and single items at last, so that all members end together.
  template <class Body>
  void for_ranges(std::uint64_t count, unsigned members, const Body& body) {
    StageCounters& stage = stages_[stage_++];
    std::uint64_t finished = 0;
    std::uint64_t first = stage.next.load(std::memory_order_relaxed);
    while (first < count) {
      const std::uint64_t share = (count - first) / (kShares * members);
      const std::uint64_t end = first + (share > 1 ? share : 1);
      if (!stage.next.compare_exchange_weak(first, end, std::memory_order_relaxed)) continue;
      body(first, end);
      finished += end - first;
      first = stage.next.load(std::memory_order_relaxed);
    }
    finish(stage, finished, count);
  }

 private:
  // A range is this part of what one member would get of the rest.
  static constexpr std::uint64_t kShares = 3;

  void finish(StageCounters& stage, std::uint64_t finished, std::uint64_t count) {
    if (finished > 0) stage.done.fetch_add(finished, std::memory_order_acq_rel);
    wait(stage, count);
  }
  static void wait(const StageCounters& stage, std::uint64_t count);

  StageCounters* stages_;
  std::size_t stage_ = 0;
  bool is_caller_;
};

// Type-erased parallel_team().
void run_team(unsigned threads, void (*body)(const void* context, Team& team), const void* context);

// Calls body(team) on up to `threads` threads, the caller among them, for at most Team::kMaxStages
// stages. Neither allocates nor locks. `body` must not throw.
template <class Body>
void parallel_team(unsigned threads, const Body& body) {
  run_team(
      threads, [](const void* context, Team& team) { (*static_cast<const Body*>(context))(team); },
      &body);
}

}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// One region of threads, one atomic counter.
#include "base/parallel.hpp"

#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <string_view>
#include <system_error>
#include <thread>

#include "base/errors.hpp"
#include "base/parallel_region.hpp"

namespace moxie {

unsigned usable_threads() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  unsigned threads = ::sched_getaffinity(0, sizeof(mask), &mask) == 0
                         ? static_cast<unsigned>(CPU_COUNT(&mask))
                         : 1;
  if (const char* text = std::getenv("OMP_NUM_THREADS")) {  // NOLINT(concurrency-mt-unsafe)
    const std::string_view view(text);
    unsigned wanted = 0;
    if (std::from_chars(view.data(), view.data() + view.size(), wanted).ec == std::errc() &&
        wanted > 0) {
      threads = std::min(threads, wanted);
    }
  }
  return std::max(threads, 1U);
}

void parallel_for(std::uint64_t count, const std::function<void(std::uint64_t)>& body) {
  parallel_for(count, usable_threads(), body);
}

void parallel_for(std::uint64_t count, unsigned threads,
                  const std::function<void(std::uint64_t)>& body) {
  threads =
      static_cast<unsigned>(std::min<std::uint64_t>(std::min(threads, usable_threads()), count));
  std::atomic<std::uint64_t> next{0};
  std::atomic<bool> failed{false};
  std::mutex mutex;
  std::exception_ptr first;
  std::uint64_t first_index = count;
  const auto work = [&] {
    for (;;) {
      if (failed.load(std::memory_order_relaxed)) return;
      const std::uint64_t index = next.fetch_add(1, std::memory_order_relaxed);
      if (index >= count) return;
      try {
        body(index);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (index < first_index) {
          first_index = index;
          first = std::current_exception();
        }
        failed.store(true, std::memory_order_relaxed);
      }
    }
  };
  if (threads <= 1) {
    work();
  } else {
    run_region(threads, work);
  }
  if (first) std::rethrow_exception(first);
}

void run_beside(const std::function<void()>& beside, const std::function<void()>& body) {
  std::exception_ptr of_body;
  std::exception_ptr of_beside;
  std::thread thread;
  try {
    thread = std::thread([&] {
      try {
        beside();
      } catch (...) {
        of_beside = std::current_exception();
      }
    });
  } catch (const std::system_error& error) {
    raise_system("start a thread", {}, error.code().value());
  }
  try {
    body();
  } catch (...) {
    of_body = std::current_exception();
  }
  thread.join();
  if (of_body) std::rethrow_exception(of_body);
  if (of_beside) std::rethrow_exception(of_beside);
}

void Team::wait(const StageCounters& stage, std::uint64_t count) {
  constexpr int kSpins = 2000;  // some microseconds; after that the core may be needed elsewhere
  for (int spin = 0; stage.done.load(std::memory_order_acquire) < count; ++spin) {
    if (spin >= kSpins) std::this_thread::yield();
  }
}

void run_team(unsigned threads, void (*body)(const void* context, Team& team),
              const void* context) {
  std::array<StageCounters, Team::kMaxStages> stages;
  if (threads <= 1) {
    Team team(stages.data(), true);
    body(context, team);
    return;
  }
  const std::thread::id caller = std::this_thread::get_id();
  run_region(threads, [&] {
    Team team(stages.data(), std::this_thread::get_id() == caller);
    body(context, team);
  });
}

}  // namespace moxie

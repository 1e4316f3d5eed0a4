// SPDX-License-Identifier: Apache-2.0
// Memory read once by all threads, each its own contiguous share of it.
#include <algorithm>
#include <cstring>
#include <memory>

#include "base/clock.hpp"
#include "base/parallel.hpp"
#include "base/writable_memory.hpp"
#include "measure/cache_size.hpp"
#include "measure/pinned_loops.hpp"
#include "moxie/measure.hpp"

namespace moxie {

namespace {

// Read by one test: far more than the caches hold. The buffer is twice as large and read half by
// half, so that nothing is left of a test when its half comes up again.
constexpr std::uint64_t kCaches = 4;

std::uint64_t share_of(unsigned threads) {
  const std::uint64_t share = memory_beyond_caches(kCaches) / threads;
  return std::max(share / measure::kReadBlock, std::uint64_t{1}) * measure::kReadBlock;
}

// In large pages where the system has them: experts of a layer lie in the same kind.
std::shared_ptr<std::byte> untouched(std::uint64_t bytes) {
  const auto memory = std::make_shared<WritableMemory>(bytes);
  return {memory, memory->bytes().data()};
}

}  // namespace

ReadTest::ReadTest(unsigned threads)
    : threads_(std::clamp(threads, 1U, usable_threads())),
      share_(share_of(threads_)),
      memory_(untouched(2 * share_ * threads_)) {
  // Pages that were never written are all the same one. Who reads a share also places it.
  parallel_team(threads_, [&](Team& team) {
    team.for_each(threads_, [&](std::uint64_t thread) {
      for (const std::uint64_t half : {std::uint64_t{0}, std::uint64_t{1}})
        std::memset(memory_.get() + (half * threads_ + thread) * share_, 1, share_);
    });
  });
}

double ReadTest::gbps() {
  const std::byte* half = memory_.get() + (half_ ? threads_ * share_ : 0);
  half_ = !half_;
  const measure::ReadLoop read = measure::read_loop();
  const std::uint64_t start = now_ns();
  parallel_team(threads_, [&](Team& team) {
    team.for_each(threads_, [&](std::uint64_t thread) { read(half + thread * share_, share_); });
  });
  return static_cast<double>(threads_ * share_) / static_cast<double>(now_ns() - start);
}

}  // namespace moxie

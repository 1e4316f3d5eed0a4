// SPDX-License-Identifier: Apache-2.0
// What memory costs that nobody has had before: the system fills it with zeros.
#include <algorithm>
#include <array>

#include "base/checked.hpp"
#include "base/clock.hpp"
#include "base/parallel.hpp"
#include "base/writable_memory.hpp"
#include "moxie/measure.hpp"

namespace moxie {

double measure_fresh_memory(std::uint64_t bytes) {
  constexpr std::uint64_t kTurn = std::uint64_t{2} << 20;  // a large page
  constexpr std::uint64_t kPage = 4096;
  std::array<std::uint64_t, 5> times{};
  for (std::uint64_t& ns : times) {
    const std::uint64_t start = now_ns();
    const WritableMemory memory(bytes);
    parallel_for(divide_up(bytes, kTurn), [&](std::uint64_t turn) {
      const auto own = memory.bytes().subspan(turn * kTurn);
      for (std::uint64_t at = 0; at < std::min<std::uint64_t>(own.size(), kTurn); at += kPage)
        own[at] = std::byte{1};
    });
    ns = now_ns() - start;
  }
  std::ranges::sort(times);
  return static_cast<double>(bytes) / static_cast<double>(times[times.size() / 2]);
}

}  // namespace moxie

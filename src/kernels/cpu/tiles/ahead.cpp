// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/tiles/ahead.hpp"

namespace moxie::cpu::tiles {

namespace {

// Measured; see docs/performance.md. Zen 4 and 5 want what they ask for early; more than 60 lines
// under way hold up the other loads on an Intel core.
std::uint64_t choose() {
  constexpr std::uint64_t kAmd = 28;
  constexpr std::uint64_t kOthers = 14;
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_is("amd") != 0) return kAmd;
#endif
  return kOthers;
}

}  // namespace

std::uint64_t tiles_ahead() {
  static const std::uint64_t tiles = choose();
  return tiles;
}

}  // namespace moxie::cpu::tiles

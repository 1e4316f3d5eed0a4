// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/tiles/prefetch.hpp"

namespace moxie::cpu::tiles {

namespace {

// Measured; see docs/performance.md. On Zen 5 what streams through the second-level cache drives
// the loop's own code and sums out of it, and so out of the first-level caches, which it includes.
// On an Intel core more than 60 lines under way hold up the other loads.
Prefetch choose() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_is("amdfam19h") != 0) return {.tiles = 20, .past_second_level = false};
  if (__builtin_cpu_is("amd") != 0) return {.tiles = 28, .past_second_level = true};
#endif
  return {.tiles = 14, .past_second_level = false};
}

}  // namespace

Prefetch prefetch_of_processor() {
  static const Prefetch prefetch = choose();
  return prefetch;
}

}  // namespace moxie::cpu::tiles

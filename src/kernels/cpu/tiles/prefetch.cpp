// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/tiles/prefetch.hpp"

namespace moxie::cpu::tiles {

#if defined(__x86_64__)
namespace {

// Of the AMD families that the compiler has names for: 10h, 15h, 17h (Zen to Zen 2) and 19h (Zen 3
// and 4). Those behind them are Zen 5 and what follows.
bool is_older_amd() {
  return __builtin_cpu_is("amdfam10h") != 0 || __builtin_cpu_is("amdfam15h") != 0 ||
         __builtin_cpu_is("amdfam17h") != 0 || __builtin_cpu_is("amdfam19h") != 0;
}

}  // namespace
#endif

// Measured on Zen 4, Zen 5 and one Intel core; see docs/performance.md. On Zen 5 what streams
// through the second-level cache drives the loop's own code and sums out of it, and so out of the
// first-level caches, which it includes. On the Intel core more than 60 lines under way hold up the
// other loads.
Prefetch prefetch_of_processor() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_is("amd") != 0) {
    if (is_older_amd()) return {.tiles = 20, .past_second_level = false};
    return {.tiles = 28, .past_second_level = true};
  }
#endif
  return {.tiles = 14, .past_second_level = false};
}

}  // namespace moxie::cpu::tiles

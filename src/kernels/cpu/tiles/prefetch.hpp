// SPDX-License-Identifier: Apache-2.0
// How the tile kernels ask for weights before they read them.
#pragma once

#include <cstdint>

namespace moxie::cpu::tiles {

struct Prefetch {
  std::uint64_t tiles = 0;  // ahead
  // Into the first-level cache alone; else into the second-level one.
  bool past_second_level = false;
};

// Of this processor.
Prefetch prefetch_of_processor();

}  // namespace moxie::cpu::tiles

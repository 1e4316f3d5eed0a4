// SPDX-License-Identifier: Apache-2.0
// Wall time for stage times.
#pragma once

#include <chrono>
#include <cstdint>

namespace moxie {

// Of a clock that never goes back; only differences mean something.
inline std::uint64_t now_ns() {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                        std::chrono::steady_clock::now().time_since_epoch())
                                        .count());
}

}  // namespace moxie

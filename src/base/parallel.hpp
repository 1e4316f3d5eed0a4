// SPDX-License-Identifier: Apache-2.0
// The only place that knows how threads are made.
#pragma once

#include <cstdint>
#include <functional>

namespace moxie {

// Threads that this process may use: its affinity mask, narrowed by OMP_NUM_THREADS.
unsigned usable_threads();

// Calls body(i) for every i in [0, count), handed out in order to `usable_threads()` threads. After
// a body throws no further index is handed out, and the exception of the lowest index that threw is
// thrown here.
void parallel_for(std::uint64_t count, const std::function<void(std::uint64_t)>& body);

}  // namespace moxie

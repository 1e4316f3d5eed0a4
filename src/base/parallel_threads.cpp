// SPDX-License-Identifier: Apache-2.0
// New threads for every region: ThreadSanitizer sees what orders them, which it does not of OpenMP.
#include <thread>
#include <vector>

#include "base/parallel_region.hpp"

namespace moxie {

void run_region(unsigned threads, void (*body)(const void* context), const void* context) {
  std::vector<std::jthread> others;
  for (unsigned i = 1; i < threads; ++i) others.emplace_back(body, context);
  body(context);
}

}  // namespace moxie

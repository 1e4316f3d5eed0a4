// SPDX-License-Identifier: Apache-2.0
// Threads of OpenMP's own pool. omp.h is not needed.
#include "base/parallel_region.hpp"

namespace moxie {

void run_region(unsigned threads, void (*body)(const void* context), const void* context) {
#pragma omp parallel num_threads(static_cast<int>(threads))
  body(context);
}

}  // namespace moxie

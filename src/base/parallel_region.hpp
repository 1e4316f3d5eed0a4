// SPDX-License-Identifier: Apache-2.0
// How threads are made.
#pragma once

#include <memory>

namespace moxie {

// Calls body(context) on up to `threads` threads, the caller among them, and returns when all have.
// `body` must not throw.
void run_region(unsigned threads, void (*body)(const void* context), const void* context);

template <class Body>
void run_region(unsigned threads, const Body& body) {
  run_region(
      threads, [](const void* context) { (*static_cast<const Body*>(context))(); },
      std::addressof(body));
}

}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// Counts what a piece of code allocates, by replacing operator new. Include it in one source of a
// program only.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace moxie::test {

// Bytes asked for since the last reset, by all threads; freed bytes are not taken off.
struct AllocationMeter {
  static inline std::atomic<std::size_t> total{0};
  static inline std::atomic<std::size_t> largest{0};

  static void reset() { total = largest = 0; }
  static void count(std::size_t bytes) {
    total += bytes;
    std::size_t seen = largest;
    while (seen < bytes && !largest.compare_exchange_weak(seen, bytes)) {
    }
  }
};

}  // namespace moxie::test

// Not inlined: g++ would see free() meet memory of operator new, and warn.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  moxie::test::AllocationMeter::count(bytes);
  void* memory = std::malloc(std::max<std::size_t>(bytes, 1));
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t /*bytes*/) noexcept {
  std::free(memory);
}

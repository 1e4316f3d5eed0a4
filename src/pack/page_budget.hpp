// SPDX-License-Identifier: Apache-2.0
// When to let go of mapped pages that were read once.
#pragma once

#include <atomic>
#include <cstdint>

namespace moxie {

// Counts bytes that threads have read; answers one of them each time that kBytes have come
// together.
class PageBudget {
 public:
  static constexpr std::uint64_t kBytes = std::uint64_t{256} << 20;

  [[nodiscard]] bool spend(std::uint64_t bytes) {
    const std::uint64_t before = spent_.fetch_add(bytes, std::memory_order_relaxed);
    return before / kBytes != (before + bytes) / kBytes;
  }

 private:
  std::atomic<std::uint64_t> spent_{0};
};

}  // namespace moxie

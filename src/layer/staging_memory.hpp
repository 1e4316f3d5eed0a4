// SPDX-License-Identifier: Apache-2.0
// The page-locked memory behind LoadStaging.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "device/device.hpp"

namespace moxie {

class StagingMemory {
 public:
  explicit StagingMemory(std::uint64_t most_bytes) : most_bytes_(most_bytes) {}

  [[nodiscard]] std::uint64_t most_bytes() const { return most_bytes_; }
  [[nodiscard]] std::uint64_t bytes() const { return pinned_.bytes().size(); }
  // At least so many bytes; what was given out before is void when they are more. Errors:
  // Error(environment) MOXIE-E003.
  std::span<std::byte> room(std::uint64_t bytes) {
    if (pinned_.bytes().size() < bytes) {
      pinned_ = {};  // not beside the new one
      pinned_ = device::PinnedBuffer(bytes);
    }
    return pinned_.bytes().first(bytes);
  }

 private:
  std::uint64_t most_bytes_;
  device::PinnedBuffer pinned_;
};

}  // namespace moxie

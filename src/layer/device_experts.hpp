// SPDX-License-Identifier: Apache-2.0
// One rank's experts in device memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device/device.hpp"
#include "moxie/pack.hpp"

namespace moxie {

// Addresses do not change while it lives: replacing an expert is one copy.
class DeviceExperts {
 public:
  DeviceExperts() = default;
  // Copies expert by expert; the host needs no second copy.
  DeviceExperts(const PackedExperts& packed, std::span<const std::int32_t> local_of_expert);

  [[nodiscard]] const std::byte* blobs() const { return blobs_.data(); }
  [[nodiscard]] const std::int32_t* local_of_expert() const {
    return reinterpret_cast<const std::int32_t*>(local_of_expert_.data());
  }
  void write(std::uint64_t local_expert, std::span<const std::byte> blob);
  // Holds until the next read.
  [[nodiscard]] std::span<const std::byte> read(std::uint64_t local_expert) const;

 private:
  std::uint64_t stride_ = 0;
  device::Buffer blobs_;            // [local experts, stride]
  device::Buffer local_of_expert_;  // i32 [experts]
  mutable std::vector<std::byte> read_;
};

}  // namespace moxie

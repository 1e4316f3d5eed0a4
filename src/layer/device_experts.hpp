// SPDX-License-Identifier: Apache-2.0
// One rank's experts in device memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device/device.hpp"
#include "kernels/contract.hpp"
#include "moxie/pack.hpp"

namespace moxie {

// In the form in which the kernel reads them. Addresses do not change while it lives: replacing an
// expert changes its bytes alone.
class DeviceExperts {
 public:
  DeviceExperts() = default;
  // Copies expert by expert; the host needs no second copy. Errors as those of write().
  DeviceExperts(const PackedExperts& packed, std::span<const std::int32_t> local_of_expert,
                const ExpertsKernel& kernel, const ExpertsShape& shape,
                const BlobOffsets& offsets);

  [[nodiscard]] const std::byte* blobs() const { return blobs_.data(); }
  [[nodiscard]] std::uint64_t stride() const { return stride_; }
  [[nodiscard]] const std::int32_t* local_of_expert() const {
    return reinterpret_cast<const std::int32_t*>(local_of_expert_.data());
  }
  // Takes a packed blob. Errors: Error(unsupported) MOXIE-R022 for values that the kernel can not
  // hold, which leaves the expert as it was; Error(environment) MOXIE-E005 when the device fails.
  void write(std::uint64_t local_expert, std::span<const std::byte> blob);
  // A packed blob again; holds until the next read.
  [[nodiscard]] std::span<const std::byte> read(std::uint64_t local_expert) const;

 private:
  // Arguments for one expert, and the outcome of what they are used for.
  [[nodiscard]] ArrangeArgs args_of(std::byte* arranged) const;
  void finish(int code) const;

  const ExpertArrangement* arrangement_ = nullptr;  // null: blobs lie as they are packed
  ExpertsShape shape_;
  BlobOffsets offsets_;
  std::uint64_t packed_bytes_ = 0;  // of a blob
  std::uint64_t stride_ = 0;
  device::Buffer blobs_;            // [local experts, stride]
  device::Buffer local_of_expert_;  // i32 [experts]
  device::Buffer packed_;           // one blob, on its way
  device::Buffer arranged_;         // one expert, until it is known to be good
  device::Buffer problems_;
  mutable std::vector<std::byte> read_;
};

}  // namespace moxie

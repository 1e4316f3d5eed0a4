// SPDX-License-Identifier: Apache-2.0
// One rank's experts in device memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device/device.hpp"
#include "kernels/contract.hpp"
#include "layer/expert_upload.hpp"
#include "moxie/pack.hpp"

namespace moxie {

// In the form in which the kernel reads them. Addresses do not change while it lives: replacing an
// expert changes its bytes alone.
class DeviceExperts {
 public:
  DeviceExperts() = default;
  // Room for the experts that `packed` names, whose blobs are not looked at. Errors:
  // Error(environment) MOXIE-E003, MOXIE-E005.
  DeviceExperts(const PackedExperts& packed, std::span<const std::int32_t> local_of_expert,
                std::span<const std::int32_t> local_of_local, const ExpertsKernel& kernel,
                const ExpertsShape& shape, const BlobOffsets& offsets);

  [[nodiscard]] const std::byte* blobs() const { return blobs_.data(); }
  [[nodiscard]] std::uint64_t stride() const { return stride_; }
  [[nodiscard]] const std::int32_t* local_of_expert() const {
    return reinterpret_cast<const std::int32_t*>(local_of_expert_.data());
  }
  // For choices among the local experts themselves.
  [[nodiscard]] const std::int32_t* local_of_local() const {
    return reinterpret_cast<const std::int32_t*>(local_of_local_.data());
  }
  // Fills all of the room. Errors: what `pack` throws; those of write(), the lowest expert's.
  void load(PackLocal pack, StagingMemory& staging);
  // Takes a packed blob. Errors: Error(unsupported) MOXIE-R022 for values that the kernel can not
  // hold, which leaves the expert as it was; Error(environment) MOXIE-E003, MOXIE-E005.
  void write(std::uint64_t local_expert, std::span<const std::byte> blob);
  // A packed blob again; holds until the next read.
  [[nodiscard]] std::span<const std::byte> read(std::uint64_t local_expert) const;

 private:
  static void finish(int code);
  void check_problems(std::uint64_t local_expert, std::uint32_t problems) const;

  const ExpertArrangement* arrangement_ = nullptr;  // null: blobs lie as they are packed
  ExpertsShape shape_;
  BlobOffsets offsets_;
  unsigned rank_ = 0;
  RankExperts experts_;
  std::uint64_t packed_bytes_ = 0;  // of a blob
  std::uint64_t stride_ = 0;
  device::Buffer blobs_;            // [local experts, stride]
  device::Buffer local_of_expert_;  // i32 [experts]
  device::Buffer local_of_local_;   // i32 [local experts]
  mutable std::vector<std::byte> read_;
};

}  // namespace moxie

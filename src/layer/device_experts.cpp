// SPDX-License-Identifier: Apache-2.0
// Uploads, replaces and reads back blobs.
#include "layer/device_experts.hpp"

namespace moxie {

DeviceExperts::DeviceExperts(const PackedExperts& packed,
                             std::span<const std::int32_t> local_of_expert)
    : stride_(packed.layout.stride),
      blobs_(packed.blobs.size()),
      local_of_expert_(local_of_expert.size_bytes()) {
  for (std::uint64_t expert = 0; expert < packed.experts.count(); ++expert)
    write(expert, packed.blob(packed.experts.first + expert));
  device::copy_to_device(local_of_expert_.data(), std::as_bytes(local_of_expert));
}

void DeviceExperts::write(std::uint64_t local_expert, std::span<const std::byte> blob) {
  device::copy_to_device(blobs_.data() + local_expert * stride_, blob);
}

std::span<const std::byte> DeviceExperts::read(std::uint64_t local_expert) const {
  read_.resize(stride_);
  device::copy_to_host(read_, blobs_.data() + local_expert * stride_);
  return read_;
}

}  // namespace moxie

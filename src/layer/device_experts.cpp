// SPDX-License-Identifier: Apache-2.0
// Uploads, replaces and reads back blobs.
#include "layer/device_experts.hpp"

#include <string>

#include "moxie/status.hpp"

namespace moxie {

DeviceExperts::DeviceExperts(const PackedExperts& packed,
                             std::span<const std::int32_t> local_of_expert,
                             const ExpertsKernel& kernel, const ExpertsShape& shape,
                             const BlobOffsets& offsets)
    : arrangement_(kernel.arrangement),
      shape_(shape),
      offsets_(offsets),
      packed_bytes_(packed.layout.stride),
      stride_(arrangement_ == nullptr ? packed_bytes_ : arrangement_->stride(shape, offsets)),
      blobs_(packed.experts.count() * stride_),
      local_of_expert_(local_of_expert.size_bytes()) {
  if (arrangement_ != nullptr) {
    packed_ = device::Buffer(packed_bytes_);
    arranged_ = device::Buffer(stride_);
    problems_ = device::Buffer(sizeof(std::uint32_t));
  }
  for (std::uint64_t expert = 0; expert < packed.experts.count(); ++expert)
    write(expert, packed.blob(packed.experts.first + expert));
  device::copy_to_device(local_of_expert_.data(), std::as_bytes(local_of_expert));
}

ArrangeArgs DeviceExperts::args_of(std::byte* arranged) const {
  return {.shape = shape_,
          .offsets = offsets_,
          .packed = packed_.data(),
          .arranged = arranged,
          .problems = reinterpret_cast<std::uint32_t*>(problems_.data())};
}

void DeviceExperts::finish(int code) const {
  if (code == 0) code = device::wait_for_default_stream();
  if (code == 0) return;
  throw Error(ErrorCode::environment, {.code = "MOXIE-E005",
                                       .message = "the device could not arrange an expert",
                                       .got = device::error_text(code)});
}

void DeviceExperts::write(std::uint64_t local_expert, std::span<const std::byte> blob) {
  std::byte* to = blobs_.data() + local_expert * stride_;
  if (arrangement_ == nullptr) return device::copy_to_device(to, blob);
  const std::uint32_t none = 0;
  std::uint32_t problems = 0;
  device::copy_to_device(problems_.data(), std::as_bytes(std::span(&none, 1)));
  device::copy_to_device(packed_.data(), blob);
  finish(arrangement_->arrange(args_of(arranged_.data())));
  device::copy_to_host(std::as_writable_bytes(std::span(&problems, 1)), problems_.data());
  if (problems != 0) {
    throw Error(ErrorCode::unsupported,
                {.code = "MOXIE-R022",
                 .message = "the kernel can not hold a group scaled by 2^-127",
                 .where = {.expert = local_expert},
                 .expected = "scale bytes above 0 wherever a code is not zero",
                 .got = "scale byte 0 under codes that are not",
                 .hint = "plan another target: such groups are far below what bf16 shows"});
  }
  finish(device::copy_on_device(to, arranged_.data(), stride_));
}

std::span<const std::byte> DeviceExperts::read(std::uint64_t local_expert) const {
  read_.resize(packed_bytes_);
  std::byte* from = blobs_.data() + local_expert * stride_;
  if (arrangement_ == nullptr) {
    device::copy_to_host(read_, from);
    return read_;
  }
  // The bytes between the tensors are not kept: they are zero.
  finish(device::fill(packed_.data(), std::byte{0}, packed_bytes_, nullptr));
  finish(arrangement_->restore(args_of(from)));
  device::copy_to_host(read_, packed_.data());
  return read_;
}

}  // namespace moxie

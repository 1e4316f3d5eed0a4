// SPDX-License-Identifier: Apache-2.0
// Loads, replaces and reads back blobs. What is between packed and arranged takes memory only while
// it is needed.
#include "layer/device_experts.hpp"

#include <string>
#include <utility>

#include "moxie/status.hpp"

namespace moxie {

DeviceExperts::DeviceExperts(const PackedExperts& packed,
                             std::span<const std::int32_t> local_of_expert,
                             std::span<const std::int32_t> local_of_local,
                             const ExpertsKernel& kernel, const ExpertsShape& shape,
                             const BlobOffsets& offsets)
    : arrangement_(kernel.arrangement),
      shape_(shape),
      offsets_(offsets),
      rank_(packed.rank),
      experts_(packed.experts),
      packed_bytes_(packed.layout.stride),
      stride_(arrangement_ == nullptr ? packed_bytes_ : arrangement_->stride(shape, offsets)),
      blobs_(packed.experts.count() * stride_),
      local_of_expert_(local_of_expert.size_bytes()),
      local_of_local_(local_of_local.size_bytes()) {
  device::copy_to_device(local_of_expert_.data(), std::as_bytes(local_of_expert));
  device::copy_to_device(local_of_local_.data(), std::as_bytes(local_of_local));
}

void DeviceExperts::finish(int code) {
  if (code == 0) code = device::wait_for_default_stream();
  if (code == 0) return;
  throw Error(ErrorCode::environment, {.code = "MOXIE-E005",
                                       .message = "the device could not arrange an expert",
                                       .got = device::error_text(code)});
}

void DeviceExperts::check_problems(std::uint64_t local_expert, std::uint32_t problems) const {
  if (problems == 0) return;
  throw Error(ErrorCode::unsupported,
              {.code = "MOXIE-R022",
               .message = "the kernel can not hold a group scaled by 2^-127",
               .where = {.expert = experts_.id(local_expert), .rank = rank_},
               .expected = "scale bytes above 0 wherever a code is not zero",
               .got = "scale byte 0 under codes that are not",
               .hint = "plan another target: such groups are far below what bf16 shows"});
}

void DeviceExperts::load(PackLocal pack, StagingMemory& staging) {
  if (experts_.count() == 0) return;
  ExpertUpload upload({.arrangement = arrangement_,
                       .shape = shape_,
                       .offsets = offsets_,
                       .packed_bytes = packed_bytes_,
                       .experts = blobs_.data(),
                       .stride = stride_,
                       .count = experts_.count()},
                      std::move(pack), staging);
  const std::vector<std::uint32_t> problems = upload.run();
  for (std::uint64_t local = 0; local < problems.size(); ++local)
    check_problems(local, problems[local]);
}

void DeviceExperts::write(std::uint64_t local_expert, std::span<const std::byte> blob) {
  std::byte* to = blobs_.data() + local_expert * stride_;
  if (arrangement_ == nullptr) return device::copy_to_device(to, blob);
  // Not in place: the expert stays as it was until the new one is known to be good.
  const device::Buffer packed(packed_bytes_);
  const device::Buffer arranged(stride_);
  const device::Buffer word(sizeof(std::uint32_t));
  std::uint32_t problems = 0;
  device::copy_to_device(word.data(), std::as_bytes(std::span(&problems, 1)));
  device::copy_to_device(packed.data(), blob);
  finish(device::fill(arranged.data(), std::byte{0}, stride_, nullptr));  // its padding
  finish(arrangement_->arrange({.shape = shape_,
                                .offsets = offsets_,
                                .packed = packed.data(),
                                .arranged = arranged.data(),
                                .problems = reinterpret_cast<std::uint32_t*>(word.data())}));
  device::copy_to_host(std::as_writable_bytes(std::span(&problems, 1)), word.data());
  check_problems(local_expert, problems);
  finish(device::copy_on_device(to, arranged.data(), stride_));
}

std::span<const std::byte> DeviceExperts::read(std::uint64_t local_expert) const {
  read_.resize(packed_bytes_);
  std::byte* from = blobs_.data() + local_expert * stride_;
  if (arrangement_ == nullptr) {
    device::copy_to_host(read_, from);
    return read_;
  }
  const device::Buffer packed(packed_bytes_);
  // The bytes between the tensors are not kept: they are zero.
  finish(device::fill(packed.data(), std::byte{0}, packed_bytes_, nullptr));
  finish(arrangement_->restore(
      {.shape = shape_, .offsets = offsets_, .packed = packed.data(), .arranged = from}));
  device::copy_to_host(read_, packed.data());
  return read_;
}

}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// Experts from threads that pack them to their places on the device, in the form of their kernel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "device/device.hpp"
#include "kernels/contract.hpp"
#include "layer/staging_memory.hpp"
#include "layer/staging_ring.hpp"

namespace moxie {

// How the packed blob of a local expert comes about; called from several threads at once.
struct PackLocal {
  unsigned parts = 1;
  // Writes one part of a blob; together the parts write all of it.
  std::function<void(std::uint64_t local_expert, unsigned part, std::span<std::byte> blob)> part;
  // Called once per expert, when its blob is whole; may refuse it. Empty: nothing to say.
  std::function<void(std::uint64_t local_expert, std::span<const std::byte> blob)> check = {};
};

// Where experts go.
struct UploadTarget {
  const ExpertArrangement* arrangement = nullptr;  // null: they stay as they are packed
  ExpertsShape shape;
  BlobOffsets offsets;
  std::uint64_t packed_bytes = 0;  // of a blob
  std::byte* experts = nullptr;    // device memory [count, stride]
  std::uint64_t stride = 0;
  std::uint64_t count = 0;
};

// Of so many threads those that pack. One in eight is left to who copies and to the driver: a
// thread that packs and has to share its core with them keeps its expert, and all behind it,
// waiting for milliseconds.
constexpr unsigned packing_threads(unsigned usable) { return usable - usable / 8; }

// One load. Threads pack into slots of page-locked memory, parts of the same few experts at a time;
// one more thread puts each slot's copy and arrangement into a stream and gives the slot back once
// it is copied. Page-locked memory is bounded by the staging's bytes (but for one slot, which there
// is always), device memory beside the experts by one packed blob.
class ExpertUpload {
 public:
  // Errors: Error(environment) MOXIE-E003, MOXIE-E005.
  ExpertUpload(const UploadTarget& target, PackLocal pack, StagingMemory& staging);
  ~ExpertUpload();
  ExpertUpload(const ExpertUpload&) = delete;
  ExpertUpload& operator=(const ExpertUpload&) = delete;

  // Once. Answers the problem word of every expert (see ArrangeArgs); all experts are then in their
  // places. Throws what packing throws, of several what the lowest part of the lowest expert
  // throws, or Error(environment) MOXIE-E005.
  [[nodiscard]] std::vector<std::uint32_t> run();

 private:
  // A stream with room for a blob between copy and arrangement; null where nothing is arranged.
  struct Lane {
    device::Stream stream;
    std::byte* packed = nullptr;
  };

  void pack_all();
  void pack_part(std::uint64_t local, unsigned part);
  void copy_all();
  void start(const StagingRing::Filled& filled);
  [[nodiscard]] bool lends_place(std::uint64_t local) const;
  [[nodiscard]] std::span<std::byte> blob_of(std::size_t slot) const;

  UploadTarget target_;
  PackLocal pack_;
  std::size_t slots_;
  StagingRing ring_;
  std::span<std::byte> pinned_;  // [slots, blob, rounded up to pages]
  device::Buffer packed_;        // the first lane's
  std::deque<Lane> lanes_;
  std::deque<device::Event> copied_;  // by slot
  device::Buffer problems_;           // u32 [count]
  std::uint64_t started_ = 0;
};

}  // namespace moxie

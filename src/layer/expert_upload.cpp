// SPDX-License-Identifier: Apache-2.0
// Packing, copying and arranging at the same time, each of another expert.
#include "layer/expert_upload.hpp"

#include <algorithm>
#include <utility>

#include "base/checked.hpp"
#include "base/parallel.hpp"
#include "moxie/status.hpp"

namespace moxie {

namespace {

constexpr std::uint64_t kPageBytes = 4096;
// Slots beside those that are being packed: one is copied, the others wait for it.
constexpr std::size_t kSlotsOnTheirWay = 4;
constexpr std::size_t kMostSlots = 32;

std::size_t slots_of(const UploadTarget& target, unsigned parts, std::uint64_t most_bytes) {
  const std::uint64_t room = most_bytes / round_up(target.packed_bytes, kPageBytes);
  // As many parts in a row as there are threads that pack lie in so many experts.
  const std::uint64_t packed = divide_up(packing_threads(usable_threads()) - 1, parts) + 1;
  const std::size_t wanted = std::min(packed + kSlotsOnTheirWay, kMostSlots);
  return std::max<std::uint64_t>(1, std::min({std::uint64_t{wanted}, room, target.count}));
}

}  // namespace

ExpertUpload::ExpertUpload(const UploadTarget& target, PackLocal pack, StagingMemory& staging)
    : target_(target),
      pack_(std::move(pack)),
      slots_(slots_of(target, pack_.parts, staging.most_bytes())),
      ring_(slots_, pack_.parts),
      pinned_(staging.room(slots_ * round_up(target.packed_bytes, kPageBytes))),
      problems_(target.count * sizeof(std::uint32_t)) {
  lanes_.emplace_back();
  if (target.arrangement != nullptr) {
    packed_ = device::Buffer(target.packed_bytes);
    lanes_.back().packed = packed_.data();
    // While one expert is arranged the next is copied, to where the last one will be.
    if (lends_place(target.count - 1))
      lanes_.emplace_back().packed = target.experts + (target.count - 1) * target.stride;
  }
  for (std::size_t slot = 0; slot < slots_; ++slot) copied_.emplace_back(device::EventUse::wait);
  const std::vector<std::uint32_t> none(target.count);
  device::copy_to_device(problems_.data(), std::as_bytes(std::span(none)));
}

ExpertUpload::~ExpertUpload() {
  // What was begun reads slots and writes experts that others may free next.
  for (const Lane& lane : lanes_) (void)lane.stream.settle();  // run() has thrown what failed
}

// The last one's place has room for a blob until it comes itself.
bool ExpertUpload::lends_place(std::uint64_t local) const {
  return target_.count > 1 && local == target_.count - 1 && target_.stride >= target_.packed_bytes;
}

std::span<std::byte> ExpertUpload::blob_of(std::size_t slot) const {
  return pinned_.subspan(slot * round_up(target_.packed_bytes, kPageBytes), target_.packed_bytes);
}

std::vector<std::uint32_t> ExpertUpload::run() {
  const int gpu = device::current_gpu();
  run_beside(
      [&] {
        try {
          device::use_gpu(gpu);
          copy_all();
        } catch (...) {
          ring_.stop();
          throw;
        }
      },
      [&] { pack_all(); });
  for (const Lane& lane : lanes_) lane.stream.wait();
  std::vector<std::uint32_t> problems(target_.count);
  device::copy_to_host(std::as_writable_bytes(std::span(problems)), problems_.data());
  return problems;
}

// The first experts are whole after a few parts, while others have not begun.
void ExpertUpload::pack_all() {
  const RingCloser closer(ring_);
  parallel_for(target_.count * pack_.parts, packing_threads(usable_threads()),
               [&](std::uint64_t index) {
                 try {
                   pack_part(index / pack_.parts, static_cast<unsigned>(index % pack_.parts));
                 } catch (...) {
                   ring_.stop();  // its expert will keep its slot, and others may wait for one
                   throw;
                 }
               });
}

// Once something has failed, parts of experts without a slot do nothing. All that come before the
// one that failed have a slot: the lowest that fails is found whoever fails first.
void ExpertUpload::pack_part(std::uint64_t local, unsigned part) {
  const auto slot = ring_.slot_of(local);
  if (!slot) return;
  const std::span<std::byte> blob = blob_of(*slot);
  pack_.part(local, part, blob);
  if (!ring_.end_part(local)) return;
  if (pack_.check) pack_.check(local, blob);
  ring_.hand_over(local);
}

// New slots first: while one is copied the next must be in the queue.
void ExpertUpload::copy_all() {
  std::deque<std::size_t> on_their_way;
  for (;;) {
    const auto filled = on_their_way.empty() ? ring_.take() : ring_.try_take();
    if (filled) {
      start(*filled);
      on_their_way.push_back(filled->slot);
    } else if (on_their_way.empty()) {
      return;
    } else {
      copied_[on_their_way.front()].wait();
      ring_.give_back(on_their_way.front());
      on_their_way.pop_front();
    }
  }
}

void ExpertUpload::start(const StagingRing::Filled& filled) {
  if (lanes_.size() > 1 && lends_place(filled.item)) {
    lanes_.back().stream.wait();
    lanes_.pop_back();
  }
  Lane& lane = lanes_[started_++ % lanes_.size()];
  void* stream = lane.stream.handle();
  std::byte* place = target_.experts + filled.item * target_.stride;
  const bool arranges = target_.arrangement != nullptr;
  device::start_copy(arranges ? lane.packed : place, blob_of(filled.slot), stream);
  copied_[filled.slot].record(stream);
  if (!arranges) return;
  int code = device::fill(place, std::byte{0}, target_.stride, stream);  // its padding
  if (code == 0) {
    code = target_.arrangement->arrange(
        {.shape = target_.shape,
         .offsets = target_.offsets,
         .packed = lane.packed,
         .arranged = place,
         .problems = reinterpret_cast<std::uint32_t*>(problems_.data()) + filled.item,
         .stream = stream});
  }
  if (code == 0) return;
  throw Error(ErrorCode::environment, {.code = "MOXIE-E005",
                                       .message = "the device could not arrange an expert",
                                       .got = device::error_text(code)});
}

}  // namespace moxie

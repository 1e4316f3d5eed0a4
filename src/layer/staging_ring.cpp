// SPDX-License-Identifier: Apache-2.0
// One lock: a part stands for a megabyte, so it is taken some ten thousand times a second at most.
#include "layer/staging_ring.hpp"

#include <algorithm>
#include <numeric>

#include "base/checked.hpp"

namespace moxie {

StagingRing::StagingRing(std::size_t slots, unsigned parts) : parts_(parts) {
  free_.resize(slots);
  std::iota(free_.begin(), free_.end(), std::size_t{0});
  filling_.reserve(slots);
}

std::vector<StagingRing::Filling>::iterator StagingRing::find(std::uint64_t item) {
  return std::ranges::find(filling_, item, &Filling::item);
}

// In turn: an item that overtook others could take the slot that they need to be done first.
std::optional<std::size_t> StagingRing::slot_of(std::uint64_t item) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] {
    return stopped_ || find(item) != filling_.end() || (item == next_ && !free_.empty());
  });
  if (const auto begun = find(item); begun != filling_.end()) return begun->slot;
  if (stopped_) return std::nullopt;
  const std::size_t slot = free_.back();
  free_.pop_back();
  filling_.push_back({.item = item, .slot = slot, .left = parts_});
  ++next_;
  lock.unlock();
  changed_.notify_all();  // those who wait for this item, or for their turn
  return slot;
}

bool StagingRing::end_part(std::uint64_t item) {
  const std::lock_guard lock(mutex_);
  const auto ended = find(item);
  MOXIE_CHECK(ended != filling_.end() && ended->left > 0, "a part ends that has begun");
  return --ended->left == 0;
}

void StagingRing::hand_over(std::uint64_t item) {
  {
    const std::lock_guard lock(mutex_);
    const auto full = find(item);
    MOXIE_CHECK(full != filling_.end() && full->left == 0, "what is handed over is full");
    filled_.push_back({.slot = full->slot, .item = item});
    filling_.erase(full);
  }
  changed_.notify_all();
}

void StagingRing::close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
}

std::optional<StagingRing::Filled> StagingRing::take() {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return closed_ || !filled_.empty(); });
  }
  return try_take();
}

std::optional<StagingRing::Filled> StagingRing::try_take() {
  const std::lock_guard lock(mutex_);
  if (filled_.empty()) return std::nullopt;
  const Filled filled = filled_.front();
  filled_.pop_front();
  return filled;
}

void StagingRing::give_back(std::size_t slot) {
  {
    const std::lock_guard lock(mutex_);
    free_.push_back(slot);
  }
  changed_.notify_all();
}

void StagingRing::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
}

}  // namespace moxie

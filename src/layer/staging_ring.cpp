// SPDX-License-Identifier: Apache-2.0
// One lock: a slot stands for megabytes, so it is taken some thousand times a second at most.
#include "layer/staging_ring.hpp"

#include <numeric>
#include <utility>

namespace moxie {

StagingRing::StagingRing(std::size_t slots) {
  free_.resize(slots);
  std::iota(free_.begin(), free_.end(), std::size_t{0});
}

std::size_t StagingRing::acquire() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return problem_ != nullptr || !free_.empty(); });
  if (problem_ != nullptr) std::rethrow_exception(problem_);
  const std::size_t slot = free_.back();
  free_.pop_back();
  return slot;
}

void StagingRing::hand_over(Filled filled) {
  {
    const std::lock_guard lock(mutex_);
    filled_.push_back(filled);
  }
  changed_.notify_all();
}

void StagingRing::give_back(std::size_t slot) {
  {
    const std::lock_guard lock(mutex_);
    free_.push_back(slot);
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

void StagingRing::fail(std::exception_ptr problem) {
  {
    const std::lock_guard lock(mutex_);
    problem_ = std::move(problem);
  }
  changed_.notify_all();
}

}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// Slots that pass from threads that fill them to one that empties them, and back.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <vector>

namespace moxie {

// What lies in a slot is the user's business; the ring says whose turn it is. Nobody waits for ever
// as long as every slot that was acquired is handed over or given back, and every slot that was
// taken is given back or fail() is called.
class StagingRing {
 public:
  struct Filled {
    std::size_t slot = 0;
    std::uint64_t item = 0;  // what was put into it
  };

  // At least one slot.
  explicit StagingRing(std::size_t slots);

  // For those who fill: waits for a free slot. Throws what fail() was given.
  [[nodiscard]] std::size_t acquire();
  void hand_over(Filled filled);
  // A slot that is free again: one that was not filled, or one that is empty.
  void give_back(std::size_t slot);
  // No slot will be handed over any more.
  void close();

  // For the one who empties, in the order of hand_over(): waits until there is one; nothing once
  // the ring is closed and empty.
  [[nodiscard]] std::optional<Filled> take();
  // Does not wait.
  [[nodiscard]] std::optional<Filled> try_take();
  // Slots are no longer emptied: those who wait, or come later, get this exception.
  void fail(std::exception_ptr problem);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::size_t> free_;  // with room for all: giving back never fails
  std::deque<Filled> filled_;
  bool closed_ = false;
  std::exception_ptr problem_;
};

// Closes a ring when those who fill it are done, in whatever way.
class RingCloser {
 public:
  explicit RingCloser(StagingRing& ring) : ring_(ring) {}
  ~RingCloser() { ring_.close(); }
  RingCloser(const RingCloser&) = delete;
  RingCloser& operator=(const RingCloser&) = delete;

 private:
  StagingRing& ring_;
};

// A slot in the hands of one who fills it: given back unless it is handed over.
class FreeSlot {
 public:
  explicit FreeSlot(StagingRing& ring) : ring_(ring), slot_(ring.acquire()) {}
  ~FreeSlot() {
    if (held_) ring_.give_back(slot_);
  }
  FreeSlot(const FreeSlot&) = delete;
  FreeSlot& operator=(const FreeSlot&) = delete;

  [[nodiscard]] std::size_t index() const { return slot_; }
  void hand_over(std::uint64_t item) {
    ring_.hand_over({.slot = slot_, .item = item});
    held_ = false;
  }

 private:
  StagingRing& ring_;
  std::size_t slot_;
  bool held_ = true;
};

}  // namespace moxie

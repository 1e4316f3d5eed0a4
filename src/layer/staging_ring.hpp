// SPDX-License-Identifier: Apache-2.0
// Slots that pass from threads that fill them to one that empties them, and back.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <vector>

namespace moxie {

// Items 0, 1, .. go through the slots; several threads fill one, a part each. What lies in a slot
// is the user's business; the ring says whose turn it is.
//
// Nobody waits for ever as long as parts are begun in the order of their items (those of an item in
// any order), every slot that was taken is given back, and whoever fails calls stop().
class StagingRing {
 public:
  struct Filled {
    std::size_t slot = 0;
    std::uint64_t item = 0;  // what was put into it
  };

  // At least one slot; items of at least one part.
  StagingRing(std::size_t slots, unsigned parts);

  // For those who fill. The slot of an item whose parts have not all ended: whoever asks first
  // waits until it is the item's turn and a slot is free. Nothing when the ring was stopped before.
  [[nodiscard]] std::optional<std::size_t> slot_of(std::uint64_t item);
  // A part of the item is written. True for the one that ends last, who sees what all have written
  // and hands the item over.
  [[nodiscard]] bool end_part(std::uint64_t item);
  void hand_over(std::uint64_t item);
  // Nothing will be handed over any more.
  void close();

  // For the one who empties, in the order of hand_over(): waits until there is one; nothing once
  // the ring is closed and empty.
  [[nodiscard]] std::optional<Filled> take();
  // Does not wait.
  [[nodiscard]] std::optional<Filled> try_take();
  void give_back(std::size_t slot);

  // Items that have no slot yet get none any more; those that have one may go on.
  void stop();

 private:
  struct Filling {
    std::uint64_t item = 0;
    std::size_t slot = 0;
    unsigned left = 0;  // parts
  };

  // Of an item with a slot; end() for others.
  std::vector<Filling>::iterator find(std::uint64_t item);

  unsigned parts_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::size_t> free_;  // with room for all: giving back never fails
  std::vector<Filling> filling_;   // the same
  std::uint64_t next_ = 0;         // the item whose turn it is to get a slot
  std::deque<Filled> filled_;
  bool closed_ = false;
  bool stopped_ = false;
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

}  // namespace moxie

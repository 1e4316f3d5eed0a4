// SPDX-License-Identifier: Apache-2.0
// Reads the sources of the steps to come while one is packed.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "moxie/checkpoint.hpp"
#include "pack/pack_steps.hpp"
#include "pack/source_window.hpp"

namespace moxie {

// A step of the file with this number; the last of it or not.
struct NextStep {
  std::size_t file = 0;
  bool last = false;
  Step step;
};

class ReadAhead {
 public:
  ReadAhead(const Checkpoint& checkpoint, std::size_t windows);

  // Asks `next` for steps, and reads their sources, on a thread of its own, until there are none;
  // calls `use` with each on this thread, in the same order. Throws what either threw first.
  void run(const std::function<std::optional<NextStep>()>& next,
           const std::function<void(const NextStep&, const SourceWindow&)>& use);

 private:
  struct Ready {
    NextStep next;
    SourceWindow* window = nullptr;
  };

  void read_all(const std::function<std::optional<NextStep>()>& next);
  void use_all(const std::function<void(const NextStep&, const SourceWindow&)>& use);
  void stop();

  const Checkpoint& checkpoint_;
  std::vector<SourceWindow> windows_;
  std::vector<SourceWindow*> free_;
  std::deque<Ready> ready_;
  bool read_ = false;     // all of it
  bool stopped_ = false;  // what is not read is not wanted any more
  std::mutex mutex_;
  std::condition_variable changed_;
};

}  // namespace moxie

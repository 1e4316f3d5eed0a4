// SPDX-License-Identifier: Apache-2.0
// Windows go round: free, read, used.
#include "pack/read_ahead.hpp"

#include <utility>

#include "base/parallel.hpp"

namespace moxie {

ReadAhead::ReadAhead(const Checkpoint& checkpoint, std::size_t windows)
    : checkpoint_(checkpoint), windows_(windows) {
  for (SourceWindow& window : windows_) free_.push_back(&window);
}

void ReadAhead::run(const std::function<std::optional<NextStep>()>& next,
                    const std::function<void(const NextStep&, const SourceWindow&)>& use) {
  const auto stopping = [this](const auto& work) {
    try {
      work();
    } catch (...) {
      stop();
      throw;
    }
  };
  run_beside([&] { stopping([&] { read_all(next); }); }, [&] { stopping([&] { use_all(use); }); });
}

void ReadAhead::stop() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
}

void ReadAhead::read_all(const std::function<std::optional<NextStep>()>& next) {
  while (std::optional<NextStep> step = next()) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return stopped_ || !free_.empty(); });
    if (stopped_) return;
    SourceWindow* window = free_.back();
    free_.pop_back();
    lock.unlock();
    window->fill(checkpoint_, step->step.sources);
    lock.lock();
    ready_.push_back({std::move(*step), window});
    changed_.notify_all();
  }
  const std::lock_guard lock(mutex_);
  read_ = true;
  changed_.notify_all();
}

void ReadAhead::use_all(const std::function<void(const NextStep&, const SourceWindow&)>& use) {
  for (;;) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return stopped_ || read_ || !ready_.empty(); });
    if (stopped_ || ready_.empty()) return;
    const Ready ready = std::move(ready_.front());
    ready_.pop_front();
    lock.unlock();
    use(ready.next, *ready.window);
    lock.lock();
    free_.push_back(ready.window);
    changed_.notify_all();
  }
}

}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// One lock over all of it: what is submitted is megabytes.
#include "pack/write_behind.hpp"

#include <utility>

#include "base/parallel.hpp"

namespace moxie {

WriteBehind::WriteBehind(std::size_t buffers, std::size_t buffer_bytes) {
  for (std::size_t i = 0; i < buffers; ++i) {
    memory_.push_back(std::make_unique_for_overwrite<std::byte[]>(buffer_bytes));
    free_.emplace_back(memory_.back().get(), buffer_bytes);
  }
}

void WriteBehind::run(const std::function<void()>& fill) {
  run_beside([this] { write_all(); },
             [&] {
               try {
                 fill();
               } catch (...) {
                 close(true);
                 throw;
               }
               close(false);
             });
  if (failure_) std::rethrow_exception(failure_);
}

WriteBehind::Buffer WriteBehind::free_buffer() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !free_.empty() || failure_; });
  if (failure_) std::rethrow_exception(failure_);
  const Buffer buffer = free_.back();
  free_.pop_back();
  return buffer;
}

void WriteBehind::submit(Buffer buffer, std::function<void()> write) {
  const std::lock_guard lock(mutex_);
  work_.push_back({buffer, std::move(write)});
  changed_.notify_all();
}

void WriteBehind::close(bool drop) {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  if (drop) work_.clear();
  changed_.notify_all();
}

void WriteBehind::write_all() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return closed_ || !work_.empty(); });
    if (work_.empty()) return;
    Work work = std::move(work_.front());
    work_.pop_front();
    lock.unlock();
    std::exception_ptr failure;
    try {
      work.write();
    } catch (...) {
      failure = std::current_exception();
    }
    work.write = nullptr;  // files that it held are closed by now
    lock.lock();
    if (!work.buffer.empty()) free_.push_back(work.buffer);
    if (failure) {
      failure_ = failure;
      work_.clear();
      changed_.notify_all();
      return;
    }
    changed_.notify_all();
  }
}

}  // namespace moxie

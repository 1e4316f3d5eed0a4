// SPDX-License-Identifier: Apache-2.0
// Buffers that one thread fills while another writes those that are full.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace moxie {

class WriteBehind {
 public:
  using Buffer = std::span<std::byte>;

  // Their memory is touched when they are filled.
  WriteBehind(std::size_t buffers, std::size_t buffer_bytes);
  WriteBehind(const WriteBehind&) = delete;
  ~WriteBehind() = default;
  WriteBehind& operator=(const WriteBehind&) = delete;

  // Calls `fill` on this thread while another does what fill submits; returns when all of it is
  // done. Throws what either threw first; what is not begun then is dropped.
  void run(const std::function<void()>& fill);

  // For `fill`: a buffer that nobody uses, when there is one. Throws what a write threw.
  [[nodiscard]] Buffer free_buffer();
  // Work to be done after what was submitted before; then the buffer, which may be none, is free
  // again.
  void submit(Buffer buffer, std::function<void()> write);

 private:
  struct Work {
    Buffer buffer;
    std::function<void()> write;
  };

  void write_all();
  void close(bool drop);

  std::vector<std::unique_ptr<std::byte[]>> memory_;
  std::vector<Buffer> free_;
  std::deque<Work> work_;
  bool closed_ = false;
  std::exception_ptr failure_;
  std::mutex mutex_;
  std::condition_variable changed_;
};

}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// Memory, order and time on the current GPU. Handles are opaque, so that no caller sees the CUDA
// headers. Without CUDA every constructor throws Error(unsupported) MOXIE-E004.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

namespace moxie::device {

// A queue of work that nothing else waits for.
class Stream {
 public:
  Stream();
  ~Stream();  // NOLINT(performance-trivially-destructible): the stub alone does nothing
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  [[nodiscard]] void* handle() const { return handle_; }
  // Until all work is done. Errors: Error(environment) MOXIE-E005 with the device's own text.
  void wait() const;
  // The same where nothing may be thrown; answers the runtime's code, 0 when all is well.
  int settle() const noexcept;

 private:
  void* handle_ = nullptr;
};

// A point in a stream's work: to take times between, or for a thread to sleep until it is passed.
enum class EventUse : std::uint8_t { time, wait };
class Event {
 public:
  explicit Event(EventUse use = EventUse::time);
  ~Event();  // NOLINT(performance-trivially-destructible): the stub alone does nothing
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(void* stream);
  // Until the point is passed. Errors: Error(environment) MOXIE-E005 with the device's own text.
  void wait() const;
  // Of two events for times; both must have been passed.
  [[nodiscard]] double us_since(const Event& earlier) const;

 private:
  void* handle_ = nullptr;
};

// Device memory; its address does not change while it lives.
class Buffer {
 public:
  Buffer() = default;
  // Errors: Error(environment) MOXIE-E003 when there is not enough.
  explicit Buffer(std::uint64_t bytes);
  ~Buffer();  // NOLINT(performance-trivially-destructible): the stub alone does nothing
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
};

// Host memory that the device copies from and to by itself: page-locked.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  // Errors: Error(environment) MOXIE-E003 when the system does not lock so much.
  explicit PinnedBuffer(std::uint64_t bytes);
  ~PinnedBuffer();  // NOLINT(performance-trivially-destructible): the stub alone does nothing
  PinnedBuffer(PinnedBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;

  [[nodiscard]] std::span<std::byte> bytes() const { return {data_, bytes_}; }

 private:
  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
};

// The GPU that calls of this thread go to; another thread starts with the first one.
int current_gpu();
void use_gpu(int index);

// Puts a copy from a PinnedBuffer into a stream. Errors: Error(environment) MOXIE-E005.
void start_copy(std::byte* to, std::span<const std::byte> from, void* stream);

// Copies that are done when they return; through pinned memory, piece by piece.
void copy_to_device(std::byte* to, std::span<const std::byte> from);
void copy_to_host(std::span<std::byte> to, const std::byte* from);

// Fills in the order of a stream. Returns the runtime's code, 0 when all is well.
int fill(void* at, std::byte value, std::uint64_t bytes, void* stream) noexcept;

// From one place of device memory to another, in the order of the default stream.
int copy_on_device(std::byte* to, const std::byte* from, std::uint64_t bytes) noexcept;

// Until what is in the default stream is done. Returns the runtime's code.
int wait_for_default_stream() noexcept;

// "cudaErrorIllegalAddress: an illegal memory access was encountered".
std::string error_text(int code);

// A graph of what was put into a stream between begin and end.
class Graph {
 public:
  explicit Graph(Stream& stream);  // begins
  ~Graph();  // NOLINT(performance-trivially-destructible): the stub alone does nothing
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void end();
  void launch() const;  // on the same stream

 private:
  Stream& stream_;
  void* executable_ = nullptr;
};

}  // namespace moxie::device

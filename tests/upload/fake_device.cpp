// SPDX-License-Identifier: Apache-2.0
// The device layer over threads.
#include "upload/fake_device.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <limits>
#include <mutex>
#include <thread>
#include <utility>

#include "device/device.hpp"
#include "moxie/status.hpp"

namespace moxie {

namespace {

std::atomic<int> copies_left{std::numeric_limits<int>::max()};
std::atomic<int> alive_now{0};
std::atomic<int> ended_at_work_now{0};
thread_local int used_gpu = 0;

// What a stream's handle points to.
class Queue {
 public:
  Queue() : thread_([this] { run(); }) {}
  ~Queue() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
      if (busy_ || !work_.empty()) ++ended_at_work_now;
    }
    changed_.notify_all();
    thread_.join();
  }
  void put(std::function<void()> work) {
    {
      const std::lock_guard lock(mutex_);
      work_.push_back(std::move(work));
    }
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return work_.empty() && !busy_; });
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return ended_ || !work_.empty(); });
      if (work_.empty()) return;
      const std::function<void()> work = std::move(work_.front());
      work_.pop_front();
      busy_ = true;
      lock.unlock();
      work();
      lock.lock();
      busy_ = false;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  bool ended_ = false;
  bool busy_ = false;
  std::thread thread_;
};

// What an event's handle points to.
struct Point {
  std::mutex mutex;
  std::condition_variable changed;
  int recorded = 0;
  int passed = 0;
};

}  // namespace

namespace test {

void FakeDevice::fail_after(int copies) { copies_left = copies; }
void FakeDevice::never_fail() { copies_left = std::numeric_limits<int>::max(); }
int FakeDevice::alive() { return alive_now; }
int FakeDevice::ended_at_work() { return ended_at_work_now; }
void FakeDevice::put(void* stream, std::function<void()> work) {
  if (stream == nullptr) return work();
  static_cast<Queue*>(stream)->put(std::move(work));
}

}  // namespace test

namespace device {

Stream::Stream() : handle_(new Queue) { ++alive_now; }
Stream::~Stream() {
  delete static_cast<Queue*>(handle_);
  --alive_now;
}
void Stream::wait() const { static_cast<Queue*>(handle_)->wait(); }
int Stream::settle() const noexcept {
  static_cast<Queue*>(handle_)->wait();
  return 0;
}

Event::Event(EventUse /*use*/) : handle_(new Point) { ++alive_now; }
Event::~Event() {
  delete static_cast<Point*>(handle_);
  --alive_now;
}
void Event::record(void* stream) {
  auto* point = static_cast<Point*>(handle_);
  int number = 0;
  {
    const std::lock_guard lock(point->mutex);
    number = ++point->recorded;
  }
  test::FakeDevice::put(stream, [point, number] {
    const std::lock_guard lock(point->mutex);
    point->passed = number;
    point->changed.notify_all();
  });
}
void Event::wait() const {
  auto* point = static_cast<Point*>(handle_);
  std::unique_lock lock(point->mutex);
  point->changed.wait(lock, [&] { return point->passed >= point->recorded; });
}

Buffer::Buffer(std::uint64_t bytes) : data_(new std::byte[bytes]), bytes_(bytes) {
  std::memset(data_, 0xCD, bytes);
  ++alive_now;
}
Buffer::~Buffer() {
  if (data_ == nullptr) return;
  delete[] data_;
  --alive_now;
}
PinnedBuffer::PinnedBuffer(std::uint64_t bytes) : data_(new std::byte[bytes]), bytes_(bytes) {
  ++alive_now;
}
PinnedBuffer::~PinnedBuffer() {
  if (data_ == nullptr) return;
  delete[] data_;
  --alive_now;
}

int current_gpu() { return test::FakeDevice::kGpu; }
void use_gpu(int index) { used_gpu = index; }

void start_copy(std::byte* to, std::span<const std::byte> from, void* stream) {
  if (used_gpu != test::FakeDevice::kGpu)
    throw Error(ErrorCode::internal, {.code = "none", .message = "a copy for another GPU"});
  if (copies_left.fetch_sub(1) <= 0) {
    copies_left = 0;
    throw Error(ErrorCode::environment, {.code = "MOXIE-E005", .message = "no copy"});
  }
  test::FakeDevice::put(stream, [to, from] {
    std::this_thread::sleep_for(std::chrono::microseconds(30));
    std::memcpy(to, from.data(), from.size());
  });
}
void copy_to_device(std::byte* to, std::span<const std::byte> from) {
  if (!from.empty()) std::memcpy(to, from.data(), from.size());
}
void copy_to_host(std::span<std::byte> to, const std::byte* from) {
  if (!to.empty()) std::memcpy(to.data(), from, to.size());
}
int fill(void* at, std::byte value, std::uint64_t bytes, void* stream) noexcept {
  test::FakeDevice::put(stream, [=] { std::memset(at, std::to_integer<int>(value), bytes); });
  return 0;
}
int copy_on_device(std::byte* to, const std::byte* from, std::uint64_t bytes) noexcept {
  std::memcpy(to, from, bytes);
  return 0;
}
int wait_for_default_stream() noexcept { return 0; }
std::string error_text(int code) { return "error " + std::to_string(code); }

}  // namespace device
}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// A device made of host memory and threads, for what must be right before there is a GPU to try.
#pragma once

#include <cstdint>
#include <functional>

namespace moxie::test {

// The device layer's functions are defined beside this: a stream is a thread that does what was put
// into it, in order and late. Copies must be started by a thread that uses the GPU of the caller.
struct FakeDevice {
  static constexpr int kGpu = 3;

  // Copies from now on that are taken before one fails.
  static void fail_after(int copies);
  static void never_fail();
  // Streams, events and buffers that exist.
  static int alive();
  // Streams so far that ended before their work was done: a GPU's do not wait for it.
  static int ended_at_work();
  // Puts work into a stream; null: does it now.
  static void put(void* stream, std::function<void()> work);
};

}  // namespace moxie::test

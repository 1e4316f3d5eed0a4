// SPDX-License-Identifier: Apache-2.0
// Kernels that do nothing but read a GPU's memory, or nothing at all.
#pragma once

#include <cstddef>
#include <cstdint>

namespace moxie::measure {

inline constexpr std::uint64_t kReadAlign = 16;  // sizes and addresses are multiples

// One way to read.
struct ReadKernel {
  unsigned threads = 0;  // of a block
  unsigned blocks = 0;   // on each multiprocessor
  unsigned loads = 0;    // of 16 bytes that a thread has in flight: 1, 2, 4 or 8
};
// Few loads win where there is little to read: a thread that has fewer words than loads takes them
// one by one.
inline constexpr ReadKernel kReadKernels[] = {
    {1024, 2, 1}, {1024, 2, 2}, {512, 4, 4}, {1024, 2, 4}, {512, 2, 8}};

struct ReadCall {
  ReadKernel kernel;
  const std::byte* from = nullptr;
  std::uint64_t bytes = 0;
  std::uint32_t* sink = nullptr;  // one word; never written, which no compiler knows
  unsigned multiprocessors = 0;
  void* stream = nullptr;
};

// All return the runtime's code, 0 when all is well.
int read(const ReadCall& call) noexcept;
// Numbers without a pattern: equal bytes would take less power.
int fill_unevenly(std::byte* at, std::uint64_t bytes, void* stream) noexcept;
// A kernel of one thread that may start before the one in front has ended, as those of a call.
int launch_nothing(void* stream) noexcept;

}  // namespace moxie::measure

// SPDX-License-Identifier: Apache-2.0
// What the system counts for this process.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstddef>
#include <cstring>

#include "moxie/measure.hpp"

namespace moxie {
namespace {

TEST(HostMemory, ThePeakKeepsWhatWasGivenBackUntilItIsRestarted) {
  constexpr std::size_t kBytes = std::size_t{64} << 20;
  if (!restart_host_peak()) GTEST_SKIP() << "this kernel does not restart the peak";
  const HostMemory before = host_memory();
  // Of the system and not of the heap, which keeps what is given back (a sanitizer's for long).
  void* block = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(block, MAP_FAILED);
  std::memset(block, 1, kBytes);
  EXPECT_GE(host_memory().resident_bytes, before.resident_bytes + kBytes / 2);
  ASSERT_EQ(munmap(block, kBytes), 0);
  EXPECT_GE(host_memory().peak_bytes, before.resident_bytes + kBytes / 2);
  ASSERT_TRUE(restart_host_peak());
  EXPECT_LT(host_memory().peak_bytes, before.resident_bytes + kBytes / 2);
}

}  // namespace
}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// What the system counts for this process.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <memory>

#include "moxie/measure.hpp"

namespace moxie {
namespace {

TEST(HostMemory, ThePeakKeepsWhatWasGivenBackUntilItIsRestarted) {
  constexpr std::size_t kBytes = std::size_t{64} << 20;
  if (!restart_host_peak()) GTEST_SKIP() << "this kernel does not restart the peak";
  const HostMemory before = host_memory();
  {
    const auto block = std::make_unique_for_overwrite<std::byte[]>(kBytes);
    std::fill_n(block.get(), kBytes, std::byte{1});
    EXPECT_GE(host_memory().resident_bytes, before.resident_bytes + kBytes / 2);
  }
  EXPECT_GE(host_memory().peak_bytes, before.resident_bytes + kBytes / 2);
  ASSERT_TRUE(restart_host_peak());
  EXPECT_LT(host_memory().peak_bytes, before.resident_bytes + kBytes / 2);
}

}  // namespace
}  // namespace moxie

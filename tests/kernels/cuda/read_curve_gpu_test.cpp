// SPDX-License-Identifier: Apache-2.0
// The read ceiling on a device: larger takes longer, near the rate of its memory.
#include <gtest/gtest.h>

#include "moxie/measure.hpp"
#include "support/device_memory.hpp"

namespace moxie {
namespace {

using ReadCeiling = test::OnGpu;

TEST_F(ReadCeiling, GrowsWithTheBytesAndReachesAMemorysRate) {
  const std::uint64_t mib = std::uint64_t{1} << 20;
  const ReadCurve curve = measure_read_curve({512 * mib, 8 * mib + 8, 64 * mib, 64 * mib, 0});
  ASSERT_EQ(curve.points.size(), 3U);
  EXPECT_EQ(curve.points[0].bytes, 8 * mib + 16);  // whole loads
  EXPECT_LT(curve.points[0].us, curve.points[1].us);
  EXPECT_LT(curve.points[1].us, curve.points[2].us);
  // No memory of a GPU with a compute capability of 8.0 or more is slower than 100 GB/s, or faster
  // than 20 TB/s: a kernel that skipped its loads or a cache would be.
  for (const ReadPoint& point : curve.points) {
    const double gbps = static_cast<double>(point.bytes) * 1e-3 / point.us;
    EXPECT_GT(gbps, 100);
    EXPECT_LT(gbps, 20'000);
  }
}

}  // namespace
}  // namespace moxie

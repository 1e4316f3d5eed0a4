// SPDX-License-Identifier: Apache-2.0
// The loops behind ceilings, the read test, and the waits of threads.
#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <thread>
#include <vector>

#include "base/cpu_features.hpp"
#include "base/parallel.hpp"
#include "measure/pinned_loops.hpp"
#include "moxie/measure.hpp"

namespace moxie {
namespace {

bool has(const std::string& feature) {
  const std::vector<std::string> features = cpu_features();
  return std::ranges::find(features, feature) != features.end();
}

TEST(PinnedLoops, AreThereWhereTheProcessorHasTheInstruction) {
  EXPECT_EQ(measure::vnni_loop().run != nullptr, has("avx512_vnni"));
  EXPECT_EQ(measure::bf16_loop().run != nullptr, has("avx512_bf16"));
  EXPECT_EQ(measure::maddubs_loop().run != nullptr, has("avx2"));
  for (const auto& loop : {measure::vnni_loop(), measure::bf16_loop(), measure::maddubs_loop()}) {
    if (loop.run == nullptr) continue;
    EXPECT_GT(loop.ops, 0);
    loop.run(1);
    loop.run(1000);
  }
}

// A page that may not be read follows the last byte.
TEST(PinnedLoops, ReadExactlyWhatTheyAreGiven) {
  std::vector<std::byte> memory(3 * measure::kReadBlock, std::byte{1});
  for (const std::uint64_t blocks : {0U, 1U, 2U, 3U})
    measure::read_loop()(memory.data(), blocks * measure::kReadBlock);
  EXPECT_EQ(std::ranges::count(memory, std::byte{1}), std::ssize(memory));
}

TEST(ReadTest, IsPlausibleForEveryNumberOfThreads) {
  for (unsigned threads = 1; threads <= usable_threads() + 1; ++threads) {
    ReadTest test(threads);
    for (int pass = 0; pass < 3; ++pass) {
      const double gbps = test.gbps();
      EXPECT_TRUE(gbps > 0.1 && gbps < 5000) << gbps << " with " << threads;
    }
  }
}

TEST(Ceilings, HoldTheRatesOfInstructionsThatAreThere) {
  const Ceilings ceilings = measure_ceilings(usable_threads());
  RecordProperty("bf16_tflops", std::to_string(ceilings.bf16_tflops));
  RecordProperty("vnni_tops", std::to_string(ceilings.vnni_tops));
  RecordProperty("maddubs_tops", std::to_string(ceilings.maddubs_tops));
  EXPECT_EQ(ceilings.bf16_tflops > 0, has("avx512_bf16"));
  EXPECT_EQ(ceilings.vnni_tops > 0, has("avx512_vnni"));
  EXPECT_EQ(ceilings.maddubs_tops > 0, has("avx2"));
}

TEST(CoreWait, IsAShareOfTheTimeGoneBy) {
  CoreWait wait;
  EXPECT_GE(wait.share(), 0);
  wait.start();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_LT(wait.share(), 1);  // who sleeps does not wait for a core
}

// Two threads that spin on one core: one of them waits at any time.
TEST(CoreWait, SeesThreadsThatShareACore) {
  const auto spin = [](std::chrono::milliseconds time) {
    const auto end = std::chrono::steady_clock::now() + time;
    while (std::chrono::steady_clock::now() < end) {
    }
  };
  cpu_set_t before;
  CPU_ZERO(&before);
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++cpu) {
    if (CPU_ISSET(cpu, &before)) CPU_SET(cpu, &one);
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  CoreWait wait;
  std::thread other(spin, std::chrono::milliseconds(200));
  spin(std::chrono::milliseconds(200));
  const double share = wait.share();
  other.join();
  ASSERT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
  if (share == 0) GTEST_SKIP() << "this system does not count run delays";
  EXPECT_GT(share, kMostCoreWait);
}

}  // namespace
}  // namespace moxie

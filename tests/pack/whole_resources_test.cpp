// SPDX-License-Identifier: Apache-2.0
// A source that is read once for many ranks, in bounded memory.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>

#include "moxie/pack.hpp"
#include "moxie/synth.hpp"
#include "support/folder_bytes.hpp"
#include "support/packed_model.hpp"
#include "support/resident_memory.hpp"
#include "support/threads.hpp"
#include "support/whole_checkpoint.hpp"

namespace moxie {
namespace {

using test::kBesideBuffers;
using test::kMiB;
using test::plan_of;

// 28 MB of source, most of it embedding and head; 64 ranks make 98 MB of it.
TEST(PackWholeMemory, SixtyFourRanksStayInsideTheBound) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "shadow memory counts as resident";
#endif
  if (!test::reset_peak()) GTEST_SKIP() << "/proc/self/clear_refs can not reset the peak";
  const test::TempFolder folder;
  SynthOptions options;
  options.config = test::one_layer_v4({{"hidden_size", 256}, {"vocab_size", 24576}});
  options.whole = true;
  options.pattern = Pattern::monotonic;
  synthesise(folder.path() / "model", options);
  const MoeModel model = read_model(open_checkpoint(folder.path() / "model"));
  const ShardPlan plan = plan_of(model, 64);
  const auto peak = [&](std::uint64_t memory, const char* out) {
    return test::peak_of_packing(model, plan, {.out = folder.path() / out, .memory_bytes = memory});
  };
  EXPECT_LT(peak(6 * kMiB, "bounded"), 6 * kMiB + kBesideBuffers);
  EXPECT_GT(peak(1024 * kMiB, "unbounded"), 24 * kMiB) << "the measurement sees it";
  EXPECT_TRUE(test::same_folders(folder.path() / "unbounded", folder.path() / "bounded"));
}

TEST(PackWholeThreads, AnyNumberOfThreadsGivesTheSameBytes) {
  const test::WholeCheckpoint model({.config = test::narrow_v4()});
  const ShardPlan plan = plan_of(*model, 3, 2);
  for (const unsigned number : {1U, 2U, 8U}) {
    const test::Threads threads(number);
    pack_to_folder(*model, plan, {.out = model / std::to_string(number)});
  }
  EXPECT_TRUE(test::same_folders(model / "1", model / "2"));
  EXPECT_TRUE(test::same_folders(model / "1", model / "8"));
}

}  // namespace
}  // namespace moxie

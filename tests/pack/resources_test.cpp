// SPDX-License-Identifier: Apache-2.0
// Memory and threads change how packing goes, never what it writes.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "moxie/pack.hpp"
#include "moxie/synth.hpp"
#include "support/folder_bytes.hpp"
#include "support/packed_model.hpp"
#include "support/refusal.hpp"
#include "support/resident_memory.hpp"
#include "support/threads.hpp"

namespace moxie {
namespace {

using test::kBesideBuffers;
using test::kMiB;
using test::plan_of;
using test::reset_peak;
using test::TinyModel;

// One layer of 24 experts, 1.7 MB each: 40 MB of source, as much packed.
class PackMemory : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<test::TempFolder>();
    SynthOptions options;
    options.config = synth_config("tiny");
    options.experts = 24;
    options.hidden = 1024;
    options.inter = 1024;
    options.format = BlockFormat::mxfp4;
    synthesise(folder_->path() / "model", options);
    model_ = read_model(open_checkpoint(folder_->path() / "model"));
  }
  static void TearDownTestSuite() {
    model_.reset();
    folder_.reset();
  }

  static std::uint64_t peak_of(const ShardPlan& plan, std::uint64_t memory, const char* out) {
    return test::peak_of_packing(*model_, plan,
                                 {.out = folder_->path() / out,
                                  .ranks = {0},
                                  .layout = FileLayout::kernel,
                                  .memory_bytes = memory});
  }

  static inline std::unique_ptr<test::TempFolder> folder_;
  static inline std::optional<MoeModel> model_;
};

TEST_F(PackMemory, StaysInsideTheBound) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "shadow memory counts as resident";
#endif
  if (!reset_peak()) GTEST_SKIP() << "/proc/self/clear_refs can not reset the peak";
  const ShardPlan whole = plan_of(*model_, 1);
  EXPECT_GT(peak_of(whole, 1024 * kMiB, "unbounded"), 64 * kMiB) << "the measurement sees it";
  EXPECT_LT(peak_of(whole, 16 * kMiB, "bounded"), 16 * kMiB + kBesideBuffers);
  // Columns of down lie on all its pages: a sixteenth of the axis still touches a third of the
  // source.
  const ShardPlan narrow = plan_of(*model_, 16);
  EXPECT_LT(peak_of(narrow, 8 * kMiB, "narrow"), 8 * kMiB + kBesideBuffers);
  EXPECT_TRUE(test::same_folders(folder_->path() / "unbounded", folder_->path() / "bounded"));
}

TEST_F(PackMemory, TooLittleIsRefusedAndTheLeastIsNamed) {
  const ShardPlan plan = plan_of(*model_, 3);
  const auto pack_with = [&](std::uint64_t memory) {
    pack_to_folder(*model_, plan,
                   {.out = folder_->path() / "least", .ranks = {2}, .memory_bytes = memory});
  };
  const Error error = test::refusal_of([&] { pack_with(1000); });
  EXPECT_EQ(error.code(), ErrorCode::usage);
  EXPECT_EQ(test::code_of(error), "MOXIE-K004");
  EXPECT_FALSE(std::filesystem::exists(folder_->path() / "least"));
  const std::string& hint = error.findings().front().hint;
  const std::uint64_t least = std::stoull(hint.substr(hint.find_first_of("0123456789")));
  EXPECT_THROW(pack_with(least - 1), Error);
  EXPECT_NO_THROW(pack_with(least));
}

// Batches of one expert, of two with one left over, and of all.
TEST(PackBatches, AnyMemoryGivesTheSameBytes) {
  test::TinyOptions options = test::tiny_options(BlockFormat::nvfp4);
  options.experts = 7;
  const TinyModel model(options);
  const ShardPlan plan = plan_of(*model, 1, 1, 64);
  const std::uint64_t expert = plan.layout.stride + expert_bytes(model->config, plan.format);
  for (const FileLayout layout : {FileLayout::logical, FileLayout::kernel}) {
    const std::string name(name_of(layout));
    pack_to_folder(*model, plan, {.out = model / (name + "all"), .layout = layout});
    for (const std::uint64_t batch : {1, 2, 3}) {
      const std::string out = name + std::to_string(batch);
      pack_to_folder(*model, plan,
                     {.out = model / out, .layout = layout, .memory_bytes = 2 * batch * expert});
      EXPECT_TRUE(test::same_folders(model / out, model / (name + "all"))) << out;
    }
  }
}

TEST(PackThreads, AnyNumberOfThreadsGivesTheSameBytes) {
  test::TinyOptions options = test::tiny_options(BlockFormat::nvfp4);
  options.experts = 9;
  const TinyModel model(options);
  const ShardPlan plan = plan_of(*model, 3, 1, 64);
  for (const unsigned number : {1U, 2U, 8U}) {
    const test::Threads threads(number);
    pack_to_folder(*model, plan, {.out = model / std::to_string(number)});
  }
  EXPECT_TRUE(test::same_folders(model / "1", model / "2"));
  EXPECT_TRUE(test::same_folders(model / "1", model / "8"));
}

// The first bad expert is named, whichever thread finds one first.
TEST(PackThreads, TheSameExpertIsRefusedForAnyNumberOfThreads) {
  test::TinyOptions options = test::tiny_options(BlockFormat::mxfp4);
  options.experts = 9;
  options.edits = {test::poke("layers.0.ffn.experts.3.w2.scale", 5, 0xFF),
                   test::poke("layers.0.ffn.experts.7.w1.scale", 0, 0xFF)};
  const TinyModel model(options);
  const ShardPlan plan = plan_of(*model, 1);
  for (const unsigned number : {1U, 2U, 8U}) {
    const test::Threads threads(number);
    const Error error = test::refusal_of([&] { pack(*model, plan, 0, 0); });
    EXPECT_EQ(error.findings().front().where.expert, 3U);
  }
}

}  // namespace
}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// Draft blocks with experts of their own number or format, loaded again.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <string>

#include "moxie/pack.hpp"
#include "support/folder_bytes.hpp"
#include "support/packed_model.hpp"
#include "support/random_placement.hpp"
#include "support/refusal.hpp"
#include "support/whole_checkpoint.hpp"

namespace moxie {
namespace {

using test::WholeCheckpoint;

constexpr FileLayout kLayouts[] = {FileLayout::logical, FileLayout::kernel};

// Every layer of the folder as it comes from the checkpoint, rank by rank.
void expect_loaded_as_source(const MoeModel& model, const ShardPlan& plan,
                             const std::filesystem::path& path) {
  const PackedFolder folder = open_packed_folder(path);
  for (const LayerExperts& layer : model.layers) {
    const ShardPlan own = plan_to_run(model, plan, layer.layer);
    EXPECT_EQ(own.experts, layer.experts.size());
    const ShardPlan packed = plan_to_run(folder, layer.layer);
    EXPECT_EQ(packed.experts, own.experts);
    for (const RankPlan& rank : own.ranks) {
      const PackedExperts loaded = load_packed(folder, rank.rank, layer.layer);
      EXPECT_TRUE(loaded.experts == rank.experts) << layer.layer;
      EXPECT_TRUE(test::same_bytes(pack(model, own, rank.rank, layer.layer).blobs, loaded.blobs))
          << "layer " << layer.layer << " rank " << rank.rank;
    }
  }
}

class PackedDrafts : public testing::TestWithParam<std::uint64_t> {};

TEST_P(PackedDrafts, AreLoadedWithAllExpertsOfTheirOwn) {
  const WholeCheckpoint model({.config = test::narrow_v4_1(GetParam())});
  for (const FileLayout layout : kLayouts) {
    for (const unsigned ep : {1U, 2U, 4U}) {  // 4: ranks without any of the draft's experts
      const ShardPlan plan = make_plan(*model, {.tp = 3, .ep = ep});
      const auto out = model / (std::string(name_of(layout)) + std::to_string(ep));
      pack_to_folder(*model, plan, {.out = out, .layout = layout});
      ASSERT_NO_FATAL_FAILURE(expect_loaded_as_source(*model, plan, out));
    }
  }
}

// The plan that is not the draft's gives no blobs at all, in place of some.
TEST_P(PackedDrafts, AreRefusedUnderTheMainLayersPlan) {
  const WholeCheckpoint model({.config = test::narrow_v4_1(GetParam())});
  const ShardPlan plan = make_plan(*model, {.tp = 3});
  test::expect_refusal([&] { (void)blob_source(*model, plan, 0, 2); }, ErrorCode::unsupported,
                       "MOXIE-M009");
}

INSTANTIATE_TEST_SUITE_P(Experts, PackedDrafts, testing::Values(3, 8));

TEST(PackedDraftsNvfp4, AreCheckedInTheirOwnFormatAndNotRun) {
  const WholeCheckpoint model({.config = test::narrow_v4(), .format = BlockFormat::nvfp4});
  const ShardPlan plan = make_plan(*model, {.tp = 3, .kernel_align = 64});
  const auto out = model / "packed";
  pack_to_folder(*model, plan, {.out = out});
  const PackedFolder folder = open_packed_folder(out);
  EXPECT_EQ(plan_of_layer(folder, 0).format, BlockFormat::nvfp4);
  EXPECT_EQ(plan_of_layer(folder, 1).format, BlockFormat::mxfp4);
  for (const unsigned rank : folder.ranks) EXPECT_NO_THROW((void)load_packed(folder, rank, 1));
  for (const auto& to_run : {+[](const MoeModel&, const ShardPlan&, const PackedFolder& set) {
                               return plan_to_run(set, 1);
                             },
                             +[](const MoeModel& source, const ShardPlan& of, const PackedFolder&) {
                               return plan_to_run(source, of, 1);
                             }}) {
    test::expect_refusal([&] { (void)to_run(*model, plan, folder); }, ErrorCode::unsupported,
                         "MOXIE-M009");
  }
}

// Widths that the drafts' groups do not divide: all else is packed, the top too.
TEST(PackedDraftsNvfp4, AreLeftOutAloneWhereTheyDoNotFit) {
  const WholeCheckpoint model({.config = test::narrow_v4(), .format = BlockFormat::nvfp4});
  const ShardPlan plan = make_plan(*model, {.tp = 2, .kernel_align = 16});
  const Error error =
      test::refusal_of([&] { pack_to_folder(*model, plan, {.out = model / "packed"}); });
  EXPECT_NE(error.findings().front().hint.find("--layers main"), std::string::npos) << error.what();
  const PackReport report =
      pack_to_folder(*model, plan, {.out = model / "packed", .drafts = false});
  EXPECT_EQ(report.layers, std::vector<int>{0});
  const Checkpoint rank = open_checkpoint(model / "packed" / "rank-001");
  EXPECT_NE(rank.find("head.weight"), nullptr);
  for (const TensorInfo& tensor : rank.tensors())
    EXPECT_FALSE(tensor.name.starts_with("mtp.")) << tensor.name;
}

}  // namespace
}  // namespace moxie

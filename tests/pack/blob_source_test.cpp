// SPDX-License-Identifier: Apache-2.0
// Sources of experts: every byte of a blob is written, whatever lay there and in whatever order.
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "moxie/pack.hpp"
#include "support/packed_model.hpp"
#include "support/refusal.hpp"

namespace moxie {
namespace {

using test::TinyModel;

// Experts last to first into one blob that is never cleared.
void expect_blobs(const BlobSource& source, const PackedExperts& expected) {
  EXPECT_EQ(source.rank, expected.rank);
  EXPECT_TRUE(source.layout == expected.layout);
  ASSERT_TRUE(source.experts == expected.experts);
  std::vector<std::byte> blob(source.layout.stride, std::byte{0xA5});
  for (std::uint64_t slot = source.experts.count(); slot-- > 0;) {
    const std::uint64_t expert = source.experts.id(slot);
    source.pack_expert(expert, blob);
    EXPECT_TRUE(test::same_bytes(blob, expected.blob(expert))) << "expert " << expert;
  }
  if (source.finish) source.finish();
}

// One expert after another into cleared memory, by the function that has no source.
PackedExperts packed_by_hand(const MoeModel& model, const ShardPlan& plan, unsigned rank) {
  PackedExperts packed{
      .rank = rank, .layout = plan.layout, .experts = plan.ranks[rank].experts, .blobs = {}};
  packed.blobs.resize(packed.experts.count() * plan.layout.stride);
  for (std::uint64_t i = 0; i < packed.experts.count(); ++i) {
    pack_expert(model, plan, plan.ranks[rank], model.require_layer(0), packed.experts.id(i),
                std::span(packed.blobs).subspan(i * plan.layout.stride, plan.layout.stride));
  }
  return packed;
}

TEST(BlobSource, WritesAllOfABlobThatHeldAnotherExpert) {
  for (const BlockFormat format : test::kFormats) {
    const TinyModel model(format);
    for (const unsigned tp : {1U, 2U, 5U}) {  // 5: ranks with tails, and one without a real part
      for (const std::uint64_t align : {32U, 128U}) {
        const ShardPlan plan = test::plan_of(*model, tp, 1, align);
        for (const RankPlan& rank : plan.ranks)
          expect_blobs(blob_source(*model, plan, rank.rank, 0),
                       packed_by_hand(*model, plan, rank.rank));
      }
    }
  }
}

TEST(BlobSource, OfAPackedSetGivesWhatPackMakesOfTheCheckpoint) {
  for (const FileLayout layout : {FileLayout::logical, FileLayout::kernel}) {
    const TinyModel model(BlockFormat::nvfp4);
    const ShardPlan plan = test::plan_of(*model, 3, 2);
    pack_to_folder(*model, plan, {.out = model / "set", .layout = layout});
    const PackedFolder folder = open_packed_folder(model / "set");
    for (const RankPlan& rank : plan.ranks)
      expect_blobs(blob_source(folder, rank.rank, 0), pack(*model, plan, rank.rank, 0));
  }
}

TEST(BlobSource, OfRandomExpertsDrawsTheSameInAnyOrder) {
  const TinyModel model(BlockFormat::mxfp4);
  const ShardPlan plan = test::plan_of(*model, 5, 2);
  for (const RankPlan& rank : plan.ranks)
    expect_blobs(drawn_source(plan, rank.rank, 7), draw_experts(plan, rank.rank, 7));
}

TEST(BlobSource, RefusesALayerOrARankThatIsAbsentAtOnce) {
  const TinyModel model(BlockFormat::mxfp4);
  const ShardPlan plan = test::plan_of(*model, 2);
  test::expect_refusal([&] { (void)blob_source(*model, plan, 0, 7); }, ErrorCode::input,
                       "MOXIE-M011");
  pack_to_folder(*model, plan, {.out = model / "set", .ranks = {1}});
  const PackedFolder folder = open_packed_folder(model / "set");
  test::expect_refusal([&] { (void)blob_source(folder, 0, 0); }, ErrorCode::input, "MOXIE-K005");
  test::expect_refusal([&] { (void)blob_source(folder, 1, 7); }, ErrorCode::input, "MOXIE-K005");
}

}  // namespace
}  // namespace moxie

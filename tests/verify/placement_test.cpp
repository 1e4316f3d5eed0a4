// SPDX-License-Identifier: Apache-2.0
// Sets whose experts lie as a map says: all holders are compared, and another map is found.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "packed_folder.hpp"
#include "support/random_placement.hpp"

namespace moxie {
namespace {

using test::interleaved;
using test::PackedFolder;
using test::placed;

test::TinyOptions six_experts(BlockFormat format) {
  test::TinyOptions options = test::tiny_options(format);
  options.experts = 6;
  return options;
}

constexpr FileLayout kLayouts[] = {FileLayout::logical, FileLayout::kernel};

// Writes the plan of another map over the set's own, with every hash that goes with it.
void replan(const PackedFolder& set, const Placement& placement) {
  const ShardPlan other =
      make_plan(*set.model(), {.tp = set.plan().tp, .ep = set.plan().ep, .placement = placement});
  const Json document = packed_plan_json(other, set.layout());
  set.write(set.path() / "moxie-plan.json", document.dump());
  for (const RankPlan& rank : set.plan().ranks) {
    set.edit_json(set.path() / PackedFolder::rank_folder(rank.rank) / "files.json",
                  [&](Json& list) { list.set("plan_hash", *document.find("plan_hash")); });
  }
}

std::vector<std::string> codes_of(const VerifyReport& report) {
  std::vector<std::string> codes;
  for (const Finding& finding : report.findings) codes.push_back(finding.code);
  return codes;
}

bool has_code(const VerifyReport& report, const std::string& code) {
  const auto codes = codes_of(report);
  return std::ranges::find(codes, code) != codes.end();
}

TEST(VerifyPlacement, SetsOfEveryPlacementPassAndEveryHolderIsCounted) {
  std::mt19937_64 random(2);
  for (const BlockFormat format : test::kFormats) {
    for (const FileLayout layout : kLayouts) {
      for (int repeat = 0; repeat < 4; ++repeat) {
        const Placement placement =
            repeat == 0 ? interleaved() : test::random_placement(6, 3, random);
        const PackedFolder set(six_experts(format), {.tp = 2, .ep = 3, .placement = placement},
                               layout);
        const VerifyReport report = set.verify();
        EXPECT_TRUE(report.passed);
        for (const Finding& finding : report.findings) ADD_FAILURE() << to_string(finding);
        EXPECT_EQ(report.tensors, 6 * set.plan().layout.segments.size()) << "once each";
        std::uint64_t held = 0;
        for (const RankPlan& rank : set.plan().ranks)
          held += rank.experts.count() * set.plan().layout.expert_bytes;
        EXPECT_TRUE(layout == FileLayout::logical || report.real_bytes + report.tail_bytes >= held);
      }
    }
  }
}

TEST(VerifyPlacement, LoadedExpertsAreThosePackedFromTheCheckpoint) {
  const Placement placement = placed({{4, 1, 0}, {5, 2, 3, 1}});
  for (const FileLayout layout : kLayouts) {
    const PackedFolder set(six_experts(BlockFormat::nvfp4),
                           {.tp = 2, .ep = 2, .placement = placement}, layout);
    const auto folder = open_packed_folder(set.path());
    EXPECT_EQ(folder.plan.placement, placement);
    for (const RankPlan& rank : folder.plan.ranks) {
      const PackedExperts loaded = load_packed(folder, rank.rank, 0);
      EXPECT_EQ(loaded.experts, rank.experts);
      EXPECT_TRUE(
          test::same_bytes(pack(*set.model(), set.plan(), rank.rank, 0).blobs, loaded.blobs));
    }
  }
}

// Expert 1 lies on both groups; a byte of the second copy alone is wrong.
TEST(VerifyPlacement, AWrongByteOfASecondHolderIsFound) {
  for (const FileLayout layout : kLayouts) {
    for (const unsigned rank : {0U, 1U, 2U, 3U}) {
      const PackedFolder set(six_experts(BlockFormat::mxfp4),
                             {.tp = 2, .ep = 2, .placement = placed({{4, 1, 0}, {5, 2, 3, 1}})},
                             layout);
      const std::uint64_t at = set.place_of(rank, 1, Segment::up);
      set.edit(set.file(rank), [&](std::string& bytes) { bytes[at] ^= 1; });
      set.agree(rank);
      const VerifyReport report = set.verify();
      EXPECT_FALSE(report.passed);
      ASSERT_EQ(codes_of(report), (std::vector<std::string>{"MOXIE-V002"}));
      EXPECT_EQ(report.findings[0].where.expert, 1U);
      EXPECT_EQ(report.findings[0].where.rank, rank);
    }
  }
}

// The same experts on the same rank, each one slot further: blobs have no names.
TEST(VerifyPlacement, AMapThatIsRotatedWithinARankIsFound) {
  const PackedFolder set(six_experts(BlockFormat::mxfp4),
                         {.ep = 2, .placement = placed({{0, 2, 4}, {1, 3, 5}})},
                         FileLayout::kernel);
  EXPECT_TRUE(set.verify().passed);
  replan(set, placed({{2, 4, 0}, {1, 3, 5}}));
  const VerifyReport report = set.verify();
  EXPECT_FALSE(report.passed);
  EXPECT_TRUE(has_code(report, "MOXIE-V002"));
  for (const Finding& finding : report.findings) EXPECT_EQ(finding.where.rank, 0U);
}

TEST(VerifyPlacement, AMapThatIsRotatedOverTheRanksIsFoundInBothLayouts) {
  for (const FileLayout layout : kLayouts) {
    const PackedFolder set(six_experts(BlockFormat::mxfp4), {.ep = 3, .placement = interleaved()},
                           layout);
    replan(set, placed({{1, 4}, {2, 5}, {0, 3}}));
    const VerifyReport report = set.verify();
    EXPECT_FALSE(report.passed);
    EXPECT_TRUE(has_code(report, layout == FileLayout::kernel ? "MOXIE-V002" : "MOXIE-V004"));
  }
}

// What P-06 warns of: files filled in contiguous order under a map that says interleaved.
TEST(VerifyPlacement, P06_ContiguousFilesUnderAnInterleavedMapAreFound) {
  for (const FileLayout layout : kLayouts) {
    const PackedFolder set(six_experts(BlockFormat::nvfp4), {.ep = 2}, layout);
    replan(set, interleaved());
    EXPECT_FALSE(set.verify().passed);
  }
}

TEST(VerifyPlacement, AnExpertThatASecondHolderLacksIsFound) {
  for (const FileLayout layout : kLayouts) {
    const PackedFolder set(six_experts(BlockFormat::mxfp4),
                           {.ep = 2, .placement = placed({{0, 2, 4}, {1, 3, 5}})}, layout);
    replan(set, placed({{0, 2, 4}, {1, 3, 5, 0}}));
    const VerifyReport report = set.verify();
    EXPECT_FALSE(report.passed);
    EXPECT_TRUE(has_code(report, "MOXIE-V004"));
  }
}

}  // namespace
}  // namespace moxie

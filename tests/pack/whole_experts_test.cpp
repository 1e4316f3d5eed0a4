// SPDX-License-Identifier: Apache-2.0
// Whole checkpoints on ranks of both kinds, under every placement, against the second packers.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "moxie/pack.hpp"
#include "pack/whole_expectations.hpp"
#include "support/folder_bytes.hpp"
#include "support/forced_kernels.hpp"
#include "support/random_placement.hpp"
#include "support/refusal.hpp"
#include "support/whole_checkpoint.hpp"

namespace moxie {
namespace {

using test::narrow_v4;
using test::refusal_of;
using test::WholeCheckpoint;

constexpr std::uint64_t kAlign = 64;
constexpr FileLayout kLayouts[] = {FileLayout::logical, FileLayout::kernel};

using Map = std::vector<std::vector<std::uint64_t>>;

// Five experts on one group and on two.
struct Shared {
  const char* what;
  unsigned tp;
  Placement placement;
  Map ids;  // of every group, in slot order
};

std::vector<Shared> shared_cases() {
  std::vector<Shared> cases;
  for (const unsigned tp : {1U, 2U, 3U, 7U, 8U})
    cases.push_back({"OneGroup", tp, {}, {{0, 1, 2, 3, 4}}});
  cases.push_back({"Contiguous", 3, {}, {{0, 1, 2}, {3, 4}}});
  cases.push_back({"Interleaved", 2, test::interleaved(), {{0, 2, 4}, {1, 3}}});
  cases.push_back({"Interleaved", 3, test::interleaved(), {{0, 2, 4}, {1, 3}}});
  const Map redundant = {{4, 1, 0}, {3, 1, 2, 4}};
  cases.push_back({"Redundant", 1, test::placed(redundant), redundant});
  cases.push_back({"Redundant", 3, test::placed(redundant), redundant});
  return cases;
}

class PackWholeShared : public testing::TestWithParam<Shared> {};

TEST_P(PackWholeShared, EveryByteOfEveryFileIsTheReferences) {
  const test::PortableKernel forced;
  const Shared& shared = GetParam();
  const WholeCheckpoint model({.config = narrow_v4({{"n_routed_experts", 5}}, {4, 0})});
  const ShardPlan plan = make_plan(*model, {.tp = shared.tp,
                                            .ep = static_cast<unsigned>(shared.ids.size()),
                                            .kernel_align = kAlign,
                                            .placement = shared.placement});
  for (const FileLayout layout : kLayouts) {
    const auto out = model / name_of(layout);
    const PackReport report = pack_to_folder(*model, plan, {.out = out, .layout = layout});
    EXPECT_EQ(report.files, 3U * plan.tp * plan.ep);
    ASSERT_NO_FATAL_FAILURE(test::expect_as_reference(model, plan, out, layout));
    for (const std::uint64_t layer : {0, 1}) {
      ASSERT_NO_FATAL_FAILURE(
          test::expect_experts_as_reference(model, plan, out, layout, layer, kAlign, shared.ids));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, PackWholeShared, testing::ValuesIn(shared_cases()),
                         [](const auto& param) {
                           return param.param.what + std::string("Tp") +
                                  std::to_string(param.param.tp);
                         });

// One rank alone holds what it holds among all, also an expert that another group holds too.
TEST(PackWholeRank, OneRankAtATimeIsTheSameUnderAMapWithRedundantExperts) {
  const WholeCheckpoint model({.config = narrow_v4({{"n_routed_experts", 5}})});
  const ShardPlan plan =
      make_plan(*model, {.tp = 2, .ep = 2, .placement = test::placed({{4, 1, 0}, {3, 1, 2, 4}})});
  pack_to_folder(*model, plan, {.out = model / "all"});
  for (const unsigned rank : {3U, 1U, 0U, 2U})
    pack_to_folder(*model, plan, {.out = model / "each", .ranks = {rank}});
  EXPECT_TRUE(test::same_folders(model / "all", model / "each"));
}

// Each kind of layer is shared among the groups by its own number of experts.
TEST(PackWholeDrafts, DraftsWithExpertsOfTheirOwnArePlacedByTheirOwnNumber) {
  const test::PortableKernel forced;
  const WholeCheckpoint model({.config = test::narrow_v4_1()});
  ASSERT_EQ(model.config().draft_experts, 3U);
  for (const FileLayout layout : kLayouts) {
    const Map main[] = {{{0, 1, 2}, {3, 4}}, {{0, 2, 4}, {1, 3}}};
    const Map draft[] = {{{0, 1}, {2}}, {{0, 2}, {1}}};
    for (const std::size_t kind : {0, 1}) {
      const ShardPlan plan =
          make_plan(*model, {.tp = 3,
                             .ep = 2,
                             .kernel_align = kAlign,
                             .placement = kind == 0 ? Placement{} : test::interleaved()});
      const auto out = model / (std::string(name_of(layout)) + std::to_string(kind));
      pack_to_folder(*model, plan, {.out = out, .layout = layout});
      ASSERT_NO_FATAL_FAILURE(test::expect_as_reference(model, plan, out, layout));
      for (const std::uint64_t layer : {0, 1, 2}) {
        ASSERT_NO_FATAL_FAILURE(test::expect_experts_as_reference(
            model, plan, out, layout, layer, kAlign, layer == 0 ? main[kind] : draft[kind]));
      }
    }
  }
}

// A file's map speaks of the main layers' experts alone.
TEST(PackWholeDrafts, DraftsWithExpertsOfTheirOwnHaveNoPlaceInAMap) {
  const WholeCheckpoint model({.config = test::narrow_v4_1()});
  const ShardPlan plan =
      make_plan(*model, {.ep = 2, .placement = test::placed({{4, 1, 0}, {3, 1, 2, 4}})});
  const Error error = refusal_of([&] { pack_to_folder(*model, plan, {.out = model / "packed"}); });
  EXPECT_EQ(error.code(), ErrorCode::unsupported);
  EXPECT_EQ(test::code_of(error), "MOXIE-M009");
  EXPECT_FALSE(std::filesystem::exists(model / "packed"));
  EXPECT_EQ(pack_to_folder(*model, plan, {.out = model / "main", .layers = {0}}).files, 2U);
}

TEST(PackWholeNvfp4, DraftsStayMxfp4InTheLogicalLayoutWhereTheirGroupsDivideTheWidths) {
  const WholeCheckpoint model({.config = narrow_v4(), .format = BlockFormat::nvfp4});
  const ShardPlan plan = make_plan(*model, {.tp = 3, .kernel_align = kAlign});
  ASSERT_EQ(plan.format, BlockFormat::nvfp4);
  ASSERT_EQ(plan.inter().local.value, 64U);
  const auto out = model / "packed";
  pack_to_folder(*model, plan, {.out = out});
  ASSERT_NO_FATAL_FAILURE(test::expect_as_reference(model, plan, out, FileLayout::logical));
  for (const std::uint64_t layer : {0, 1}) {
    ASSERT_NO_FATAL_FAILURE(test::expect_experts_as_reference(model, plan, out, FileLayout::logical,
                                                              layer, kAlign, {{0, 1, 2}}));
  }
}

// 160 columns on two ranks are 80 each: five groups of 16, and no whole number of groups of 32.
TEST(PackWholeNvfp4, DraftsAreRefusedWithTheWidthThatTheirGroupsDoNotDivide) {
  const WholeCheckpoint model({.config = narrow_v4(), .format = BlockFormat::nvfp4});
  const ShardPlan plan = make_plan(*model, {.tp = 2, .kernel_align = 16});
  const Error error = refusal_of([&] { pack_to_folder(*model, plan, {.out = model / "packed"}); });
  EXPECT_EQ(error.code(), ErrorCode::unsupported);
  EXPECT_EQ(test::code_of(error), "MOXIE-M009");
  EXPECT_EQ(error.findings().front().where.layer, 1);
  EXPECT_NE(error.findings().front().got.find("80"), std::string::npos)
      << error.findings().front().got;
  EXPECT_FALSE(std::filesystem::exists(model / "packed"));
  EXPECT_EQ(pack_to_folder(*model, plan, {.out = model / "main", .layers = {0}}).files, 2U);
}

TEST(PackWholeNvfp4, TheKernelLayoutHasOneFormatAndRefusesTheDrafts) {
  const test::PortableKernel forced;
  const WholeCheckpoint model({.config = narrow_v4(), .format = BlockFormat::nvfp4});
  const ShardPlan plan = make_plan(*model, {.tp = 3, .kernel_align = kAlign});
  test::expect_refusal(
      [&] {
        pack_to_folder(*model, plan, {.out = model / "packed", .layout = FileLayout::kernel});
      },
      ErrorCode::unsupported, "MOXIE-M009");
  EXPECT_FALSE(std::filesystem::exists(model / "packed"));
  const PackOptions main{.out = model / "main", .layers = {0}, .layout = FileLayout::kernel};
  pack_to_folder(*model, plan, main);
  ASSERT_NO_FATAL_FAILURE(test::expect_experts_as_reference(
      model, plan, main.out, FileLayout::kernel, 0, kAlign, {{0, 1, 2}}));
}

}  // namespace
}  // namespace moxie

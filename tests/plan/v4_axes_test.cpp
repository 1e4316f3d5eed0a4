// SPDX-License-Identifier: Apache-2.0
// Laws of the cut of every axis, for sizes that no published model has too.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/random.hpp"
#include "moxie/synth.hpp"
#include "plan/plan_model.hpp"

namespace moxie {
namespace {

MoeModel v4_model(const Json& json) {
  MoeModel model = test::plan_model({}, BlockFormat::mxfp4);
  model.config = read_config(json, Json());
  return model;
}

// The parts of all ranks follow each other and are the whole, in elements and in every tensor's
// own entries; what a rank lacks is its tail.
void expect_laws(const std::vector<AxisPlan>& axes, const CutWidths& widths, unsigned tp) {
  for (const AxisPlan& axis : axes) {
    SCOPED_TRACE(std::string(name_of(axis.axis)) + " tp " + std::to_string(tp));
    EXPECT_EQ(axis.virtual_global, axis.local * tp);
    EXPECT_GE(axis.virtual_global, axis.original);
    EXPECT_GE(axis.kernel, axis.local);
    const Elems aligned = axis.axis == Axis::vocab ? axis.virtual_global : axis.local;
    EXPECT_EQ(aligned.value % axis.unit.value, 0U);
    Elems next{0};
    for (unsigned rank = 0; rank < tp; ++rank) {
      const UnitRange<Elems> part = slice_axis(axis, rank);
      EXPECT_EQ(part.src, next);
      EXPECT_LE(part.count, axis.local);
      next += part.count;
    }
    EXPECT_EQ(next, axis.original);
  }
  for (const CutTensor& kind : cut_tensors(widths)) {
    SCOPED_TRACE(std::string(kind.tensor) + " tp " + std::to_string(tp));
    const AxisPlan* axis = nullptr;
    for (const AxisPlan& each : axes) {
      if (each.axis == kind.cut.axis) axis = &each;
    }
    ASSERT_NE(axis, nullptr);
    Entries next{0};
    for (unsigned rank = 0; rank < tp; ++rank) {
      const UnitRange<Entries> part = cut_range(kind.cut, *axis, rank);
      EXPECT_EQ(part.src, next);
      EXPECT_LE(part.count, part.dst);
      next += part.count;
    }
    EXPECT_EQ(next.value,
              (axis->original.value * kind.cut.entries + kind.cut.elems - 1) / kind.cut.elems);
  }
}

TEST(V4Axes, PartsJoinToTheWholeForEverySizeAndRankCount) {
  const Stream stream(7, {6});
  for (std::uint64_t draw = 0; draw < 400; ++draw) {
    std::uint64_t at = draw * 16;
    const auto pick = [&](std::uint64_t most) { return 1 + stream.word(at++) % most; };
    constexpr std::uint64_t kTiles[] = {32, 128, 128, 96};
    V4AxisSizes sizes;
    sizes.output_groups = pick(20);
    sizes.heads = sizes.output_groups * pick(9);
    sizes.shared_inter = pick(5000);
    sizes.vocab = pick(200'000);
    sizes.widths = {.head_dim = 16 * pick(40), .o_rank = 16 * pick(80), .tile = kTiles[draw % 4]};
    const auto tp = static_cast<unsigned>(pick(64));
    expect_laws(plan_v4_axes(sizes, tp), sizes.widths, tp);
    if (testing::Test::HasFailure()) FAIL() << "draw " << draw;
  }
}

TEST(V4Axes, HeadsArePaddedInWholeOutputGroups) {
  for (unsigned tp = 1; tp <= 64; ++tp) {
    const ShardPlan plan = make_plan(v4_model(synth_config("deepseek-v4-flash")), {.tp = tp});
    const AxisPlan& heads = *plan.find(Axis::heads);
    const AxisPlan& groups = *plan.find(Axis::output_groups);
    EXPECT_EQ(heads.local, groups.local * 8);
    for (unsigned rank = 0; rank < tp; ++rank) {
      EXPECT_EQ(slice_axis(heads, rank).src, slice_axis(groups, rank).src * 8);
      EXPECT_EQ(slice_axis(heads, rank).count, slice_axis(groups, rank).count * 8);
    }
  }
}

// A tile of FP8 shares one scale: no rank may begin inside one.
TEST(V4Axes, NoCutStraddlesATileOfFp8) {
  // One head of 64 a group: a group is half a tile.
  const CutWidths widths{.head_dim = 64, .o_rank = 64, .tile = 128};
  const std::vector<AxisPlan> axes = plan_v4_axes(
      {.heads = 10, .output_groups = 10, .shared_inter = 200, .vocab = 64, .widths = widths}, 3);
  EXPECT_EQ(axes[0].unit, Elems{2});
  EXPECT_EQ(axes[0].local, Elems{4});
  EXPECT_EQ(axes[1].local, Elems{4});
  // 200 columns are a tile and a part of one; the part is the second rank's.
  EXPECT_EQ(slice_axis(axes[2], 1).count, Elems{72});
  for (const CutTensor& kind : cut_tensors(widths)) {
    if (kind.tensor == "shared_up_scale") {
      EXPECT_EQ(cut_range(kind.cut, axes[2], 1),
                (UnitRange<Entries>{Entries{1}, Entries{1}, Entries{1}}));
      EXPECT_EQ(cut_range(kind.cut, axes[2], 2),
                (UnitRange<Entries>{Entries{2}, Entries{0}, Entries{1}}));
    }
  }
}

TEST(V4Axes, ThoseOfV41FollowItsSmallerTiles) {
  const ShardPlan plan = make_plan(v4_model(synth_config("deepseek-v4.1-flash")), {.tp = 8});
  EXPECT_EQ(plan.find(Axis::shared_inter)->unit, Elems{32});
  EXPECT_EQ(plan.find(Axis::shared_inter)->virtual_global, Elems{2304});
  EXPECT_TRUE(plan.identity);
}

TEST(V4Axes, TheTinyModelIsCutLikeFlash) {
  const ShardPlan plan = make_plan(v4_model(synth_config("tiny")), {.tp = 3});
  struct Row {
    Axis axis;
    std::uint64_t virtual_global, local, real[3];
  };
  for (const Row& row :
       {Row{Axis::heads, 18, 6, {6, 6, 4}}, Row{Axis::output_groups, 9, 3, {3, 3, 2}},
        Row{Axis::moe_inter, 672, 224, {224, 224, 192}},
        Row{Axis::shared_inter, 768, 256, {256, 256, 128}},
        Row{Axis::vocab, 384, 128, {128, 128, 64}}}) {
    SCOPED_TRACE(name_of(row.axis));
    EXPECT_EQ(plan.find(row.axis)->virtual_global.value, row.virtual_global);
    EXPECT_EQ(plan.find(row.axis)->local.value, row.local);
    for (unsigned rank = 0; rank < 3; ++rank)
      EXPECT_EQ(slice_axis(*plan.find(row.axis), rank).count.value, row.real[rank]);
  }
}

TEST(V4Axes, AModelWithoutThemHasTheExpertsAxisAlone) {
  for (const char* name : {"gpt-oss-20b", "kimi-k2", "qwen3-moe"}) {
    const ShardPlan plan =
        make_plan(v4_model(synth_config(name)), {.tp = 2, .format = BlockFormat::mxfp4});
    EXPECT_EQ(plan.axes.size(), 1U);
    EXPECT_FALSE(plan.widths.has_value());
    EXPECT_EQ(plan.find(Axis::heads), nullptr);
  }
}

TEST(V4Axes, EmptyRanksAreNotedAxisByAxis) {
  const ShardPlan plan = make_plan(v4_model(synth_config("deepseek-v4-flash")), {.tp = 7});
  std::vector<std::string> noted;
  for (const Finding& finding : plan.findings) {
    if (finding.code == "MOXIE-P007")
      noted.push_back(finding.where.axis + " " + std::to_string(*finding.where.rank));
  }
  const std::vector<std::string> expected = {
      "heads 4",         "heads 5",         "heads 6",       "output_groups 4",
      "output_groups 5", "output_groups 6", "shared_inter 6"};
  EXPECT_EQ(noted, expected);
}

// Every number of the document's other axes decides something, or is checked against what does.
TEST(V4Axes, AnEditedDocumentIsNoPlan) {
  const ShardPlan plan = make_plan(v4_model(synth_config("deepseek-v4-flash")), {.tp = 3});
  const Json document = to_json(plan);
  EXPECT_EQ(to_json(plan_from_json(document, "plan")).dump(), document.dump());
  for (std::size_t axis = 1; axis < kAxes; ++axis) {
    for (const char* key : {"original", "virtual", "local", "kernel", "unit", "backend_only"}) {
      Json::Array axes = document.find("axes")->elements();
      axes[axis].set(key, axes[axis].find(key)->as_unsigned() + 1);
      Json edited = document;
      edited.set("axes", Json(std::move(axes)));
      EXPECT_THROW(plan_from_json(edited, "plan"), Error) << axis << " " << key;
    }
  }
  for (const char* key : {"head_dim", "o_lora_rank", "fp8_tile"}) {
    Json widths = *document.find("widths");
    widths.set(key, widths.find(key)->as_unsigned() + 1);
    EXPECT_THROW(plan_from_json(Json(document).set("widths", std::move(widths)), "plan"), Error)
        << key;
  }
}

}  // namespace
}  // namespace moxie

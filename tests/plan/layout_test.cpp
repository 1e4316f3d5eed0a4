// SPDX-License-Identifier: Apache-2.0
// All offsets of an expert: contiguous, disjoint, and as many bytes as the published sizes.
#include "plan/layout.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string_view>
#include <vector>

#include "formats/block_format.hpp"
#include "plan/plan_model.hpp"

namespace moxie {
namespace {

constexpr auto kMxfp4 = BlockFormat::mxfp4;
constexpr auto kNvfp4 = BlockFormat::nvfp4;

TEST(LinearLayout, IsThisTableForATinyExpert) {
  // hidden 64, inter 32, groups of 16.
  const PackedLayout layout =
      linear_layout(64, Elems{32}, kNvfp4, {.gated = true, .globals = true});
  const std::vector<PackedSegment> expected = {
      {Segment::gate, 0, 32, 32},
      {Segment::up, 1024, 32, 32},
      {Segment::down, 2048, 64, 16},
      {Segment::gate_scale, 3072, 32, 4},
      {Segment::up_scale, 3200, 32, 4},
      {Segment::down_scale, 3328, 64, 2},
      {Segment::gate_dequant_mul, 3456, 1, 4},
      {Segment::up_dequant_mul, 3460, 1, 4},
      {Segment::down_dequant_mul, 3464, 1, 4},
      {Segment::gate_act_dequant_mul, 3468, 1, 4},
      {Segment::up_act_dequant_mul, 3472, 1, 4},
      {Segment::down_act_dequant_mul, 3476, 1, 4},
  };
  EXPECT_EQ(layout.segments, expected);
  EXPECT_EQ(layout.expert_bytes, 3480U);
  EXPECT_EQ(layout.stride, 3520U);
}

TEST(LinearLayout, HasNoGateForExpertsWithoutOne) {
  const PackedLayout layout =
      linear_layout(64, Elems{32}, kNvfp4, {.gated = false, .globals = true});
  std::vector<Segment> segments;
  for (const PackedSegment& segment : layout.segments) segments.push_back(segment.segment);
  EXPECT_EQ(segments,
            (std::vector{Segment::up, Segment::down, Segment::up_scale, Segment::down_scale,
                         Segment::up_dequant_mul, Segment::down_dequant_mul,
                         Segment::up_act_dequant_mul, Segment::down_act_dequant_mul}));
  EXPECT_EQ(layout.find(Segment::gate), nullptr);
  EXPECT_EQ(layout.segments.front().offset, 0U);
}

TEST(LinearLayout, SegmentsLieEndToEndInEveryShape) {
  for (const BlockFormat format : test::kFormats) {
    for (const std::uint64_t hidden : {32U, 64U, 2688U, 2880U, 7168U}) {
      for (const std::uint64_t kernel : {32U, 96U, 704U, 768U, 3072U}) {
        for (const bool gated : {true, false}) {
          const PackedLayout layout = linear_layout(hidden, Elems{kernel}, format,
                                                    {.gated = gated, .globals = format == kNvfp4});
          std::uint64_t next = 0;
          std::set<Segment> seen;
          for (const PackedSegment& segment : layout.segments) {
            EXPECT_EQ(segment.offset, next);
            EXPECT_GT(segment.bytes(), 0U);
            EXPECT_TRUE(seen.insert(segment.segment).second);
            EXPECT_EQ(layout.find(segment.segment), &segment);
            next = segment.offset + segment.bytes();
          }
          EXPECT_EQ(layout.expert_bytes, next);
          EXPECT_EQ(layout.stride % 64, 0U);
          EXPECT_GE(layout.stride, next);
          EXPECT_LT(layout.stride, next + 64);
          EXPECT_EQ(seen.size(), (format == kNvfp4 ? 4U : 2U) * (gated ? 3U : 2U));
          EXPECT_EQ(layout.find(Segment::up)->rows, kernel);
          EXPECT_EQ(layout.find(Segment::up)->row_bytes * 2, hidden);
          EXPECT_EQ(layout.find(Segment::down)->rows, hidden);
          EXPECT_EQ(layout.find(Segment::down)->row_bytes * 2, kernel);
          EXPECT_EQ(layout.find(Segment::up_scale)->row_bytes * scale_group(format), hidden);
          EXPECT_EQ(layout.find(Segment::down_scale)->row_bytes * scale_group(format), kernel);
        }
      }
    }
  }
}

TEST(LinearLayout, BytesOfAnExpertAreThePublishedOnes) {
  struct Row {
    const char* model;
    std::uint64_t mxfp4;
    std::uint64_t nvfp4;
  };
  for (const Row& row :
       {Row{"V4-Flash", 13'369'344, 14'155'800}, Row{"V4-Pro", 35'094'528, 37'158'936},
        Row{"V4.1-Flash", 18'800'640, 19'906'584}}) {
    const test::PlanSizes sizes = test::published(row.model);
    const ShardPlan mxfp4 = make_plan(test::plan_model(sizes, kMxfp4), {});
    const ShardPlan nvfp4 = make_plan(test::plan_model(sizes, kNvfp4), {});
    EXPECT_EQ(mxfp4.layout.expert_bytes, row.mxfp4) << row.model;
    EXPECT_EQ(nvfp4.layout.expert_bytes, row.nvfp4) << row.model;
    EXPECT_EQ(mxfp4.ranks[0].bytes_layer, row.mxfp4 * sizes.experts);
    EXPECT_EQ(mxfp4.ranks[0].bytes_total, row.mxfp4 * sizes.experts * sizes.layers);
  }
}

// P-03: each half is padded by itself, so that the boundary between the halves does not move.
TEST(LinearLayout, PaddingFollowsGateAndUpEach) {
  const ShardPlan plan =
      make_plan(test::plan_model({.hidden = 32, .inter = 64}, kMxfp4), {.kernel_align = 128});
  const PackedSegment& gate = *plan.layout.find(Segment::gate);
  const PackedSegment& up = *plan.layout.find(Segment::up);
  EXPECT_EQ(plan.ranks[0].slice.rows.count, Elems{64});
  EXPECT_EQ(plan.ranks[0].slice.rows.zero(), Elems{64});
  EXPECT_EQ(gate.rows, 128U);
  EXPECT_EQ(up.rows, 128U);
  EXPECT_EQ(up.offset, gate.offset + 128 * gate.row_bytes);
  EXPECT_EQ(plan.layout.find(Segment::gate_scale)->rows, 128U);
  EXPECT_EQ(plan.layout.find(Segment::up_scale)->rows, 128U);
}

TEST(Segments, HaveDifferentNames) {
  std::set<std::string_view> names;
  for (unsigned segment = 0; segment < 12; ++segment)
    EXPECT_TRUE(names.insert(name_of(static_cast<Segment>(segment))).second);
  EXPECT_EQ(name_of(Segment::gate), "gate");
  EXPECT_EQ(name_of(Segment::down_act_dequant_mul), "down_act_dequant_mul");
}

}  // namespace
}  // namespace moxie

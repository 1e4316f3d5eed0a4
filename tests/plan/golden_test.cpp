// SPDX-License-Identifier: Apache-2.0
// Every row of the tables that an independent program computed.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "plan/plan_model.hpp"
#include "support/csv.hpp"

namespace moxie {
namespace {

using test::Csv;
using test::format_named;
using test::plan_model;
using test::published;

std::uint64_t round4(std::uint64_t value) { return (value + 3) / 4 * 4; }

void expect_row(const Csv& csv, std::size_t row) {
  const auto cell = [&](const char* column) { return csv.number(row, column); };
  const BlockFormat format = format_named(csv.text(row, "fmt"));
  const test::PlanSizes sizes = published(csv.text(row, "model"));
  ASSERT_EQ(sizes.inter, cell("I_original"));
  const auto tp = static_cast<unsigned>(cell("tp"));
  const ShardPlan plan =
      make_plan(plan_model(sizes, format), {.tp = tp, .kernel_align = cell("kernel_align")});

  const AxisPlan& axis = plan.inter();
  EXPECT_EQ(axis.axis, Axis::moe_inter);
  EXPECT_EQ(axis.original.value, cell("I_original"));
  EXPECT_EQ(axis.virtual_global.value, cell("I_virtual_global"));
  EXPECT_EQ(axis.local.value, cell("L_logical_local"));
  EXPECT_EQ(axis.kernel.value, cell("L_kernel_local"));
  EXPECT_EQ(axis.unit.value, cell("scale_group"));

  const RankPlan& rank = plan.ranks.at(cell("rank"));
  EXPECT_EQ(rank.slice.rows.src.value, cell("w13_src_row"));
  EXPECT_EQ(rank.slice.rows.count.value, cell("w13_rows"));
  EXPECT_EQ(rank.slice.rows.zero().value, cell("w13_zero_rows_per_half"));
  EXPECT_EQ(rank.slice.bytes.src.value, cell("w2_src_byte"));
  EXPECT_EQ(rank.slice.bytes.count.value, cell("w2_bytes"));
  EXPECT_EQ(rank.slice.bytes.zero().value, cell("w2_zero_bytes"));
  EXPECT_EQ(rank.slice.groups.src.value, cell("w2s_src_group"));
  EXPECT_EQ(rank.slice.groups.count.value, cell("w2s_groups"));
  EXPECT_EQ(rank.slice.groups.zero().value, cell("w2s_zero_groups"));
  EXPECT_EQ(round4(rank.slice.groups.dst.value), cell("w2s_groups_padded4"));
  EXPECT_EQ(rank.slice.rows.count.value == 0, cell("empty_shard") == 1);

  const PackedSegment* scales = plan.layout.find(Segment::gate_scale);
  ASSERT_NE(scales, nullptr);
  EXPECT_EQ(scales->row_bytes, cell("w13s_groups"));
  EXPECT_EQ(round4(scales->row_bytes), cell("w13s_groups_padded4"));

  // The two functions that make_plan is made of agree with it.
  const AxisPlan alone = plan_axis(axis.original, tp, axis.unit, Elems{cell("kernel_align")});
  EXPECT_EQ(alone.kernel, axis.kernel);
  EXPECT_EQ(slice_inter(alone, rank.tp_rank, format), rank.slice);
}

void expect_table(const std::string& name, std::size_t rows) {
  const Csv csv = test::golden(name);
  ASSERT_EQ(csv.rows(), rows);
  for (std::size_t row = 0; row < csv.rows(); ++row) {
    SCOPED_TRACE(name + " row " + std::to_string(row));
    expect_row(csv, row);
    if (testing::Test::HasFailure()) return;
  }
}

TEST(PlanGolden, EveryRoutedExpertShard) {
  expect_table("routed_expert_shards.csv", 288);
}  // pit69

TEST(PlanGolden, EveryRoutedExpertShardOfTheOtherModels) {  // pit69
  expect_table("routed_expert_shards_extra.csv", 216);
}

TEST(PlanGolden, EveryRoutedWidthOfTheSummary) {
  const Csv csv = test::golden("plan_summary.csv");
  ASSERT_EQ(csv.rows(), 32U);
  for (std::size_t row = 0; row < csv.rows(); ++row) {
    const auto cell = [&](const std::string& column) { return csv.number(row, column); };
    const BlockFormat format = format_named(csv.text(row, "fmt"));
    const MoeModel model = plan_model(published(csv.text(row, "model")), format);
    for (const std::uint64_t align : {64, 128}) {
      SCOPED_TRACE("row " + std::to_string(row) + " align " + std::to_string(align));
      const ShardPlan plan =
          make_plan(model, {.tp = static_cast<unsigned>(cell("tp")), .kernel_align = align});
      const AxisPlan& axis = plan.inter();
      EXPECT_EQ(axis.virtual_global.value, cell("moe_I_virtual"));
      EXPECT_EQ(axis.local.value, cell("moe_I_logical_local"));
      EXPECT_EQ(axis.kernel.value, cell("moe_I_kernel" + std::to_string(align)));
      // The table holds two decimals.
      EXPECT_NEAR(axis.kernel_overhead_pct,
                  csv.real(row, "moe_overhead_pct_kernel" + std::to_string(align)), 0.00501);
      std::uint64_t empty = 0;
      for (const RankPlan& rank : plan.ranks) empty += rank.slice.rows.count == Elems{0} ? 1 : 0;
      EXPECT_EQ(empty, cell("empty_ranks_moe"));
      // needs_padding speaks of every axis: a model that needs none has none here.
      if (cell("needs_padding") == 0) {
        EXPECT_TRUE(plan.identity);
      }
      EXPECT_EQ(plan.identity, axis.virtual_global == axis.original);
    }
  }
}

}  // namespace
}  // namespace moxie

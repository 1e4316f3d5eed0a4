// SPDX-License-Identifier: Apache-2.0
// Every row of the tables of attention, shared experts and vocabulary, and of the summary.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "moxie/synth.hpp"
#include "plan/plan_model.hpp"
#include "support/csv.hpp"

namespace moxie {
namespace {

using test::Csv;

MoeModel published_model(const std::string& name, BlockFormat format) {
  const bool pro = name == "V4-Pro";
  MoeModel model = test::plan_model(test::published(name), format);
  model.config = read_config(synth_config(pro ? "deepseek-v4-pro" : "deepseek-v4-flash"), Json());
  model.config.format = format;
  return model;
}

ShardPlan plan_of(const Csv& csv, std::size_t row, BlockFormat format = BlockFormat::mxfp4) {
  return make_plan(published_model(csv.text(row, "model"), format),
                   {.tp = static_cast<unsigned>(csv.number(row, "tp"))});
}

// A rank's part of one kind of tensor.
UnitRange<Entries> part_of(const ShardPlan& plan, std::string_view tensor, std::uint64_t rank) {
  for (const CutTensor& kind : cut_tensors(*plan.widths)) {
    if (kind.tensor == tensor)
      return cut_range(kind.cut, *plan.find(kind.cut.axis), static_cast<unsigned>(rank));
  }
  ADD_FAILURE() << tensor << " is not cut";
  return {};
}

template <class Check>
void each_row(const std::string& table, std::size_t rows, const Check& check) {
  const Csv csv = test::golden(table);
  ASSERT_EQ(csv.rows(), rows);
  for (std::size_t row = 0; row < csv.rows(); ++row) {
    SCOPED_TRACE(table + " row " + std::to_string(row));
    check(csv, row);
    if (testing::Test::HasFailure()) return;
  }
}

TEST(PlanGolden, EveryAttentionShard) {  // T2
  each_row("attention_shards.csv", 72, [](const Csv& csv, std::size_t row) {
    const auto cell = [&](const char* column) { return csv.number(row, column); };
    const ShardPlan plan = plan_of(csv, row);
    const auto rank = static_cast<unsigned>(cell("rank"));
    const AxisPlan& heads = *plan.find(Axis::heads);
    EXPECT_EQ(heads.original.value, cell("heads_original"));
    EXPECT_EQ(heads.virtual_global.value, cell("heads_virtual"));
    EXPECT_EQ(heads.local.value, cell("heads_local"));
    EXPECT_EQ(heads.kernel.value, cell("heads_backend_padded"));
    EXPECT_EQ(heads.backend_only().value, cell("heads_backend_padded") - cell("heads_local"));
    const UnitRange<Elems> head_part = slice_axis(heads, rank);
    EXPECT_EQ(head_part.src.value, cell("src_head"));
    EXPECT_EQ(head_part.count.value, cell("real_heads"));
    EXPECT_EQ((heads.local - head_part.count).value, cell("virtual_heads"));

    const AxisPlan& groups = *plan.find(Axis::output_groups);
    EXPECT_EQ(groups.original.value, cell("groups_original"));
    EXPECT_EQ(groups.virtual_global.value, cell("groups_virtual"));
    EXPECT_EQ(groups.local.value, cell("groups_local"));
    const UnitRange<Elems> group_part = slice_axis(groups, rank);
    EXPECT_EQ(group_part.src.value, cell("src_group"));
    EXPECT_EQ(group_part.count.value, cell("real_groups"));
    EXPECT_EQ(group_part.zero().value, cell("virtual_groups"));

    EXPECT_EQ(part_of(plan, "wq_b", rank).dst.value, cell("wq_b_rows_local"));
    EXPECT_EQ(part_of(plan, "wq_b", rank).zero().value, cell("wq_b_zero_rows"));
    EXPECT_EQ(part_of(plan, "wo_a", rank).dst.value, cell("wo_a_rows_local"));
    EXPECT_EQ(part_of(plan, "wo_a", rank).zero().value, cell("wo_a_zero_rows"));
    EXPECT_EQ(part_of(plan, "wo_b", rank).dst.value, cell("wo_b_cols_local"));
    EXPECT_EQ(part_of(plan, "wo_b", rank).zero().value, cell("wo_b_zero_cols"));
    // wo_a's columns are a group's heads, virtual or not.
    EXPECT_EQ(heads.virtual_global.value / groups.virtual_global.value * plan.widths->head_dim,
              cell("wo_a_cols"));
    EXPECT_EQ(head_part.count == Elems{0}, cell("empty_shard") == 1);
  });
}

TEST(PlanGolden, EverySharedExpertShard) {  // T2
  each_row("shared_expert_shards.csv", 72, [](const Csv& csv, std::size_t row) {
    const auto cell = [&](const char* column) { return csv.number(row, column); };
    const ShardPlan plan = plan_of(csv, row);
    const AxisPlan& axis = *plan.find(Axis::shared_inter);
    EXPECT_EQ(axis.original.value, cell("I_original"));
    EXPECT_EQ(axis.virtual_global.value, cell("I_virtual_global"));
    EXPECT_EQ(axis.local.value, cell("L_local"));
    for (const char* tensor : {"shared_gate", "shared_up", "shared_down"}) {
      const UnitRange<Entries> part = part_of(plan, tensor, cell("rank"));
      EXPECT_EQ(part.src.value, cell("src_elem"));
      EXPECT_EQ(part.count.value, cell("elems"));
      EXPECT_EQ(part.zero().value, cell("zero_elems"));
      const UnitRange<Entries> scale = part_of(plan, std::string(tensor) + "_scale", cell("rank"));
      EXPECT_EQ(scale.src.value, cell("src_block"));
      EXPECT_EQ(scale.count.value, cell("blocks"));
      EXPECT_EQ(scale.zero().value, cell("zero_blocks"));
      EXPECT_EQ(part.count == Entries{0}, cell("empty_shard") == 1);
    }
  });
}

TEST(PlanGolden, EveryVocabularyShard) {  // T2
  each_row("vocab_shards.csv", 72, [](const Csv& csv, std::size_t row) {
    const auto cell = [&](const char* column) { return csv.number(row, column); };
    const ShardPlan plan = plan_of(csv, row);
    const AxisPlan& axis = *plan.find(Axis::vocab);
    EXPECT_EQ(axis.original.value, cell("vocab_original"));
    EXPECT_EQ(axis.unit.value, cell("global_align"));
    EXPECT_EQ(axis.virtual_global.value, cell("vocab_virtual"));
    EXPECT_EQ(axis.local.value, cell("vocab_local"));
    for (const char* tensor : {"embed", "head"}) {
      const UnitRange<Entries> part = part_of(plan, tensor, cell("rank"));
      EXPECT_EQ(part.src.value, cell("src_row"));
      EXPECT_EQ(part.count.value, cell("real_rows"));
      EXPECT_EQ(part.zero().value, cell("zero_rows"));
    }
  });
}

TEST(PlanGolden, EveryAxisOfTheSummary) {
  each_row("plan_summary.csv", 32, [](const Csv& csv, std::size_t row) {
    const auto cell = [&](const char* column) { return csv.number(row, column); };
    const ShardPlan plan = plan_of(csv, row, test::format_named(csv.text(row, "fmt")));
    const auto expect = [&](Axis which, const char* virtual_column, const char* local_column) {
      EXPECT_EQ(plan.find(which)->virtual_global.value, cell(virtual_column));
      EXPECT_EQ(plan.find(which)->local.value, cell(local_column));
    };
    expect(Axis::moe_inter, "moe_I_virtual", "moe_I_logical_local");
    expect(Axis::heads, "heads_virtual", "heads_local");
    expect(Axis::output_groups, "groups_virtual", "groups_local");
    expect(Axis::shared_inter, "shared_I_virtual", "shared_I_local");
    expect(Axis::vocab, "vocab_virtual", "vocab_local");
    EXPECT_EQ(plan.identity, cell("needs_padding") == 0);
    const auto empty_ranks = [&](Axis which) {
      std::uint64_t empty = 0;
      for (unsigned rank = 0; rank < plan.tp; ++rank)
        empty += slice_axis(*plan.find(which), rank).count == Elems{0} ? 1 : 0;
      return empty;
    };
    EXPECT_EQ(empty_ranks(Axis::heads), cell("empty_ranks_attention"));
    EXPECT_EQ(empty_ranks(Axis::output_groups), cell("empty_ranks_attention"));
    EXPECT_EQ(empty_ranks(Axis::moe_inter), cell("empty_ranks_moe"));
    EXPECT_EQ(empty_ranks(Axis::shared_inter), cell("empty_ranks_shared"));
  });
}

// The figures of the field report, with the scales that travel with the weights.
TEST(PlanGolden, FlashOnThreeRanks) {  // T1, T2
  const ShardPlan plan = make_plan(published_model("V4-Flash", BlockFormat::mxfp4), {.tp = 3});
  struct Row {
    const char* tensor;
    std::uint64_t src, count, dst;  // of rank 2
  };
  for (const Row& row :
       {Row{"wq_b", 24576, 8192, 12288}, Row{"wq_b_scale", 192, 64, 96},
        Row{"attn_sink", 48, 16, 32}, Row{"wo_a", 6144, 2048, 3072}, Row{"wo_a_scale", 48, 16, 24},
        Row{"wo_b", 6144, 2048, 3072}, Row{"wo_b_scale", 48, 16, 24},
        Row{"shared_gate", 1536, 512, 768}, Row{"shared_down_scale", 12, 4, 6},
        Row{"embed", 86272, 43008, 43136}, Row{"head", 86272, 43008, 43136}}) {
    const UnitRange<Entries> part = part_of(plan, row.tensor, 2);
    EXPECT_EQ(part.src.value, row.src) << row.tensor;
    EXPECT_EQ(part.count.value, row.count) << row.tensor;
    EXPECT_EQ(part.dst.value, row.dst) << row.tensor;
  }
  EXPECT_EQ(plan.find(Axis::heads)->virtual_global, Elems{72});
  EXPECT_EQ(plan.find(Axis::output_groups)->virtual_global, Elems{9});
  EXPECT_EQ(plan.inter().virtual_global, Elems{2112});
  EXPECT_EQ(plan.find(Axis::shared_inter)->virtual_global, Elems{2304});
  EXPECT_EQ(plan.find(Axis::vocab)->virtual_global, Elems{129408});
}

}  // namespace
}  // namespace moxie

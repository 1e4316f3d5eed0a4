// SPDX-License-Identifier: Apache-2.0
// T2: where a rank's part of each tensor lies, and that all of the destination is written.
#include "pack/tensor_part.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "pack/poisoned_copy.hpp"
#include "pack/reference_whole.hpp"
#include "support/csv.hpp"
#include "support/packed_model.hpp"
#include "support/whole_checkpoint.hpp"

namespace moxie {
namespace {

using test::plan_of;
using test::poisoned_copy;
using test::same_bytes;
using test::WholeCheckpoint;

MoeModel config_model(const std::string& name) {
  const test::TempFolder folder;
  return read_model(open_checkpoint(folder.write("config.json", synth_config(name).dump())));
}

ModelTensor listed(const MoeModel& model, const std::string& name) {
  std::vector<ModelTensor> tensors = layer_tensors(*model.config.v4, 0);
  std::ranges::move(top_tensors(*model.config.v4), std::back_inserter(tensors));
  for (const ModelTensor& tensor : tensors) {
    if (tensor.name == name || tensor.name == "layers.0." + name) return tensor;
  }
  throw std::runtime_error("no tensor " + name);
}

// virtual_tp.md §4 and v4_tensors.md §1.1, rank 2 of 3: {tensor, first, real, room}.
TEST(TensorPart, FlashOnThreeRanksIsAsPublished) {
  const MoeModel model = config_model("deepseek-v4-flash");
  const ShardPlan plan = plan_of(model, 3, 1, 128);
  struct Row {
    const char* tensor;
    std::uint64_t first, real, room;
  };
  for (const Row& row :
       {Row{"attn.wq_b.weight", 24576, 8192, 12288}, Row{"attn.wq_b.scale", 192, 64, 96},
        Row{"attn.wo_a.weight", 6144, 2048, 3072}, Row{"attn.wo_a.scale", 48, 16, 24},
        Row{"attn.wo_b.weight", 6144, 2048, 3072}, Row{"attn.wo_b.scale", 48, 16, 24},
        Row{"attn.attn_sink", 48, 16, 32}, Row{"ffn.shared_experts.w1.weight", 1536, 512, 768},
        Row{"ffn.shared_experts.w1.scale", 12, 4, 6}, Row{"ffn.shared_experts.w3.scale", 12, 4, 6},
        Row{"ffn.shared_experts.w2.weight", 1536, 512, 768},
        Row{"ffn.shared_experts.w2.scale", 12, 4, 6}, Row{"embed.weight", 86272, 43008, 43136},
        Row{"head.weight", 86272, 43008, 43136}}) {
    const ModelTensor tensor = listed(model, row.tensor);
    const TensorPart part = part_of(tensor, plan, 2);
    const unsigned dimension = dimension_of(tensor.cut->unit);
    const std::uint64_t entry = dimension == 0 ? 1 : bits_of(tensor.dtype) / 8;
    EXPECT_EQ((dimension == 0 ? part.first_row : part.first_byte), row.first * entry) << row.tensor;
    EXPECT_EQ((dimension == 0 ? part.real_rows : part.real_row_bytes), row.real * entry)
        << row.tensor;
    EXPECT_EQ((dimension == 0 ? part.rows : part.row_bytes), row.room * entry) << row.tensor;
    EXPECT_EQ(part_shape(tensor, plan)[dimension], row.room) << row.tensor;
    EXPECT_EQ(part.tail == Tail::minus_infinity, tensor.name.ends_with("sink")) << row.tensor;
  }
  const TensorPart whole = part_of(listed(model, "attn.wq_a.weight"), plan, 2);
  EXPECT_EQ(whole.rows, 1024U);
  EXPECT_EQ(whole.row_bytes, 4096U);
  EXPECT_EQ(whole.real_bytes(), whole.bytes());
}

// Every row of the three tables, through the listed tensors.
TEST(TensorPart, EveryRowOfTheTablesIsAsAnIndependentProgramComputedIt) {  // T2
  for (const auto& [name, config] :
       {std::pair{"V4-Flash", "deepseek-v4-flash"}, std::pair{"V4-Pro", "deepseek-v4-pro"}}) {
    const MoeModel model = config_model(config);
    const auto each = [&, name = name](const char* table, const auto& check) {
      const test::Csv csv = test::golden(table);
      std::size_t rows = 0;
      for (std::size_t row = 0; row < csv.rows(); ++row) {
        if (csv.text(row, "model") != name) continue;
        ++rows;
        SCOPED_TRACE(std::string(table) + " row " + std::to_string(row));
        const ShardPlan plan = plan_of(model, static_cast<unsigned>(csv.number(row, "tp")));
        check([&](const char* column) { return csv.number(row, column); },
              [&](const char* tensor) {
                return part_of(listed(model, tensor), plan,
                               static_cast<unsigned>(csv.number(row, "rank")));
              });
      }
      EXPECT_EQ(rows, 36U);
    };
    each("attention_shards.csv", [&](const auto& cell, const auto& part) {
      const std::uint64_t dim = model.config.v4->head_dim;
      const std::uint64_t rank = model.config.v4->o_rank;
      const TensorPart wq_b = part("attn.wq_b.weight");
      EXPECT_EQ(wq_b.first_row, cell("src_head") * dim);
      EXPECT_EQ(wq_b.real_rows, cell("real_heads") * dim);
      EXPECT_EQ(wq_b.rows, cell("wq_b_rows_local"));
      EXPECT_EQ(wq_b.rows - wq_b.real_rows, cell("wq_b_zero_rows"));
      const TensorPart scales = part("attn.wq_b.scale");
      EXPECT_EQ(scales.first_row * 128, wq_b.first_row);
      EXPECT_EQ(scales.real_rows * 128, wq_b.real_rows);
      EXPECT_EQ(scales.rows * 128, wq_b.rows);
      const TensorPart sink = part("attn.attn_sink");
      EXPECT_EQ(sink.first_row, cell("src_head"));
      EXPECT_EQ(sink.real_rows, cell("real_heads"));
      EXPECT_EQ(sink.rows, cell("heads_backend_padded"));
      const TensorPart wo_a = part("attn.wo_a.weight");
      EXPECT_EQ(wo_a.first_row, cell("src_group") * rank);
      EXPECT_EQ(wo_a.real_rows, cell("real_groups") * rank);
      EXPECT_EQ(wo_a.rows, cell("wo_a_rows_local"));
      EXPECT_EQ(wo_a.rows - wo_a.real_rows, cell("wo_a_zero_rows"));
      EXPECT_EQ(wo_a.row_bytes, cell("wo_a_cols"));
      const TensorPart wo_b = part("attn.wo_b.weight");
      EXPECT_EQ(wo_b.first_byte, cell("src_group") * rank);
      EXPECT_EQ(wo_b.real_row_bytes, cell("real_groups") * rank);
      EXPECT_EQ(wo_b.row_bytes, cell("wo_b_cols_local"));
      EXPECT_EQ(wo_b.row_bytes - wo_b.real_row_bytes, cell("wo_b_zero_cols"));
      for (const char* matrix : {"attn.wo_a", "attn.wo_b"}) {
        const TensorPart tiles = part((std::string(matrix) + ".scale").c_str());
        const bool rows = matrix == std::string("attn.wo_a");
        EXPECT_EQ((rows ? tiles.first_row : tiles.first_byte) * 128, cell("src_group") * rank);
        EXPECT_EQ((rows ? tiles.real_rows : tiles.real_row_bytes) * 128,
                  cell("real_groups") * rank);
        EXPECT_EQ((rows ? tiles.rows : tiles.row_bytes) * 128, cell("wo_a_rows_local"));
      }
      EXPECT_EQ(wq_b.real_rows == 0, cell("empty_shard") == 1);
    });
    each("shared_expert_shards.csv", [&](const auto& cell, const auto& part) {
      for (const char* matrix : {"ffn.shared_experts.w1", "ffn.shared_experts.w3"}) {
        const TensorPart weight = part((std::string(matrix) + ".weight").c_str());
        EXPECT_EQ(weight.first_row, cell("src_elem"));
        EXPECT_EQ(weight.real_rows, cell("elems"));
        EXPECT_EQ(weight.rows, cell("L_local"));
        EXPECT_EQ(weight.rows - weight.real_rows, cell("zero_elems"));
        const TensorPart scale = part((std::string(matrix) + ".scale").c_str());
        EXPECT_EQ(scale.first_row, cell("src_block"));
        EXPECT_EQ(scale.real_rows, cell("blocks"));
        EXPECT_EQ(scale.rows - scale.real_rows, cell("zero_blocks"));
      }
      const TensorPart down = part("ffn.shared_experts.w2.weight");
      EXPECT_EQ(down.first_byte, cell("src_elem"));
      EXPECT_EQ(down.real_row_bytes, cell("elems"));
      EXPECT_EQ(down.row_bytes - down.real_row_bytes, cell("zero_elems"));
      const TensorPart scale = part("ffn.shared_experts.w2.scale");
      EXPECT_EQ(scale.first_byte, cell("src_block"));
      EXPECT_EQ(scale.real_row_bytes, cell("blocks"));
      EXPECT_EQ(scale.row_bytes - scale.real_row_bytes, cell("zero_blocks"));
    });
    each("vocab_shards.csv", [&](const auto& cell, const auto& part) {
      for (const char* matrix : {"embed.weight", "head.weight"}) {
        const TensorPart rows = part(matrix);
        EXPECT_EQ(rows.first_row, cell("src_row"));
        EXPECT_EQ(rows.real_rows, cell("real_rows"));
        EXPECT_EQ(rows.rows, cell("vocab_local"));
        EXPECT_EQ(rows.rows - rows.real_rows, cell("zero_rows"));
      }
    });
  }
}

TEST(TensorPart, AllOfAPoisonedDestinationIsWrittenAndNothingBeside) {  // T2
  const WholeCheckpoint model({.config = test::one_layer_v4()});
  std::vector<ModelTensor> tensors = layer_tensors(model.config(), 0);
  std::ranges::move(top_tensors(model.config()), std::back_inserter(tensors));
  for (const unsigned tp : {1U, 3U, 5U, 7U}) {
    const ShardPlan plan = plan_of(*model, tp);
    const test::WholeReference reference(model->checkpoint, model.config(), tp);
    for (const ModelTensor& tensor : tensors) {
      for (unsigned rank = 0; rank < tp; ++rank) {
        for (const std::uint64_t rows : {1, 7, 1 << 20}) {
          const TensorPart part = part_of(tensor, plan, rank);
          ASSERT_TRUE(same_bytes(reference.pack(tensor.name, rank),
                                 poisoned_copy(part, model.bytes(tensor.name), rows)))
              << tensor.name << " rank " << rank << " of " << tp << " by " << rows;
        }
      }
    }
  }
}

TEST(TensorPart, TypesThatDoNotFillBytesAndScalarsAreWhole) {
  const ModelTensor halves{.name = "x", .dtype = DType::f4, .shape = {3, 6}, .cut = {}};
  EXPECT_EQ(rows_of(halves).rows * rows_of(halves).row_bytes, 9U);
  const ModelTensor scalar{.name = "x", .dtype = DType::f32, .shape = {}, .cut = {}};
  EXPECT_EQ(rows_of(scalar).rows, 1U);
  EXPECT_EQ(rows_of(scalar).row_bytes, 4U);
}

}  // namespace
}  // namespace moxie

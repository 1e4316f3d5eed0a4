// SPDX-License-Identifier: Apache-2.0
// T2: every tensor of a whole checkpoint in packed files, against a second packer.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "moxie/pack.hpp"
#include "pack/whole_expectations.hpp"
#include "support/csv.hpp"
#include "support/folder_bytes.hpp"
#include "support/packed_model.hpp"
#include "support/refusal.hpp"
#include "support/whole_checkpoint.hpp"

namespace moxie {
namespace {

using test::expect_as_reference;
using test::is_routed;
using test::one_layer_v4;
using test::plan_of;
using test::rank_folder;
using test::same_bytes;
using test::WholeCheckpoint;

// Joins the ranks' real parts of every cut tensor by the counts alone.
void expect_joined_is_the_source(const WholeCheckpoint& model, const ShardPlan& plan,
                                 const std::filesystem::path& set) {
  std::vector<Checkpoint> ranks;
  for (unsigned rank = 0; rank < plan.tp; ++rank)
    ranks.push_back(open_checkpoint(set / rank_folder(rank)));
  std::vector<ModelTensor> tensors = top_tensors(model.config());
  std::ranges::copy(layer_tensors(model.config(), 0), std::back_inserter(tensors));
  for (const ModelTensor& tensor : tensors) {
    if (!tensor.cut) continue;
    const unsigned dimension = dimension_of(tensor.cut->unit);
    const TensorInfo* source = model->checkpoint.find(tensor.name);
    const std::uint64_t outer = dimension == 0 ? 1 : tensor.shape[0];
    const std::uint64_t entry = source->bytes / (outer * tensor.shape[dimension]);
    std::vector<std::byte> joined;
    for (std::uint64_t row = 0; row < outer; ++row) {
      for (unsigned rank = 0; rank < plan.tp; ++rank) {
        const auto range = cut_range(*tensor.cut, *plan.find(tensor.cut->axis), rank);
        const auto part = ranks[rank].bytes(*ranks[rank].find(tensor.name));
        const auto from = part.subspan(row * range.dst.value * entry, range.count.value * entry);
        joined.insert(joined.end(), from.begin(), from.end());
      }
    }
    EXPECT_TRUE(same_bytes(model.bytes(tensor.name), joined)) << tensor.name;
  }
}

TEST(PackWhole, EveryTensorOfTheTinyModelIsTheReferencesAtAnyNumberOfRanks) {  // T2
  const WholeCheckpoint model({});
  for (unsigned tp = 1; tp <= 8; ++tp) {
    SCOPED_TRACE("tp " + std::to_string(tp));
    const ShardPlan plan = plan_of(*model, tp);
    const std::filesystem::path out = model / std::to_string(tp);
    const PackReport report = pack_to_folder(*model, plan, {.out = out});
    EXPECT_EQ(report.layers, (std::vector<int>{0, 1, 2, 3, 4}));
    EXPECT_TRUE(report.findings.empty());
    ASSERT_NO_FATAL_FAILURE(expect_as_reference(model, plan, out));
    expect_joined_is_the_source(model, plan, out);
    std::filesystem::remove_all(out);
  }
}

TEST(PackWhole, ExpertsAreThoseOfAnExpertsOnlyCheckpoint) {
  for (const FileLayout layout : {FileLayout::logical, FileLayout::kernel}) {
    test::WholeOptions options{.config = one_layer_v4()};
    const WholeCheckpoint whole(options);
    options.edits = {[](test::TinyTensor& tensor) {
      return is_routed(tensor.name) || tensor.name.find("ffn.gate.") != std::string::npos;
    }};
    const WholeCheckpoint experts(options);
    const ShardPlan plan = plan_of(*whole, 2, 2);
    pack_to_folder(*whole, plan, {.out = whole / "packed", .layout = layout});
    const PackReport report =
        pack_to_folder(*experts, plan, {.out = experts / "packed", .layout = layout});
    EXPECT_EQ(report.layers, std::vector<int>{0});  // as before there were whole models
    EXPECT_EQ(report.findings.at(0).code, "MOXIE-K007");
    for (unsigned rank = 0; rank < 4; ++rank) {
      const Checkpoint a = open_checkpoint(experts / "packed" / rank_folder(rank));
      const Checkpoint b = open_checkpoint(whole / "packed" / rank_folder(rank));
      EXPECT_EQ(a.files().size(), 1U);
      EXPECT_EQ(b.files().size(), 3U);
      for (const TensorInfo& tensor : a.tensors()) {
        EXPECT_EQ(tensor.name.find("gate."), std::string::npos) << "routers alone are left out";
        EXPECT_TRUE(same_bytes(a.bytes(tensor), b.bytes(*b.find(tensor.name)))) << tensor.name;
      }
      const PackedFolder folder = open_packed_folder(whole / "packed");
      EXPECT_TRUE(
          same_bytes(pack(*whole, plan, rank, 0).blobs, load_packed(folder, rank, 0).blobs));
    }
  }
}

TEST(PackWhole, ReplicasOfExpertGroupsAreEqualAndOneRankAtATimeIsTheSame) {
  const WholeCheckpoint model({.config = one_layer_v4()});
  const ShardPlan plan = plan_of(*model, 3, 2);
  pack_to_folder(*model, plan, {.out = model / "all"});
  ASSERT_NO_FATAL_FAILURE(expect_as_reference(model, plan, model / "all"));
  for (const unsigned rank : {4U, 0U, 1U, 5U, 3U, 2U})
    pack_to_folder(*model, plan, {.out = model / "each", .ranks = {rank}});
  EXPECT_TRUE(test::same_folders(model / "all", model / "each"));
}

TEST(PackWhole, AnyMemoryAndAnyPieceGivesTheSameBytes) {
  const WholeCheckpoint model({.config = one_layer_v4({}, {4, 0})});
  const ShardPlan plan = plan_of(*model, 3);
  pack_to_folder(*model, plan, {.out = model / "all"});
  const Error error = test::refusal_of(
      [&] { pack_to_folder(*model, plan, {.out = model / "none", .memory_bytes = 100}); });
  EXPECT_EQ(test::code_of(error), "MOXIE-K004");
  EXPECT_FALSE(std::filesystem::exists(model / "none"));
  const std::string& hint = error.findings().front().hint;
  const std::uint64_t least = std::stoull(hint.substr(hint.find_first_of("0123456789")));
  for (const std::uint64_t memory : {least, least + 20000, 3 * least, 20 * least}) {
    const auto out = model / std::to_string(memory);
    pack_to_folder(*model, plan, {.out = out, .memory_bytes = memory});
    EXPECT_TRUE(test::same_folders(model / "all", out)) << memory;
  }
}

TEST(PackWhole, LayersThatAreNamedComeWithoutTheTop) {
  const WholeCheckpoint model({.config = one_layer_v4()});
  const ShardPlan plan = plan_of(*model, 2);
  EXPECT_EQ(pack_to_folder(*model, plan, {.out = model / "mtp", .layers = {1}}).files, 2U);
  const Checkpoint packed = open_checkpoint(model / "mtp" / "rank-000");
  EXPECT_NE(packed.find("mtp.0.attn.wq_b.weight"), nullptr);
  EXPECT_NE(packed.find("mtp.0.ffn.experts.2.w2.scale"), nullptr);
  EXPECT_EQ(packed.find("embed.weight"), nullptr);
  EXPECT_EQ(packed.files().size(), 1U);
}

// Eight groups: two a rank, then seven ranks for two groups.
TEST(PackWhole, RanksWithoutARealPartHoldTailsOnly) {
  for (const std::uint64_t groups : {8, 2}) {
    const WholeCheckpoint model({.config = one_layer_v4({{"o_groups", groups}})});
    const ShardPlan plan = plan_of(*model, 7);
    const auto out = model / std::to_string(groups);
    pack_to_folder(*model, plan, {.out = out});
    ASSERT_NO_FATAL_FAILURE(expect_as_reference(model, plan, out));
    const Checkpoint packed = open_checkpoint(out / "rank-006");
    for (const char* name :
         {"attn.wq_b.weight", "attn.wq_b.scale", "attn.wo_a.weight", "attn.wo_b.weight",
          "attn.wo_b.scale", "ffn.shared_experts.w2.weight"}) {
      const TensorInfo* tensor = packed.find("layers.0." + std::string(name));
      ASSERT_NE(tensor, nullptr);
      EXPECT_GT(tensor->bytes, 0U) << name;
      EXPECT_TRUE(test::all_zero(packed.bytes(*tensor))) << name;
    }
    const auto sinks = packed.bytes(*packed.find("layers.0.attn.attn_sink"));
    ASSERT_EQ(sinks.size(), 16 * sizeof(float));  // the backend's heads
    for (std::size_t at = 0; at < sinks.size(); ++at)
      EXPECT_EQ(std::to_integer<int>(sinks[at]), (std::vector{0, 0, 0x80, 0xFF})[at % 4]);
  }
}

TEST(PackWhole, UnderAnIdentityPlanEveryTensorKeepsNameTypeShapeAndBytes) {
  const WholeCheckpoint model({});
  const ShardPlan plan = plan_of(*model, 1);
  ASSERT_TRUE(plan.identity);
  pack_to_folder(*model, plan, {.out = model / "packed"});
  const Checkpoint packed = open_checkpoint(model / "packed" / "rank-000");
  EXPECT_EQ(packed.tensors().size(), model->checkpoint.tensors().size());
  for (const TensorInfo& source : model->checkpoint.tensors()) {
    const TensorInfo* tensor = packed.find(source.name);
    ASSERT_NE(tensor, nullptr) << source.name;
    EXPECT_EQ(tensor->dtype, source.dtype) << source.name;
    EXPECT_EQ(tensor->shape, source.shape) << source.name;
    EXPECT_TRUE(same_bytes(model.bytes(source.name), packed.bytes(*tensor))) << source.name;
  }
}

// The models of the tables, with narrow heads and groups: heads, groups, blocks of the shared
// experts and blocks of the vocabulary are as published.
class PackWholeTables : public testing::TestWithParam<const char*> {};

TEST_P(PackWholeTables, BytesOfEveryRowAreTheReferences) {  // T2
  const test::Csv attention = test::golden("attention_shards.csv");
  const test::Csv shared = test::golden("shared_expert_shards.csv");
  const test::Csv vocab = test::golden("vocab_shards.csv");
  const auto first_row = [&](const test::Csv& csv) {
    for (std::size_t row = 0; row < csv.rows(); ++row) {
      if (csv.text(row, "model") == GetParam()) return row;
    }
    throw std::runtime_error("no such model");
  };
  const std::uint64_t heads = attention.number(first_row(attention), "heads_original");
  const std::uint64_t groups = attention.number(first_row(attention), "groups_original");
  const std::uint64_t inter = shared.number(first_row(shared), "I_original");
  const std::uint64_t narrow_inter = inter * 4 / 128;  // as many tiles
  const Json config =
      test::narrow_v4({{"num_attention_heads", heads},
                       {"o_groups", groups},
                       {"n_routed_experts", 1},
                       {"num_experts_per_tok", 1},
                       {"moe_intermediate_size", narrow_inter},
                       {"vocab_size", vocab.number(first_row(vocab), "vocab_original") / 64}});
  ASSERT_EQ(narrow_inter % 32, 0U) << "no MXFP4 width";
  const WholeCheckpoint model({.config = config});
  std::size_t rows = 0;
  for (unsigned tp = 1; tp <= 8; ++tp) {
    const ShardPlan plan = plan_of(*model, tp);
    const auto out = model / std::to_string(tp);
    pack_to_folder(*model, plan, {.out = out});
    ASSERT_NO_FATAL_FAILURE(expect_as_reference(model, plan, out));
    expect_joined_is_the_source(model, plan, out);
    for (std::size_t row = 0; row < attention.rows(); ++row) {
      if (attention.text(row, "model") != GetParam() || attention.number(row, "tp") != tp) continue;
      ++rows;
      const auto rank = static_cast<unsigned>(attention.number(row, "rank"));
      const Checkpoint packed = open_checkpoint(out / rank_folder(rank));
      const auto zero_rows = [&](const char* name) {
        const TensorInfo* tensor = packed.find("layers.0." + std::string(name));
        const auto bytes = packed.bytes(*tensor);
        const std::uint64_t width = tensor->bytes / tensor->shape[0];
        std::uint64_t zero = 0;
        while (zero < tensor->shape[0] &&
               test::all_zero(bytes.subspan((tensor->shape[0] - 1 - zero) * width, width)))
          ++zero;
        return zero;
      };
      EXPECT_EQ(zero_rows("attn.wq_b.weight"), attention.number(row, "wq_b_zero_rows") / 128);
      EXPECT_EQ(zero_rows("attn.wo_a.weight"), attention.number(row, "wo_a_zero_rows") / 256);
    }
    std::filesystem::remove_all(out);
  }
  EXPECT_EQ(rows, 36U);
}

INSTANTIATE_TEST_SUITE_P(Published, PackWholeTables, testing::Values("V4-Flash", "V4-Pro"),
                         [](const auto& param) {
                           return std::string(param.param).replace(2, 1, "");
                         });

}  // namespace
}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// What pack_to_folder writes, read back by the strict reader.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "base/hash.hpp"
#include "moxie/pack.hpp"
#include "support/folder_bytes.hpp"
#include "support/forced_kernels.hpp"
#include "support/packed_model.hpp"

namespace moxie {
namespace {

using test::bytes_of;
using test::packed_blob;
using test::plan_of;
using test::same_bytes;
using test::tiny_options;
using test::TinyModel;

const Json& at(const Json& json, std::string_view key) {
  const Json* value = json.find(key);
  if (value == nullptr) throw std::runtime_error("no key " + std::string(key));
  return *value;
}

Json read_json(const std::filesystem::path& path) {
  return Json::parse(test::read_bytes(path), path.string());
}

std::string rank_folder(unsigned rank) { return "rank-00" + std::to_string(rank); }

// One expert of a logical file: every tensor of the source under its own name and type, as long as
// the kernel reads it.
void expect_logical_expert(const TinyModel& model, const ShardPlan& plan, unsigned rank,
                           std::uint64_t expert, const Checkpoint& packed) {
  const auto blob = packed_blob(*model, plan, rank, expert);
  for (const PackedSegment& segment : plan.layout.segments) {
    const TensorInfo* source =
        test::source_of_segment(model.layer().experts[expert], segment.segment);
    if (source == nullptr) continue;
    const TensorInfo* tensor = packed.find(source->name);
    ASSERT_NE(tensor, nullptr) << source->name;
    EXPECT_EQ(name_of(tensor->dtype), name_of(source->dtype)) << source->name;
    Shape shape = source->shape;  // only the cut axis has another length
    if (!shape.empty()) {
      const bool down = source->name.find(".w2.") != std::string::npos;
      shape[down ? 1 : 0] =
          shape[down ? 1 : 0] * plan.inter().kernel.value / plan.inter().original.value;
    }
    EXPECT_EQ(to_string(tensor->shape), to_string(shape)) << source->name;
    EXPECT_TRUE(same_bytes(bytes_of(blob, segment), packed.bytes(*tensor))) << source->name;
  }
}

TEST(PackFolder, LogicalFilesHoldTheSourcesTensorsAtKernelWidth) {
  const test::PortableKernel forced;
  for (const BlockFormat format : test::kFormats) {
    test::TinyOptions options = tiny_options(format);
    options.experts = 5;
    options.edits = {test::leave_out("experts.4.w2.input_scale")};
    const TinyModel model(options);
    const ShardPlan plan = plan_of(*model, 3, 2, 128);
    pack_to_folder(*model, plan, {.out = model / "packed"});
    for (const RankPlan& rank : plan.ranks) {
      const Checkpoint packed = open_checkpoint(model / "packed" / rank_folder(rank.rank));
      EXPECT_TRUE(packed.findings().empty());
      ASSERT_EQ(packed.files().size(), 1U);
      EXPECT_EQ(packed.files()[0].path.filename(), "model-00000.safetensors");
      std::uint64_t tensors = rank.experts.count() * plan.layout.segments.size();
      if (format == BlockFormat::nvfp4 && rank.experts.holds(4)) --tensors;  // absent stays absent
      EXPECT_EQ(packed.tensors().size(), tensors);
      for (const std::uint64_t expert : rank.experts.ids())
        ASSERT_NO_FATAL_FAILURE(expect_logical_expert(model, plan, rank.rank, expert, packed));
    }
  }
}

TEST(PackFolder, KernelFilesHoldOneTensorOfBlobsPerLayer) {
  test::TinyOptions options = tiny_options(BlockFormat::nvfp4);
  options.layers = 2;
  options.shards = test::TinyShards::indexed;
  const TinyModel model(options);
  const ShardPlan plan = plan_of(*model, 2, 2);
  pack_to_folder(*model, plan, {.out = model / "packed", .layout = FileLayout::kernel});
  for (const RankPlan& rank : plan.ranks) {
    const Checkpoint packed = open_checkpoint(model / "packed" / rank_folder(rank.rank));
    ASSERT_EQ(packed.tensors().size(), 2U);
    for (const int layer : {0, 1}) {
      const TensorInfo* tensor = packed.find("layers." + std::to_string(layer) + ".experts");
      ASSERT_NE(tensor, nullptr);
      EXPECT_EQ(tensor->dtype, DType::u8);
      EXPECT_EQ(tensor->shape, (Shape{rank.experts.count(), plan.layout.stride}));
      EXPECT_TRUE(same_bytes(pack(*model, plan, rank.rank, layer).blobs, packed.bytes(*tensor)));
    }
  }
  const Json layout = at(read_json(model / "packed" / "moxie-plan.json"), "layout");
  EXPECT_EQ(at(layout, "files").as_string(), "kernel");
  EXPECT_EQ(at(layout, "stride").as_unsigned(), plan.layout.stride);
  EXPECT_EQ(at(layout, "segments").elements().size(), plan.layout.segments.size());
}

// a 4-bit type counts elements, a one-byte carrier pairs.
TEST(PackFolder, FourBitTypesKeepTheirLogicalShape) {
  test::TinyOptions options = tiny_options(BlockFormat::mxfp4);
  options.edits = {[](test::TinyTensor& tensor) {
    if (tensor.dtype != DType::i8) return true;
    tensor.dtype = DType::f4;
    tensor.shape[1] *= 2;
    return true;
  }};
  const TinyModel model(options);
  const ShardPlan plan = plan_of(*model, 2, 1, 128);
  pack_to_folder(*model, plan, {.out = model / "packed"});
  const Checkpoint packed = open_checkpoint(model / "packed" / "rank-001");
  const TensorInfo* gate = packed.find("layers.0.ffn.experts.0.w1.weight");
  const TensorInfo* down = packed.find("layers.0.ffn.experts.0.w2.weight");
  ASSERT_TRUE(gate != nullptr && down != nullptr);
  EXPECT_EQ(gate->dtype, DType::f4);
  EXPECT_EQ(gate->shape, (Shape{128, 64}));
  EXPECT_EQ(down->shape, (Shape{64, 128}));
}

TEST(PackFolder, FileListsStateSizesAndChecksums) {
  test::TinyOptions options = tiny_options(BlockFormat::mxfp4);
  options.layers = 2;
  const TinyModel model(options);
  const ShardPlan plan = plan_of(*model, 3);
  const PackReport report = pack_to_folder(*model, plan, {.out = model / "packed"});
  EXPECT_EQ(report.ranks, (std::vector<unsigned>{0, 1, 2}));
  EXPECT_EQ(report.layers, (std::vector<int>{0, 1}));
  EXPECT_EQ(report.files, 6U);
  std::uint64_t bytes = 0;
  for (unsigned rank = 0; rank < 3; ++rank) {
    const auto folder = model / "packed" / rank_folder(rank);
    const Json list = read_json(folder / "files.json");
    EXPECT_EQ(at(list, "plan_hash").as_string(), report.plan_hash);
    ASSERT_EQ(at(list, "files").members().size(), 2U);
    for (const JsonMember& file : at(list, "files").members()) {
      const std::string content = test::read_bytes(folder / file.key);
      EXPECT_EQ(at(file.value, "bytes").as_unsigned(), content.size()) << file.key;
      EXPECT_EQ(at(file.value, "xxh3_128").as_string(), hash_hex(content)) << file.key;
      bytes += content.size();
    }
  }
  EXPECT_EQ(report.bytes, bytes);
}

TEST(PackFolder, PlanIsReadableAndItsHashIsThatOfItsText) {
  const TinyModel model(BlockFormat::nvfp4);
  const ShardPlan plan = plan_of(*model, 3, 1, 128);
  const PackReport report = pack_to_folder(*model, plan, {.out = model / "packed"});
  Json document = read_json(model / "packed" / "moxie-plan.json");
  EXPECT_EQ(at(document, "plan_hash").as_string(), report.plan_hash);
  EXPECT_EQ(document, packed_plan_json(plan, FileLayout::logical));
  const ShardPlan back = plan_from_json(document, "moxie-plan.json");
  EXPECT_EQ(back.layout, plan.layout);
  EXPECT_EQ(to_json(back), to_json(plan));
  document.erase("plan_hash");
  EXPECT_EQ(hash_hex(document.dump()), report.plan_hash);
  EXPECT_EQ(read_json(model / "packed" / "config.json"), model->checkpoint.config());
}

TEST(PackFolder, ConfigFilesAreCopiedByteByByte) {
  test::TinyOptions options = tiny_options(BlockFormat::nvfp4);
  options.quant_config = Json::object().set("producer", Json::object());
  test::TempFolder folder;
  test::write_tiny(folder.path() / "model", options);
  const std::string config = test::read_bytes(folder.path() / "model/config.json") + "  \n\n";
  folder.write("model/config.json", config);
  const MoeModel model = read_model(open_checkpoint(folder.path() / "model"));
  pack_to_folder(model, plan_of(model, 2), {.out = folder.path() / "packed"});
  EXPECT_EQ(test::read_bytes(folder.path() / "packed/config.json"), config);
  EXPECT_EQ(test::read_bytes(folder.path() / "packed/hf_quant_config.json"),
            test::read_bytes(folder.path() / "model/hf_quant_config.json"));
}

TEST(PackFolder, PackingTwiceGivesTheSameBytes) {
  const TinyModel model(BlockFormat::nvfp4);
  for (const char* out : {"first", "second"})
    pack_to_folder(*model, plan_of(*model, 3), {.out = model / out});
  EXPECT_TRUE(test::same_folders(model / "first", model / "second"));
}

// Ranks are packed on different machines and at different times.
TEST(PackFolder, OneRankAtATimeEqualsAllAtOnce) {
  for (const FileLayout layout : {FileLayout::logical, FileLayout::kernel}) {
    const TinyModel model(BlockFormat::nvfp4);
    const ShardPlan plan = plan_of(*model, 3, 1, 64);
    pack_to_folder(*model, plan, {.out = model / "all", .layout = layout});
    for (const unsigned rank : {2U, 0U, 1U})
      pack_to_folder(*model, plan, {.out = model / "each", .ranks = {rank}, .layout = layout});
    EXPECT_TRUE(test::same_folders(model / "all", model / "each"));
  }
}

// Another rank may be packed at the same time, or have died before.
TEST(PackFolder, UnfinishedFoldersOfOthersAreNoHindrance) {
  const TinyModel model(BlockFormat::mxfp4);
  model.folder().write("packed/.rank-001.partial-1/model-00000.safetensors", "half");
  const ShardPlan plan = plan_of(*model, 2);
  EXPECT_NO_THROW(pack_to_folder(*model, plan, {.out = model / "packed", .ranks = {0}}));
  EXPECT_TRUE(std::filesystem::exists(model / "packed/.rank-001.partial-1"));
}

TEST(PackFolder, RepeatedRanksAndLayersCountOnce) {
  test::TinyOptions options = tiny_options(BlockFormat::mxfp4);
  options.layers = 3;
  const TinyModel model(options);
  const ShardPlan plan = plan_of(*model, 2);
  const PackReport report = pack_to_folder(
      *model, plan, {.out = model / "packed", .ranks = {1, 0, 1}, .layers = {2, 0, 2}});
  EXPECT_EQ(report.ranks, (std::vector<unsigned>{0, 1}));
  EXPECT_EQ(report.layers, (std::vector<int>{0, 2}));
  EXPECT_EQ(report.files, 4U);
  EXPECT_FALSE(std::filesystem::exists(model / "packed" / "rank-000" / "model-00001.safetensors"));
}

TEST(PackFolder, AnOldProofGoesWhenARankIsAdded) {
  const TinyModel model(BlockFormat::mxfp4);
  const ShardPlan plan = plan_of(*model, 2);
  pack_to_folder(*model, plan, {.out = model / "packed", .ranks = {0}});
  model.folder().write("packed/moxie-proof.json", "{}");
  pack_to_folder(*model, plan, {.out = model / "packed", .ranks = {1}});
  EXPECT_FALSE(std::filesystem::exists(model / "packed" / "moxie-proof.json"));
}

TEST(PackFolder, MultiTokenPredictionBlocksArePackedOnlyWhenAsked) {
  test::TinyOptions options = tiny_options(BlockFormat::mxfp4);
  options.mtp_blocks = 1;
  const TinyModel model(options);
  const ShardPlan plan = plan_of(*model, 2);
  EXPECT_EQ(pack_to_folder(*model, plan, {.out = model / "main"}).layers, std::vector<int>{0});
  EXPECT_EQ(pack_to_folder(*model, plan, {.out = model / "mtp", .layers = {1}}).layers,
            std::vector<int>{1});
  const Checkpoint packed = open_checkpoint(model / "mtp" / "rank-000");
  EXPECT_NE(packed.find("mtp.0.ffn.experts.0.w1.weight"), nullptr);
}

// A process that is gone, one that is not, one of another machine perhaps, and a name that is none.
TEST(PackFolder, WhatAKilledPackLeftIsRemoved) {
  const pid_t gone = ::fork();
  if (gone == 0) ::_exit(0);
  ASSERT_EQ(::waitpid(gone, nullptr, 0), gone);
  const TinyModel model(tiny_options(BlockFormat::mxfp4));
  const auto out = model / "packed";
  const auto leave = [&](const std::string& name, std::chrono::minutes age) {
    std::filesystem::create_directories(out / name);
    std::ofstream(out / name / "model-00000.safetensors") << "begun";
    const auto then = std::filesystem::file_time_type::clock::now() - age;
    std::filesystem::last_write_time(out / name / "model-00000.safetensors", then);
    std::filesystem::last_write_time(out / name, then);
  };
  const std::string dead = ".partial-" + std::to_string(gone);
  leave(".rank-000" + dead, std::chrono::minutes(20));
  leave(".rank-001" + dead, std::chrono::minutes(1));
  leave(".rank-002.partial-" + std::to_string(::getppid()), std::chrono::minutes(20));
  leave(".rank-003" + dead + "x", std::chrono::minutes(20));
  pack_to_folder(*model, plan_of(*model, 1), {.out = out});
  EXPECT_FALSE(std::filesystem::exists(out / (".rank-000" + dead)));
  EXPECT_TRUE(std::filesystem::exists(out / (".rank-001" + dead)));
  EXPECT_TRUE(std::filesystem::exists(out / (".rank-002.partial-" + std::to_string(::getppid()))));
  EXPECT_TRUE(std::filesystem::exists(out / (".rank-003" + dead + "x")));
}

TEST(PackFolder, ProgressRisesToItsTotal) {
  test::TinyOptions options = tiny_options(BlockFormat::mxfp4);
  options.layers = 2;
  const TinyModel model(options);
  const ShardPlan plan = plan_of(*model, 2);
  std::vector<std::pair<std::uint64_t, std::uint64_t>> calls;
  pack_to_folder(
      *model, plan,
      {.out = model / "packed", .progress = [&](std::uint64_t done, std::uint64_t total) {
         calls.emplace_back(done, total);
         return true;
       }});
  ASSERT_FALSE(calls.empty());
  EXPECT_TRUE(std::ranges::is_sorted(calls));
  EXPECT_EQ(calls.back().first, calls.back().second);
  EXPECT_EQ(calls.front().second, 2 * (plan.ranks[0].bytes_layer + plan.ranks[1].bytes_layer));
}

}  // namespace
}  // namespace moxie

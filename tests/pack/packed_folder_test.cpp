// SPDX-License-Identifier: Apache-2.0
// Packed sets opened for running: what is loaded is what pack() makes of the source, and what is
// wrong in a set is refused.
#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/hash.hpp"
#include "moxie/pack.hpp"
#include "pack/packed_set.hpp"
#include "support/packed_model.hpp"
#include "support/refusal.hpp"

namespace moxie {
namespace {

namespace fs = std::filesystem;
using test::TinyModel;
using test::TinyOptions;

constexpr FileLayout kLayouts[] = {FileLayout::logical, FileLayout::kernel};

void edit_json(const fs::path& path, const std::function<void(Json&)>& change) {
  Json json = Json::parse(test::read_bytes(path), path.string());
  change(json);
  std::ofstream(path) << json.dump();
}

// A model and its set.
struct Packed {
  Packed(const TinyOptions& options, const PlanOptions& plan_options, FileLayout layout)
      : model(options), plan(make_plan(*model, plan_options)), path(model / "packed") {
    pack_to_folder(*model, plan, {.out = path, .layout = layout});
  }
  explicit Packed(FileLayout layout, BlockFormat format = BlockFormat::nvfp4)
      : Packed(test::tiny_options(format), {.tp = 2}, layout) {}

  fs::path file(unsigned rank, int layer = 0) const {
    return path / ("rank-00" + std::to_string(rank)) /
           ("model-0000" + std::to_string(layer) + ".safetensors");
  }
  // Writes a file of rank 0 again with another header, of the same size as before.
  void edit_header(std::string_view from, std::string_view to) const {
    std::string bytes = test::read_bytes(file(0));
    const std::size_t at = bytes.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    ASSERT_EQ(from.size(), to.size());
    bytes.replace(at, from.size(), to);
    std::ofstream(file(0), std::ios::binary) << bytes;
  }
  // One byte of a segment of expert 1 of rank 0.
  void poke(Segment segment, std::uint64_t offset, std::string_view bytes) const {
    const Checkpoint packed = open_checkpoint(file(0));
    const TensorInfo* blobs = packed.find("layers.0.experts");
    const TensorInfo* source = test::source_of_segment(model.layer().experts[1], segment);
    const std::uint64_t at =
        blobs != nullptr ? blobs->offset + plan.layout.stride + plan.layout.find(segment)->offset
                         : packed.find(source->name)->offset;
    std::fstream stream(file(0), std::ios::binary | std::ios::in | std::ios::out);
    stream.seekp(static_cast<std::streamoff>(at + offset));
    stream << bytes;
  }
  Error load_refusal(unsigned rank = 0, int layer = 0) const {
    return test::refusal_of([&] { load_packed(open_packed_folder(path), rank, layer); });
  }
  Error open_refusal() const {
    return test::refusal_of([&] { open_packed_folder(path); });
  }

  TinyModel model;
  ShardPlan plan;
  fs::path path;
};

void expect_code(const Error& error, std::string_view code) {
  EXPECT_EQ(error.code(), ErrorCode::input) << error.what();
  EXPECT_EQ(test::code_of(error), code) << error.what();
}

// Every dialect, plans with and without padding, with experts split.
TEST(PackedFolder, LoadsWhatPackMakesOfTheSource) {
  for (const test::TinyDialect dialect : test::kTinyDialects) {
    for (const PlanOptions& options :
         {PlanOptions{}, PlanOptions{.tp = 3, .ep = 2, .kernel_align = 64}}) {
      for (const FileLayout layout : kLayouts) {
        const Packed packed({.dialect = dialect, .hidden = 64, .inter = 96, .layers = 2}, options,
                            layout);
        SCOPED_TRACE(test::describe(packed.plan) + " " + std::string(name_of(layout)));
        const PackedFolder folder = open_packed_folder(packed.path);
        EXPECT_EQ(to_json(folder.plan), to_json(packed.plan));
        EXPECT_EQ(folder.plan.layout, packed.plan.layout);
        EXPECT_EQ(folder.layout, layout);
        EXPECT_EQ(folder.layers, (std::vector<int>{0, 1}));
        EXPECT_EQ(folder.ranks.size(), packed.plan.ranks.size());
        EXPECT_EQ(folder.config.top_k, packed.model->config.top_k);
        EXPECT_EQ(folder.config.activation, packed.model->config.activation);
        for (const unsigned rank : folder.ranks) {
          for (const int layer : folder.layers) {
            const PackedExperts loaded = load_packed(folder, rank, layer);
            const PackedExperts made = pack(*packed.model, packed.plan, rank, layer);
            EXPECT_EQ(loaded.rank, rank);
            EXPECT_EQ(loaded.layout, made.layout);
            EXPECT_EQ(loaded.experts, made.experts);
            EXPECT_TRUE(test::same_bytes(made.blobs, loaded.blobs)) << rank << " " << layer;
          }
        }
      }
    }
  }
}

TEST(PackedFolder, KeepsAnAbsentActivationScaleAsPackDoes) {
  for (const FileLayout layout : kLayouts) {
    TinyOptions options = test::tiny_options(BlockFormat::nvfp4);
    options.edits.push_back(test::leave_out(".1.w3.input_scale"));
    const Packed packed(options, {.tp = 2}, layout);
    EXPECT_TRUE(test::same_bytes(pack(*packed.model, packed.plan, 1, 0).blobs,
                                 load_packed(open_packed_folder(packed.path), 1, 0).blobs));
  }
}

TEST(PackedFolder, SaysWhichRanksAndLayersItHolds) {
  TinyOptions options = test::tiny_options(BlockFormat::mxfp4);
  options.layers = 3;
  const TinyModel model(options);
  const ShardPlan plan = make_plan(*model, {.tp = 3});
  const fs::path path = model / "packed";
  EXPECT_FALSE(is_packed_folder(path));
  pack_to_folder(*model, plan, {.out = path, .ranks = {0}, .layers = {0, 2}});
  pack_to_folder(*model, plan, {.out = path, .ranks = {2}, .layers = {1, 2}});
  EXPECT_TRUE(is_packed_folder(path));
  const PackedFolder folder = open_packed_folder(path);
  EXPECT_EQ(folder.ranks, (std::vector<unsigned>{0, 2}));
  EXPECT_EQ(folder.layers, (std::vector<int>{2}));
  for (const auto& [rank, layer] : {std::pair{1U, 2}, std::pair{0U, 0}, std::pair{0U, 7}})
    expect_code(test::refusal_of([&] { load_packed(folder, rank, layer); }), "MOXIE-K005");
}

TEST(PackedFolder, WarnsUntilAProofOfAllItsFilesIsThere) {
  const Packed packed(FileLayout::logical);
  const auto warning = [&] {
    const auto findings = open_packed_folder(packed.path).findings;
    EXPECT_LE(findings.size(), 1U);
    if (findings.empty()) return std::string();
    EXPECT_EQ(findings[0].code, "MOXIE-K009");
    EXPECT_EQ(findings[0].severity, Severity::warning);
    return findings[0].message;
  };
  EXPECT_NE(warning(), "");
  Json files = Json::object();
  for (const char* rank : {"rank-000", "rank-001"}) {
    const std::string list = test::read_bytes(packed.path / rank / "files.json");
    const Json document = Json::parse(list, rank);
    for (const JsonMember& member : document.find("files")->members())
      files.set(std::string(rank) + "/" + member.key, member.value);
  }
  const std::string config = test::read_bytes(packed.path / "config.json");
  files.set("config.json",
            Json::object().set("bytes", config.size()).set("xxh3_128", hash_hex(config)));
  Json proof;
  proof.set("plan_hash", open_packed_folder(packed.path).plan_hash).set("files", files);
  const auto write = [&](const std::string& text) {
    std::ofstream(packed.path / "moxie-proof.json") << text;
  };
  write(proof.dump());
  EXPECT_EQ(warning(), "");
  Json other = proof;
  other.set("plan_hash", std::string(32, '0'));
  write(other.dump());
  EXPECT_NE(warning(), "");
  Json fewer = files;
  fewer.erase("rank-001/model-00000.safetensors");
  write(Json(proof).set("files", fewer).dump());
  EXPECT_NE(warning(), "");
  Json changed = files;
  changed.set("rank-000/model-00000.safetensors",
              Json::object().set("bytes", 1).set("xxh3_128", std::string(32, '0')));
  write(Json(proof).set("files", changed).dump());
  EXPECT_NE(warning(), "");
  write("{");
  EXPECT_NE(warning(), "");
  // Limits and scaling come from the config: it is part of the proof.
  write(proof.dump());
  EXPECT_EQ(warning(), "");
  std::ofstream(packed.path / "config.json", std::ios::app) << "\n";
  EXPECT_NE(warning(), "");
}

TEST(PackedFolder, RefusesBytesThatChangedSinceTheyWerePacked) {
  for (const FileLayout layout : kLayouts) {
    for (const Segment segment : {Segment::gate, Segment::down, Segment::up_scale}) {
      const Packed packed(layout);
      packed.poke(segment, 2, "\x23");
      const Error error = packed.load_refusal();
      expect_code(error, "MOXIE-K005");
      EXPECT_NE(error.findings()[0].message.find("checksum"), std::string::npos) << error.what();
      load_packed(open_packed_folder(packed.path), 1, 0);  // the other rank is whole
    }
  }
}

TEST(PackedFolder, RefusesAPlanThatDoesNotMatchItsHash) {
  {
    const Packed packed(FileLayout::kernel);
    edit_json(packed.path / "moxie-plan.json",
              [](Json& plan) { plan.set("plan_hash", std::string(32, 'a')); });
    expect_code(packed.open_refusal(), "MOXIE-K005");
  }
  {
    const Packed packed(FileLayout::kernel);  // consistent in itself, but the rank is of another
    edit_json(packed.path / "moxie-plan.json", [](Json& plan) {
      plan.set("layers", 9);
      plan.set("plan_hash", plan_hash_of(plan));
    });
    EXPECT_EQ(packed.open_refusal().code(), ErrorCode::input);
  }
  {
    const Packed packed(FileLayout::kernel);
    edit_json(packed.path / "rank-001/files.json",
              [](Json& list) { list.set("plan_hash", std::string(32, 'a')); });
    const Error error = packed.open_refusal();
    expect_code(error, "MOXIE-K005");
    EXPECT_EQ(error.findings()[0].where.rank, 1U);
  }
}

TEST(PackedFolder, RefusesWhatIsNoWholeSet) {
  const TinyModel model(BlockFormat::mxfp4);
  expect_code(test::refusal_of([&] { open_packed_folder(model / "model"); }), "MOXIE-K005");
  {
    const Packed packed(FileLayout::logical);
    fs::remove_all(packed.path / "rank-000");
    fs::remove_all(packed.path / "rank-001");
    expect_code(packed.open_refusal(), "MOXIE-K005");
  }
  {
    const Packed packed(FileLayout::logical);
    fs::remove(packed.file(1));
    expect_code(packed.open_refusal(), "MOXIE-K005");
  }
  {
    const Packed packed(FileLayout::logical);
    fs::resize_file(packed.file(1), fs::file_size(packed.file(1)) - 1);
    EXPECT_EQ(packed.open_refusal().code(), ErrorCode::input);
  }
  {
    const Packed packed(FileLayout::logical);
    edit_json(packed.path / "config.json",
              [](Json& config) { config.set("moe_intermediate_size", 64); });
    expect_code(packed.open_refusal(), "MOXIE-K005");
  }
}

TEST(PackedFolder, RefusesATensorOfAnotherNameTypeOrShape) {
  const std::pair<std::string_view, std::string_view> logical[] = {
      {"layers.0.ffn.experts.0.w1.weight\"", "layers.0.ffn.experts.0.w9.weight\""},
      {"layers.0.ffn.experts.0.w1.weight_scale\"", "layers.0.ffn.experts.0.w1.weight_scalf\""},
      {"layers.0.ffn.experts.0.w1.weight_scale_2\"", "layers.0.ffn.experts.0.w1.weight_scale_3\""},
      {"layers.0.ffn.experts.2.", "layers.0.ffn.experts.7."},
      {"\"dtype\":\"U8\",\"shape\":[64,32]", "\"dtype\":\"U8\",\"shape\":[32,64]"},
      {"\"dtype\":\"F8_E4M3\"", "\"dtype\":\"F8_E5M2\""},
      {"\"dtype\":\"F32\"", "\"dtype\":\"I32\""}};
  for (const auto& [from, to] : logical) {
    SCOPED_TRACE(from);
    const Packed packed(FileLayout::logical);
    packed.edit_header(from, to);
    expect_code(packed.load_refusal(), "MOXIE-K005");
  }
  const std::pair<std::string_view, std::string_view> kernel[] = {
      {"layers.0.experts", "layers.1.experts"}, {"\"dtype\":\"U8\"", "\"dtype\":\"I8\""}};
  for (const auto& [from, to] : kernel) {
    SCOPED_TRACE(from);
    const Packed packed(FileLayout::kernel);
    packed.edit_header(from, to);
    expect_code(packed.load_refusal(), "MOXIE-K005");
  }
}

TEST(PackedFolder, RefusesScalesThatAreNoNumbers) {
  for (const FileLayout layout : kLayouts) {
    for (const auto& [format, bad] :
         {std::pair{BlockFormat::mxfp4, '\xFF'}, std::pair{BlockFormat::nvfp4, '\x7F'},
          std::pair{BlockFormat::nvfp4, '\x81'}}) {
      for (const Segment segment : {Segment::gate_scale, Segment::up_scale, Segment::down_scale}) {
        const Packed packed(layout, format);
        packed.poke(segment, 3, std::string(1, bad));
        const Error error = packed.load_refusal();
        expect_code(error, "MOXIE-K003");
        EXPECT_EQ(error.findings()[0].where.expert, 1U);
      }
    }
    const Packed packed(layout);
    packed.poke(Segment::up_dequant_mul, 0, std::string("\x00\x00\x80\x7F", 4));
    const Error error = packed.load_refusal();
    expect_code(error, "MOXIE-M007");
    EXPECT_EQ(error.findings()[0].where.expert, 1U);
    load_packed(open_packed_folder(packed.path), 1, 0);  // the other rank is whole
  }
}

}  // namespace
}  // namespace moxie

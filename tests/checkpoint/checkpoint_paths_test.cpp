// SPDX-License-Identifier: Apache-2.0
// What may be opened, and which config files belong to it.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <string_view>

#include "moxie/checkpoint.hpp"
#include "support/refusal.hpp"
#include "support/safetensors_bytes.hpp"
#include "support/temp_folder.hpp"

namespace moxie {
namespace {

namespace fs = std::filesystem;
using test::TempFolder;

const std::string kOneByte =
    test::safetensors_bytes(test::header_of({test::entry("t", "U8", "1", 0, 1)}), "x");

Error refusal(const fs::path& path) {
  return test::refusal_of([&] { open_checkpoint(path); });
}
// The value that tells the test's config files apart.
std::string mark(const Json& config) {
  const Json* value = config.find("mark");
  return value != nullptr ? value->as_string() : "";
}

// C-01
TEST(CheckpointPaths, C01AMissingPathIsRefusedByName) {
  const TempFolder folder;
  for (const std::string_view name :
       {"absent", "absent.safetensors", "absent.json", "absent/deeper"}) {
    const Error error = refusal(folder.path() / name);
    EXPECT_EQ(error.code(), ErrorCode::input);
    EXPECT_EQ(test::code_of(error), "MOXIE-C001");
    EXPECT_EQ(error.findings().front().where.file, (folder.path() / name).string());
  }
  EXPECT_EQ(refusal("").code(), ErrorCode::input);
}

TEST(CheckpointPaths, AFolderWithoutAnythingIsRefused) {
  const TempFolder folder;
  EXPECT_EQ(test::code_of(refusal(folder.path())), "MOXIE-C001");
  folder.write("weights.bin", "x");
  folder.write(".hidden.safetensors", "x");
  fs::create_directory(folder.path() / "folder.safetensors");
  EXPECT_EQ(test::code_of(refusal(folder.path())), "MOXIE-C001");
}

TEST(CheckpointPaths, AFileOfAnotherKindIsRefused) {
  const TempFolder folder;
  const Error error = refusal(folder.write("weights.bin", kOneByte));
  EXPECT_EQ(error.code(), ErrorCode::input);
  EXPECT_EQ(test::code_of(error), "MOXIE-C001");
}

TEST(CheckpointPaths, WhatTheSystemRefusesIsAnEnvironmentError) {
  const TempFolder folder;
  EXPECT_EQ(refusal(folder.path() / std::string(300, 'x')).code(), ErrorCode::environment);
  fs::create_symlink("loop", folder.path() / "loop");
  EXPECT_EQ(refusal(folder.path() / "loop").code(), ErrorCode::environment);
}

TEST(CheckpointPaths, AFolderWithAConfigAloneHasNoTensors) {
  const TempFolder folder;
  folder.write("config.json", R"({"mark": "config"})");
  const Checkpoint checkpoint = open_checkpoint(folder.path());
  EXPECT_TRUE(checkpoint.tensors().empty());
  EXPECT_TRUE(checkpoint.files().empty());
  EXPECT_EQ(mark(checkpoint.config()), "config");
  EXPECT_TRUE(checkpoint.quant_config().is_null());
  EXPECT_EQ(checkpoint.find("t"), nullptr);
  EXPECT_EQ(checkpoint.absent_shard_of("t"), "");
}

TEST(CheckpointPaths, AFolderCarriesItsConfigAndSidecar) {
  const TempFolder folder;
  folder.write("config.json", R"({"mark": "config"})");
  folder.write("hf_quant_config.json", R"({"mark": "quant"})");
  folder.write("model.safetensors", kOneByte);
  for (const fs::path& path :
       {folder.path(), folder.path() / "", folder.path() / "model.safetensors"}) {
    const Checkpoint checkpoint = open_checkpoint(path);
    EXPECT_EQ(checkpoint.path(), path);
    EXPECT_EQ(checkpoint.tensors().size(), 1U);
    EXPECT_EQ(mark(checkpoint.config()), "config");
    EXPECT_EQ(mark(checkpoint.quant_config()), "quant");
  }
}

TEST(CheckpointPaths, AFolderWithoutAConfigOpens) {
  const TempFolder folder;
  folder.write("any.safetensors", kOneByte);
  const Checkpoint checkpoint = open_checkpoint(folder.path());
  EXPECT_EQ(checkpoint.tensors().size(), 1U);
  EXPECT_TRUE(checkpoint.config().is_null());
}

TEST(CheckpointPaths, OneFileIsReadWithoutItsNeighboursAndIndex) {
  const TempFolder folder;
  folder.write("a.safetensors", kOneByte);
  folder.write("b.safetensors", "broken");
  folder.write("model.safetensors.index.json", "broken");
  const Checkpoint checkpoint = open_checkpoint(folder.path() / "a.safetensors");
  ASSERT_EQ(checkpoint.files().size(), 1U);
  EXPECT_EQ(checkpoint.files()[0].path, folder.path() / "a.safetensors");
  EXPECT_EQ(checkpoint.files()[0].bytes, kOneByte.size());
  EXPECT_EQ(checkpoint.files()[0].header_bytes, kOneByte.size() - 1);
}

TEST(CheckpointPaths, AConfigAloneTakesTheSidecarThatHasItsName) {
  const TempFolder folder;
  folder.write("deepseek.json", R"({"mark": "deepseek"})");
  folder.write("deepseek.hf_quant_config.json", R"({"mark": "deepseek quant"})");
  folder.write("other.json", R"({"mark": "other"})");
  folder.write("hf_quant_config.json", R"({"mark": "quant"})");
  folder.write("config.json", R"({"mark": "config"})");
  Checkpoint checkpoint = open_checkpoint(folder.path() / "deepseek.json");
  EXPECT_EQ(mark(checkpoint.config()), "deepseek");
  EXPECT_EQ(mark(checkpoint.quant_config()), "deepseek quant");
  checkpoint = open_checkpoint(folder.path() / "other.json");
  EXPECT_EQ(mark(checkpoint.config()), "other");
  EXPECT_TRUE(checkpoint.quant_config().is_null()) << "hf_quant_config.json belongs to config.json";
  checkpoint = open_checkpoint(folder.path() / "config.json");
  EXPECT_EQ(mark(checkpoint.quant_config()), "quant");
  EXPECT_TRUE(checkpoint.tensors().empty());
}

TEST(CheckpointPaths, ABrokenConfigIsRefusedByName) {
  for (const std::string_view name : {"config.json", "hf_quant_config.json"}) {
    const TempFolder folder;
    folder.write("model.safetensors", kOneByte);
    folder.write(name, R"({"a": 1, "a": 2})");
    const Error error = refusal(folder.path());
    EXPECT_EQ(error.code(), ErrorCode::input);
    EXPECT_EQ(error.findings().front().where.file, (folder.path() / name).string());
  }
}

}  // namespace
}  // namespace moxie

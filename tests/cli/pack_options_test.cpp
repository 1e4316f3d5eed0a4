// SPDX-License-Identifier: Apache-2.0
// What pack's options choose, and that a command given twice answers twice the same.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "cli/command.hpp"
#include "moxie/checkpoint.hpp"
#include "support/tiny_checkpoint.hpp"

namespace moxie {
namespace {

namespace fs = std::filesystem;

using test::expect_document;
using test::expect_success;
using test::tree_of;
using test::Words;

// Every file below a folder by name and content.
std::vector<std::pair<std::string, std::string>> contents_of(const fs::path& folder) {
  std::vector<std::pair<std::string, std::string>> contents;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file())
      contents.emplace_back(fs::relative(entry.path(), folder), test::read_bytes(entry.path()));
  }
  std::ranges::sort(contents);
  return contents;
}

class PackOption : public testing::Test {
 protected:
  PackOption() : model_(test::write_tiny(folder_.path() / "model", {.layers = 3}).string()) {}

  std::string path(const std::string& name) const { return (folder_.path() / name).string(); }

  Json pack(const std::string& out, const Words& options = {}) const {
    return expect_document(Words{"pack", model_, "--out", path(out), "--tp", "3"} + options);
  }
  // The layers that were packed for a choice of them, as the document and the files say.
  std::string layers(const Words& options) const {
    const Json document = pack("chosen", options);
    const std::string text = document.find("layers")->dump_compact();
    std::size_t files = 0;
    for (const auto& entry : fs::directory_iterator(path("chosen") + "/rank-000"))
      files += entry.path().extension() == ".safetensors" ? 1 : 0;
    EXPECT_EQ(files, document.find("layers")->elements().size());
    EXPECT_EQ(document.find("files")->as_unsigned(), 3 * files);
    expect_success({"verify", path("chosen"), "--against", model_});
    fs::remove_all(path("chosen"));
    return text;
  }

  test::TempFolder folder_;
  std::string model_;
};

TEST_F(PackOption, LayersTakesNumbersListsAndRanges) {
  EXPECT_EQ(layers({}), "[0,1,2]");
  EXPECT_EQ(layers({"--layers", "1"}), "[1]");
  EXPECT_EQ(layers({"--layers", "0..1"}), "[0,1]");
  EXPECT_EQ(layers({"--layers", "0,2"}), "[0,2]");
  EXPECT_EQ(layers({"--layers=2,0..1"}), "[0,1,2]");
  EXPECT_EQ(layers({"--layers", "2", "--layers", "0"}), "[0,2]");
  EXPECT_EQ(layers({"--layers", "1..1,1"}), "[1]");
}

TEST_F(PackOption, LayersLeavesTheModelThatFollowsIt) {
  const Json document =
      expect_document({"pack", "--layers", "1", model_, "--out", path("out"), "--tp", "3"});
  EXPECT_EQ(document.find("layers")->dump_compact(), "[1]");
}

TEST_F(PackOption, RankOneByOneEqualsAll) {
  const Json all = pack("all", {"--rank", "all"});
  EXPECT_EQ(all.find("ranks")->dump_compact(), "[0,1,2]");
  for (const char* rank : {"1", "0", "2"}) {
    const Json one = pack("single", {"--rank", rank});
    EXPECT_EQ(one.find("ranks")->dump_compact(), "[" + std::string(rank) + "]");
    EXPECT_EQ(one.find("plan_hash")->as_string(), all.find("plan_hash")->as_string());
  }
  EXPECT_EQ(contents_of(path("single")), contents_of(path("all")));
  expect_success({"verify", path("single"), "--against", model_});
}

TEST_F(PackOption, RankAloneIsNoWholeSetYet) {
  pack("part", {"--rank", "1"});
  EXPECT_EQ(test::moxie_says({"verify", path("part"), "--against", model_}).exit_code, 1);
}

TEST_F(PackOption, MemoryChangesNoByte) {
  pack("default");
  for (const char* size : {"64MB", "2GiB", "64 kb", "65536"}) {
    pack("bounded", {"--memory", size});
    EXPECT_EQ(contents_of(path("bounded")), contents_of(path("default"))) << size;
    fs::remove_all(path("bounded"));
  }
}

TEST_F(PackOption, LayoutLogicalKeepsTheSourcesNamesAndTypes) {
  EXPECT_EQ(pack("out").find("layout")->as_string(), "logical");
  const Checkpoint source = open_checkpoint(model_);
  const Checkpoint packed = open_checkpoint(path("out") + "/rank-000/model-00001.safetensors");
  EXPECT_EQ(packed.tensors().size() * 3, source.tensors().size());
  for (const TensorInfo& tensor : packed.tensors()) {
    const TensorInfo* original = source.find(tensor.name);
    ASSERT_NE(original, nullptr) << tensor.name;
    EXPECT_EQ(tensor.dtype, original->dtype) << tensor.name;
  }
}

TEST_F(PackOption, LayoutKernelIsOneBlobPerExpert) {
  EXPECT_EQ(pack("out", {"--layout", "kernel"}).find("layout")->as_string(), "kernel");
  const std::string plan_file = path("out") + "/moxie-plan.json";
  const Json plan = Json::parse(test::read_bytes(plan_file), plan_file);
  const Checkpoint packed = open_checkpoint(path("out") + "/rank-002/model-00001.safetensors");
  ASSERT_EQ(packed.tensors().size(), 1U);
  const TensorInfo& blobs = packed.tensors().front();
  EXPECT_EQ(blobs.name, "layers.1.experts");
  EXPECT_EQ(blobs.dtype, DType::u8);
  ASSERT_EQ(blobs.shape.size(), 2U);
  EXPECT_EQ(blobs.shape[0], 3U);
  ASSERT_NE(plan.find("layout"), nullptr);
  ASSERT_NE(plan.find("layout")->find("stride"), nullptr);
  EXPECT_EQ(blobs.shape[1], plan.find("layout")->find("stride")->as_unsigned());
  expect_success({"verify", path("out"), "--against", model_});
}

TEST_F(PackOption, OutHoldsWhatTheContractNames) {
  pack("out", {"--layers", "2"});
  std::vector<std::string> names;
  for (const auto& [name, bytes] : contents_of(path("out"))) names.push_back(name);
  EXPECT_EQ(names,
            (std::vector<std::string>{"config.json", "moxie-plan.json", "rank-000/files.json",
                                      "rank-000/model-00002.safetensors", "rank-001/files.json",
                                      "rank-001/model-00002.safetensors", "rank-002/files.json",
                                      "rank-002/model-00002.safetensors"}));
  EXPECT_EQ(Json::parse(test::read_bytes(path("out") + "/config.json"), "copy"),
            Json::parse(test::read_bytes(model_ + "/config.json"), "source"));
  const std::string file = path("out") + "/rank-001/files.json";
  const Json files = Json::parse(test::read_bytes(file), file);
  EXPECT_EQ(test::keys_of(files),
            (std::vector<std::string>{"plan_hash", "files", "layers", "top"}));
  EXPECT_EQ(test::keys_of(files.find("files")->members().at(0).value),
            (std::vector<std::string>{"bytes", "xxh3_128"}));

  expect_success({"verify", path("out"), "--against", model_});
  const std::string proof = path("out") + "/moxie-proof.json";
  EXPECT_EQ(test::keys_of(Json::parse(test::read_bytes(proof), proof)),
            (std::vector<std::string>{"plan_hash", "ranks", "files"}));
}

TEST_F(PackOption, OfThePlanReachesThePackedSet) {
  const Json document = pack("out", {"--ep", "2", "--kernel-align", "128"});
  EXPECT_EQ(document.find("ranks")->elements().size(), 6U);
  const std::string file = path("out") + "/moxie-plan.json";
  const Json stored = Json::parse(test::read_bytes(file), file);
  const Json planned =
      expect_document({"plan", model_, "--tp", "3", "--ep", "2", "--kernel-align", "128"});
  for (const char* key : {"schema", "tp", "ep", "axes", "ranks", "kernels"})
    EXPECT_EQ(stored.find(key)->dump(), planned.find(key)->dump()) << key;
}

// ---- The same command, the same answer ----

TEST_F(PackOption, GivenTwiceAnswerTwiceTheSame) {
  for (const Words& words :
       {Words{"plan", model_, "--tp", "5", "--why"}, Words{"inspect", model_}, Words{"devices"}}) {
    for (const Words& form : {words, words + Words{"--json"}})
      EXPECT_EQ(expect_success(form).out, expect_success(form).out);
  }
  pack("first");
  pack("second");
  EXPECT_EQ(contents_of(path("first")), contents_of(path("second")));
}

TEST_F(PackOption, GivenTwiceToSynthWriteTheSameBytes) {
  const auto synth = [&](const char* name, const char* seed) {
    expect_success({"synth", path(name), "--model", "tiny", "--hidden", "64", "--inter", "96",
                    "--experts", "3", "--num-layers", "2", "--seed", seed});
    return contents_of(path(name));
  };
  const auto first = synth("a", "7");
  EXPECT_EQ(synth("b", "7"), first);
  EXPECT_NE(synth("c", "8"), first);
}

}  // namespace
}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// C-01, exit 3: bytes or headers are wrong or missing. Nothing is half-written.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <string>

#include "cli/command.hpp"
#include "support/safetensors_bytes.hpp"
#include "support/tiny_checkpoint.hpp"

namespace moxie {
namespace {

namespace fs = std::filesystem;

using test::expect_refusal;
using test::expect_success;
using test::has;
using test::TinyDialect;
using test::TinyOptions;
using test::TinyShards;
using test::Words;

constexpr int kInput = 3;

class InputRefusals : public testing::Test {
 protected:
  // Writes the model and remembers what the folder holds, so that nothing more may come.
  std::string given(const TinyOptions& options) {
    test::write_tiny(folder_.path() / "model", options);
    return note();
  }
  std::string note() {
    before_ = test::tree_of(folder_.path());
    return (folder_.path() / "model").string();
  }
  void TearDown() override { EXPECT_EQ(test::tree_of(folder_.path()), before_); }

  std::string pack(const char* code, const std::string& model, const Words& options = {},
                   std::size_t errors = 1) const {
    const std::string out = (folder_.path() / "out").string();
    return expect_refusal(kInput, code, Words{"pack", model, "--out", out, "--tp", "3"} + options,
                          {}, errors);
  }
  // Opening a model is the same for every verb that takes one.
  void every_verb(const char* code, const std::string& model, const std::string& said) const {
    for (const Words& words :
         {Words{"inspect", model}, Words{"plan", model},
          Words{"pack", model, "--out", (folder_.path() / "out").string()},
          Words{"verify", (folder_.path() / "packed").string(), "--against", model}}) {
      const std::string line = expect_refusal(kInput, code, words);
      EXPECT_TRUE(has(line, said)) << line;
    }
  }

  test::TempFolder folder_;
  std::vector<std::string> before_;
};

TEST_F(InputRefusals, NameAPathThatDoesNotExistC01) {
  const std::string model = note();
  every_verb("MOXIE-C001", model, model);
  expect_refusal(kInput, "MOXIE-C001",
                 {"synth", (folder_.path() / "out").string(), "--config", model});
}

TEST_F(InputRefusals, NameAPathWhoseNameIsNoLine) {
  const std::string line = expect_refusal(kInput, "MOXIE-C001", {"plan", "no\nsuch\x1b[31m\rfile"});
  EXPECT_FALSE(has(line, "\x1b")) << line;
}

// R-02
TEST_F(InputRefusals, NameATruncatedFileWithBothCountsC01) {
  given({});
  const fs::path file = folder_.path() / "model/model.safetensors";
  const auto size = fs::file_size(file);
  fs::resize_file(file, size - 1);
  const std::string model = note();
  every_verb("MOXIE-C008", model, file.string());
  const std::string line = pack("MOXIE-C008", model);
  EXPECT_TRUE(has(line, std::to_string(size))) << line;
  EXPECT_TRUE(has(line, std::to_string(size - 1))) << line;
}

// R-02: five bytes; a length of 2^40; three bytes too many.
TEST_F(InputRefusals, NameAFileThatLiesAboutItsLengthC01) {
  const std::string name = "model/model.safetensors";
  given({});
  const std::string bytes = test::read_bytes(folder_.path() / name);
  const std::string huge("\0\0\0\0\0\1\0\0{}      ", 16);
  for (const std::string& wrong : {bytes.substr(0, 5), huge, bytes + "xyz"}) {
    folder_.write(name, wrong);
    const std::string model = note();
    const test::Outcome outcome = test::moxie_says({"inspect", model});
    EXPECT_EQ(outcome.exit_code, kInput);
    EXPECT_EQ(outcome.out, "");
    EXPECT_EQ(test::error_lines(outcome).size(), 1U) << outcome.err;
    EXPECT_TRUE(has(outcome.err, name)) << outcome.err;
  }
}

// R-01
TEST_F(InputRefusals, NameAnAbsentShardWhereItIsReadC01) {
  given({.shards = TinyShards::indexed});
  fs::remove(folder_.path() / "model/model-1.safetensors");
  const std::string model = note();
  for (const char* verb : {"inspect", "plan"}) {
    const test::Outcome outcome = expect_success({verb, model});
    EXPECT_TRUE(outcome.err.starts_with("moxie: MOXIE-C010 warning: ")) << outcome.err;
    EXPECT_TRUE(has(outcome.err, "model-1.safetensors")) << outcome.err;
    EXPECT_EQ(test::lines_of(outcome.err).size(), 1U) << outcome.err;
    const Json document = test::expect_document({verb, model});
    const auto& findings = document.find("findings")->elements();
    ASSERT_EQ(findings.size(), 1U);
    test::expect_finding(findings[0]);
    EXPECT_EQ(findings[0].find("severity")->as_string(), "warning");
  }
  const std::string line = pack("MOXIE-C010", model);
  EXPECT_TRUE(has(line, "18 tensors of the layer")) << line;  // 3 experts, codes and scales
  EXPECT_TRUE(has(line, "layer 1")) << line;
}

// R-01, second run: the shard is there and its header lacks what the index promises.
TEST_F(InputRefusals, NameATensorThatTheIndexPromisesC01) {
  given({.shards = TinyShards::indexed});
  const std::string name = "model/model.safetensors.index.json";
  Json index = Json::parse(test::read_bytes(folder_.path() / name), name);
  Json map = *index.find("weight_map");
  map.set("layers.1.ffn.extra", "model-1.safetensors");
  folder_.write(name, index.set("weight_map", map).dump());
  every_verb("MOXIE-C011", note(), "layers.1.ffn.extra");
}

// R-11
TEST_F(InputRefusals, NameAnElementTypeThatIsNotTheFormatsC01) {
  const std::string weight = "layers.0.ffn.experts.0.w1.weight";
  const std::string model = given({.edits = {test::retype(weight, DType::bf16, {96, 64})}});
  EXPECT_TRUE(has(expect_success({"plan", model}).err, "MOXIE-M005 warning"));
  for (const std::string& line :
       {pack("MOXIE-M005", model), expect_refusal(kInput, "MOXIE-M005", {"inspect", model})}) {
    EXPECT_TRUE(has(line, weight)) << line;
    EXPECT_TRUE(has(line, "[96, 32]")) << line;
    EXPECT_TRUE(has(line, "got BF16 [96, 64]")) << line;
  }
}

TEST_F(InputRefusals, NameAStoredScaleThatIsNoNumberC01) {
  const std::string scale = "layers.1.ffn.experts.2.w2.scale";
  const std::string model = given({.edits = {test::poke(scale, 5, 0xFF)}});
  expect_success({"inspect", model});  // headers only
  const std::string line = pack("MOXIE-K003", model);
  EXPECT_TRUE(has(line, scale)) << line;
  EXPECT_TRUE(has(line, "layer 1, expert 2")) << line;
  const std::string out = (folder_.path() / "out").string();
  expect_success({"pack", model, "--out", out, "--layers", "0"});
  fs::remove_all(out);
}

TEST_F(InputRefusals, NameATensorScaleThatIsAbsentC01) {
  const std::string scale = "layers.0.ffn.experts.1.w2.weight_scale_2";
  const std::string model =
      given({.dialect = TinyDialect::deepseek_v4_nvfp4, .edits = {test::leave_out(scale)}});
  for (const std::string& line :
       {pack("MOXIE-M004", model), expect_refusal(kInput, "MOXIE-M004", {"inspect", model})}) {
    EXPECT_TRUE(has(line, scale)) << line;
    EXPECT_TRUE(has(line, "expert 1")) << line;
  }
}

TEST_F(InputRefusals, NameATensorScaleThatIsNoScaleC01) {
  const std::string scale = "layers.0.ffn.experts.1.w2.weight_scale_2";
  for (const float value : {0.0F, -1.0F, std::nanf(""), std::numeric_limits<float>::infinity()}) {
    fs::remove_all(folder_.path() / "model");
    const std::string model = given(
        {.dialect = TinyDialect::deepseek_v4_nvfp4, .edits = {test::set_scalar(scale, value)}});
    EXPECT_TRUE(has(pack("MOXIE-M007", model), scale));
  }
}

// R-10: activations in BF16 do not use that tensor.
TEST_F(InputRefusals, DoNotMeetAnInputScaleThatNothingReads) {
  const std::string model =
      given({.dialect = TinyDialect::deepseek_v4_nvfp4,
             .edits = {test::leave_out("layers.0.ffn.experts.2.w2.input_scale")}});
  const std::string out = (folder_.path() / "out").string();
  expect_success({"pack", model, "--out", out, "--act-format", "bf16"});
  fs::remove_all(out);
}

// R-13
TEST_F(InputRefusals, NameTensorsOfNoDialectC01) {
  const std::string model = given(
      {.edits = {test::rename(".w1.", ".gate_up_fused."), test::rename(".w2.", ".gate_up_fused_2."),
                 test::rename(".w3.", ".gate_up_fused_3.")}});
  every_verb("MOXIE-M002", model, "gate_up_fused");
  EXPECT_TRUE(has(pack("MOXIE-M002", model), "0 of 9"));
}

// R-13, all but one.
TEST_F(InputRefusals, CountTheTensorsThatWereFoundC01) {
  const std::string model = given({.edits = {test::leave_out("layers.0.ffn.experts.2.w3.weight")}});
  EXPECT_TRUE(has(pack("MOXIE-M004", model), "17 of 18"));
}

TEST_F(InputRefusals, NameAFolderWithoutConfigC01) {
  given({});
  fs::remove(folder_.path() / "model/config.json");
  const std::string model = note();
  every_verb("MOXIE-M001", model, "config");
  fs::remove(folder_.path() / "model/model.safetensors");
  every_verb("MOXIE-C001", note(), model);
}

TEST_F(InputRefusals, NameAConfigThatIsNoneC01) {
  for (const char* text : {"{", "{\"a\": 1, \"a\": 2}", "nonsense", ""}) {
    folder_.write("model/config.json", text);
    every_verb("MOXIE-C003", note(), "config.json");
  }
  folder_.write("model/config.json", "[]");
  every_verb("MOXIE-C016", note(), "config.json");
  folder_.write("model/config.json", R"({"model_type": "llama"})");
  every_verb("MOXIE-M001", note(), "llama");
}

TEST_F(InputRefusals, NameALayerThatIsNotThereC01) {
  const std::string model = given({});
  EXPECT_TRUE(has(pack("MOXIE-M011", model, {"--layers", "7"}), "layer 7"));
  pack("MOXIE-M011", model, {"--layers", "0..2"});
  pack("MOXIE-M011", model + "/config.json");
}

TEST_F(InputRefusals, NameAFolderThatIsNoPackedSetC01) {
  const std::string model = given({});
  const std::string line =
      expect_refusal(kInput, "MOXIE-K005", {"verify", model, "--against", model});
  EXPECT_TRUE(has(line, "moxie-plan.json")) << line;
}

}  // namespace
}  // namespace moxie

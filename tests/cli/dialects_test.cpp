// SPDX-License-Identifier: Apache-2.0
// Whole folders of every dialect and format through the verbs, from synth to a checked run.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <string>

#include "cli/command.hpp"

namespace moxie {
namespace {

using test::expect_document;
using test::expect_refusal;
using test::expect_success;
using test::has;
using test::Words;

struct Written {
  const char* model;
  const char* dialect;  // as synth and, but for DeepSeek's, inspect call it
  const char* format;
  const char* read_as;
};

constexpr Written kWritten[] = {
    {"tiny", "deepseek", "mxfp4", "deepseek-v4"},
    {"tiny", "deepseek", "nvfp4", "deepseek-v4-nvfp4"},
    {"tiny", "modelopt", "nvfp4", "modelopt"},
    {"tiny", "compressed-tensors", "mxfp4", "compressed-tensors"},
    {"tiny", "compressed-tensors", "nvfp4", "compressed-tensors"},
    {"tiny", "quark", "mxfp4", "quark"},
    {"tiny", "gguf", "mxfp4", "gguf"},
    {"tiny", "gguf", "nvfp4", "gguf"},
    {"gpt-oss-20b", "gpt-oss", "mxfp4", "gpt-oss"},
    {"gpt-oss-20b", "gguf", "mxfp4", "gguf"},
    {"deepseek-v4.1-flash", "deepseek", "mxfp4", "deepseek-v4"},
    {"deepseek-v4.1-flash", "deepseek", "nvfp4", "deepseek-v4-nvfp4"},
    {"kimi-k2", "modelopt", "nvfp4", "modelopt"},
    {"kimi-k2", "compressed-tensors", "mxfp4", "compressed-tensors"},
    {"glm-5", "modelopt", "nvfp4", "modelopt"},
    {"glm-5", "quark", "mxfp4", "quark"},
    {"glm-5", "gguf", "nvfp4", "gguf"},
    {"qwen3-moe", "modelopt", "nvfp4", "modelopt"},
    {"qwen3-moe", "gguf", "mxfp4", "gguf"},
};

class DialectFolders : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return (folder_.path() / name).string(); }

  // GGUF's NVFP4 has blocks of 64.
  void synth(const std::string& name, const std::string& dialect, const char* format,
             const char* model = "tiny") const {
    const char* inter = dialect == "gguf" && format == std::string("nvfp4") ? "192" : "96";
    expect_success({"synth", path(name), "--model", model, "--hidden", "64", "--inter", inter,
                    "--experts", "4", "--num-layers", "2", "--seed", "3", "--format", format,
                    "--dialect", dialect, "-q"});
  }

  // The result file of a checked run: inputs, output, reference and bound.
  std::string result_of(const std::string& name, const Words& options = {}) const {
    const Json document =
        expect_document(Words{"run", path(name), "--check", "--output", path("result")} + options);
    EXPECT_TRUE(document.find("check")->find("passed")->as_bool());
    return test::read_bytes(path("result"));
  }

  test::TempFolder folder_;
};

class Dialects : public DialectFolders, public testing::WithParamInterface<Written> {};

TEST_P(Dialects, AreInspectedPlannedPackedVerifiedAndRunInBothLayouts) {
  const Written& written = GetParam();
  synth("model", written.dialect, written.format, written.model);
  const Json inspected = expect_document({"inspect", path("model")});
  EXPECT_EQ(inspected.find("dialect")->as_string(), written.read_as);
  EXPECT_EQ(inspected.find("format")->as_string(), written.format);
  EXPECT_TRUE(inspected.find("findings")->elements().empty()) << inspected.find("findings")->dump();
  // Shared experts of 96 are one tile of FP8: a rank's.
  const Json plan = expect_document({"plan", path("model"), "--tp", "3"});
  for (const Json& finding : plan.find("findings")->elements()) {
    EXPECT_EQ(finding.find("code")->as_string(), "MOXIE-P007");
    EXPECT_EQ(finding.find("where")->find("axis")->as_string(), "shared_inter");
  }
  const std::string result = result_of("model", {"--tp", "3"});
  for (const char* layout : {"logical", "kernel"}) {
    const std::string packed = path(layout);
    expect_success({"pack", path("model"), "--out", packed, "--tp", "3", "--layout", layout, "-q"});
    expect_success({"verify", packed, "--against", path("model"), "-q"});
    EXPECT_TRUE(result_of(layout) == result) << layout;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Dialects, testing::ValuesIn(kWritten), [](const auto& test) {
  std::string name =
      std::string(test.param.model) + "_" + test.param.dialect + "_" + test.param.format;
  std::ranges::replace_if(name, [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return name;
});

// The same codes, scales and routing under four conventions of MXFP4: one result.
TEST_F(DialectFolders, OfOneModelGiveOneResult) {
  std::string first;
  for (const char* dialect : {"deepseek", "compressed-tensors", "quark", "gguf"}) {
    synth(dialect, dialect, "mxfp4");
    const std::string result = result_of(dialect, {"--routing", "model"});
    if (first.empty()) first = result;
    EXPECT_TRUE(result == first) << dialect;
  }
}

// a set of one convention is no set of the other, though its codes are the same.
TEST_F(DialectFolders, R09_ASetOfTheInverseDialectIsNotOneOfTheDirect) {
  synth("inverse", "compressed-tensors", "nvfp4");
  synth("direct", "modelopt", "nvfp4");
  expect_success({"pack", path("inverse"), "--out", path("packed"), "--tp", "2", "-q"});
  EXPECT_EQ(test::moxie_says({"verify", path("packed"), "--against", path("direct")}).exit_code, 1);
}

// Biases, interleaved rows and the router's bias, over every way to cut the layer.
TEST_F(DialectFolders, GptOssIsOneResultOverRanksAndKernelWidths) {  // pit47, pit77
  synth("model", "gpt-oss", "mxfp4", "gpt-oss-20b");
  for (const Words& cut :
       {Words{"--tp", "1"}, Words{"--tp", "3"}, Words{"--tp", "4", "--kernel-align", "128"},
        Words{"--tp", "8", "--kernel-align", "128"},
        Words{"--tp", "3", "--ep", "2", "--kernel-align", "64"}}) {
    result_of("model", Words{"--routing", "model", "--tokens", "17"} + cut);
    for (const char* layout : {"logical", "kernel"}) {
      const std::string packed =
          path(std::string(layout) + testing::PrintToString(cut.size()) + cut[1] + cut.back());
      expect_success(Words{"pack", path("model"), "--out", packed, "--layout", layout, "-q"} + cut);
      expect_success({"verify", packed, "--against", path("model"), "-q"});
      expect_success({"run", packed, "--check", "--tokens", "17", "-q"});
    }
  }
}

// 2880 is 90 groups: no multiple of 64, and four or eight ranks cut it unevenly.
TEST_F(DialectFolders, GptOssOf90GroupsRunsOnFourAndEightRanks) {
  expect_success({"synth", path("model"), "--model", "gpt-oss-120b", "--hidden", "64", "--inter",
                  "2880", "--experts", "2", "--seed", "4", "-q"});
  for (const char* tp : {"4", "8"}) {
    const Words cut = {"--tp", tp, "--kernel-align", "128"};
    const Json plan = expect_document(Words{"plan", path("model")} + cut);
    EXPECT_EQ(plan.find("axes")->elements()[0].find("kernel")->as_unsigned(),
              tp == std::string("4") ? 768U : 384U);
    const std::string packed = path(std::string("packed-") + tp);
    expect_success(Words{"pack", path("model"), "--out", packed, "-q"} + cut);
    expect_success({"verify", packed, "--against", path("model"), "-q"});
    result_of(std::string("packed-") + tp, {"--tokens", "5"});
  }
}

TEST_F(DialectFolders, PairsOfModelAndDialectThatDoNotGoTogetherAreRefused) {
  struct Pair {
    const char* model;
    const char* dialect;
    const char* format;
    const char* says;
  };
  for (const Pair& pair : {Pair{"gpt-oss-20b", "modelopt", "nvfp4", "biases"},
                           Pair{"gpt-oss-120b", "quark", "mxfp4", "biases"},
                           Pair{"gpt-oss-20b", "deepseek", "mxfp4", "another model family"},
                           Pair{"gpt-oss-20b", "gpt-oss", "nvfp4", "gpt-oss with mxfp4"},
                           Pair{"tiny", "gpt-oss", "mxfp4", "another model family"},
                           Pair{"glm-5", "gpt-oss", "mxfp4", "another model family"},
                           Pair{"kimi-k2", "deepseek", "nvfp4", "another model family"},
                           Pair{"qwen3-moe", "modelopt", "mxfp4", "--format nvfp4"}}) {
    const std::string line = expect_refusal(4, "MOXIE-P010",
                                            {"synth", path("out"), "--model", pair.model,
                                             "--dialect", pair.dialect, "--format", pair.format});
    EXPECT_TRUE(has(line, pair.says)) << line;
  }
}

// The file itself is a model, and the set's config is its metadata: part of the proof.
TEST_F(DialectFolders, AGgufFileIsAModelAndItsSetHasItsMetadata) {
  synth("model", "gguf", "mxfp4");
  const std::string file = path("model") + "/tiny.gguf";
  EXPECT_TRUE(result_of("model/tiny.gguf") == result_of("model"));
  expect_success({"pack", file, "--out", path("packed"), "-q"});
  expect_success({"verify", path("packed"), "--against", file, "-q"});
  const std::string config = path("packed") + "/config.json";
  std::string text = test::read_bytes(config);
  EXPECT_TRUE(has(text, "\"general.architecture\": \"deepseek4\"")) << text;
  EXPECT_TRUE(has(text, "\"deepseek4.swiglu_clamp_exp\": 10.0")) << text;
  EXPECT_FALSE(has(test::moxie_says({"run", path("packed")}).err, "MOXIE-K009"));
  text.replace(text.find("10.0"), 4, "11.0");
  folder_.write("packed/config.json", text);
  EXPECT_TRUE(has(test::moxie_says({"run", path("packed")}).err, "MOXIE-K009"));
  const auto verdict = test::moxie_says({"verify", path("packed"), "--against", file});
  EXPECT_EQ(verdict.exit_code, 1);
  EXPECT_TRUE(has(verdict.err, "MOXIE-V002")) << verdict.err;
}

TEST_F(DialectFolders, AGgufFilesOwnActivationScalesAreUsed) {
  synth("model", "gguf", "nvfp4");
  const Words act = {"--act-format", "nvfp4", "--act-scale", "checkpoint", "--tokens", "7"};
  result_of("model", act);
  expect_success(Words{"pack", path("model"), "--out", path("packed"), "--tp", "3", "-q",
                       "--act-format", "nvfp4"});
  result_of("packed", {"--tokens", "7"});
}

TEST_F(DialectFolders, ATruncatedGgufFileIsRefused) {
  synth("model", "gguf", "mxfp4");
  const std::string bytes = test::read_bytes(path("model") + "/tiny.gguf");
  folder_.write("cut.gguf", std::string_view(bytes).substr(0, bytes.size() - 64));
  expect_refusal(3, "MOXIE-C008", {"inspect", path("cut.gguf")});
}

// Rows are whole blocks of 64.
TEST_F(DialectFolders, GgufsNvfp4WithHalfASuperBlockIsRefused) {
  for (const char* axis : {"--hidden", "--inter"}) {
    const std::string line = expect_refusal(4, "MOXIE-P003",
                                            {"synth", path("out"), "--model", "tiny", "--dialect",
                                             "gguf", "--format", "nvfp4", axis, "96"});
    EXPECT_TRUE(has(line, "a multiple of 64")) << line;
  }
}

TEST_F(DialectFolders, AFormatThatTheDialectLacksIsRefused) {
  const std::string line = expect_refusal(
      4, "MOXIE-P010",
      {"synth", path("out"), "--model", "tiny", "--format", "nvfp4", "--dialect", "quark"});
  EXPECT_TRUE(has(line, "--format mxfp4")) << line;
}

}  // namespace
}  // namespace moxie

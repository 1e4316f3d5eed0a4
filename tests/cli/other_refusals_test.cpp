// SPDX-License-Identifier: Apache-2.0
// C-01, exits 4, 5 and 1: understood but not possible; the machine failed; the answer is "no".
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "cli/command.hpp"
#include "moxie/catalog.hpp"
#include "support/tiny_checkpoint.hpp"

namespace moxie {
namespace {

namespace fs = std::filesystem;

using test::expect_refusal;
using test::expect_success;
using test::has;
using test::TinyDialect;
using test::Words;

constexpr int kUnsupported = 4;
constexpr int kEnvironment = 5;

class OtherRefusals : public testing::Test {
 protected:
  OtherRefusals() : model_(test::write_tiny(folder_.path() / "model", {}).string()) {
    out_ = (folder_.path() / "out").string();
    before_ = test::tree_of(folder_.path());
  }
  void expect_nothing_new() const { EXPECT_EQ(test::tree_of(folder_.path()), before_); }

  // plan and pack refuse alike.
  std::string unsupported(const char* code, const std::string& model, const Words& options = {}) {
    // Every kernel has a reason of its own.
    const std::size_t errors = std::string(code) == "MOXIE-P002" ? kernel_catalog().size() : 1;
    const std::string line =
        expect_refusal(kUnsupported, code, Words{"plan", model} + options, {}, errors);
    EXPECT_EQ(expect_refusal(kUnsupported, code, Words{"pack", model, "--out", out_} + options, {},
                             errors),
              line);
    return line;
  }

  // The machine failed, once with text and once with a document; temporary names, which carry the
  // process's number, differ.
  static void expect_machine_fails(const Words& words, const test::Launch& launch = {}) {
    SCOPED_TRACE(testing::PrintToString(words));
    const test::Outcome outcome = test::moxie_says(words, launch);
    EXPECT_EQ(outcome.exit_code, kEnvironment);
    EXPECT_EQ(outcome.out, "");
    const auto lines = test::error_lines(outcome);
    ASSERT_EQ(lines.size(), 1U) << outcome.err;
    EXPECT_TRUE(lines[0].starts_with("moxie: MOXIE-E001 error: ")) << lines[0];
    const test::Outcome asked = test::moxie_says(words + Words{"--json"}, launch);
    EXPECT_EQ(asked.exit_code, kEnvironment);
    EXPECT_EQ(test::keys_of(test::document_of(asked, words[0])),
              (std::vector<std::string>{"schema", "ok", "findings"}));
  }

  test::TempFolder folder_;
  std::string model_;
  std::string out_;
  std::vector<std::string> before_;
};

TEST_F(OtherRefusals, CountExpertsAgainstGroupsC01) {
  const std::string line = unsupported("MOXIE-P004", model_, {"--ep", "4"});
  EXPECT_TRUE(has(line, "ep <= 3, got 4")) << line;
  expect_nothing_new();
}

TEST_F(OtherRefusals, GiveEveryKernelsReasonC01) {
  for (const char* target : {"sm90", "sm100", "sm120"}) {
    const std::string line =
        unsupported("MOXIE-P002", model_, {"--target", target, "--act-format", "int8"});
    EXPECT_TRUE(has(line, "cpu.portable.experts runs on cpu")) << line;
  }
  expect_nothing_new();
}

// K = 24 is one and a half groups of 16.
TEST_F(OtherRefusals, NameAWidthThatNoScaleGroupDividesC01) {
  const Json config = test::tiny_config({.dialect = TinyDialect::modelopt});
  for (const char* key : {"hidden_size", "moe_intermediate_size"}) {
    const fs::path file = folder_.path() / "wrong.json";
    folder_.write("wrong.json", Json(config).set(key, 24U).dump());
    const std::string line = unsupported("MOXIE-P003", file.string());
    EXPECT_TRUE(has(line, "16")) << line;
    EXPECT_TRUE(has(line, "got 24")) << line;
    fs::remove(file);
  }
  expect_nothing_new();
}

TEST_F(OtherRefusals, AskForAFormatWhereNoneIsKnownC01) {
  const Json config = test::tiny_config({}).set("expert_dtype", "bf16");
  folder_.write("bf16.json", config.dump());
  const std::string file = (folder_.path() / "bf16.json").string();
  const std::string line = unsupported("MOXIE-P005", file);
  EXPECT_TRUE(has(line, "--format")) << line;
  expect_success({"plan", file, "--format", "mxfp4"});
}

TEST_F(OtherRefusals, NameADialectThatDoesNotGoWithTheFormatC01) {
  const std::string line = expect_refusal(
      kUnsupported, "MOXIE-P010",
      {"synth", out_, "--model", "tiny", "--format", "mxfp4", "--dialect", "modelopt"});
  EXPECT_TRUE(has(line, "modelopt")) << line;
  expect_nothing_new();
}

// Root may write anywhere but below a file and in /proc.
TEST_F(OtherRefusals, NameAnOutputThatCanNotBeWrittenC01) {
  for (const std::string& out : {model_ + "/config.json/out", std::string("/proc/moxie/out")}) {
    for (const Words& words :
         {Words{"synth", out, "--model", "tiny"}, Words{"pack", model_, "--out", out}})
      expect_machine_fails(words);
  }
  expect_nothing_new();
}

// As after `ulimit -f`: nothing ends the process before it has cleaned up.
TEST_F(OtherRefusals, LeaveNothingWhereNoFileMayBecomeLargeEnough) {
  const std::string file = (folder_.path() / "file").string();
  const std::string tiny = (folder_.path() / "tiny").string();
  expect_success({"synth", tiny, "--model", "tiny", "-q"});
  before_ = test::tree_of(folder_.path());
  for (const rlim_t most : {rlim_t{0}, rlim_t{1000}}) {
    for (const Words& words : {Words{"synth", out_, "--model", "tiny"},
                               Words{"pack", model_, "--out", out_, "--tp", "3"},
                               Words{"pack", model_, "--out", out_, "--layout", "kernel"},
                               Words{"quantize", model_, out_, "--format", "nvfp4"},
                               Words{"doctor", model_, "--certificate", file},
                               Words{"run", tiny, "--tokens", "9", "--output", file}})
      expect_machine_fails(words, {.command = {}, .file_bytes = most});
    expect_nothing_new();
  }
}

TEST_F(OtherRefusals, KeepAPackedSetThatIsAlreadyThere) {
  expect_success({"pack", model_, "--out", out_, "--tp", "3"});
  before_ = test::tree_of(folder_.path());
  for (const Words& options : {Words{"--tp", "3"}, Words{"--tp", "2"}, Words{"--layout", "kernel"}})
    EXPECT_EQ(test::moxie_says(Words{"pack", model_, "--out", out_} + options).exit_code, 2);
  expect_nothing_new();
  expect_success({"verify", out_, "--against", model_});
}

// ---- The answer is "no" ----

class FailedProofs : public OtherRefusals {
 protected:
  FailedProofs() {
    expect_success({"pack", model_, "--out", out_, "--tp", "3"});
    expect_success({"verify", out_, "--against", model_});
    EXPECT_TRUE(fs::exists(fs::path(out_) / "moxie-proof.json"));
  }

  // Exit 1, the verdict in words, every finding said once, and no proof any more.
  std::string expect_failure(const char* code, const std::string& against) const {
    const test::Outcome text = test::moxie_says({"verify", out_, "--against", against});
    EXPECT_EQ(text.exit_code, 1);
    EXPECT_TRUE(text.out.ends_with("verdict: FAILED\n")) << text.out;
    EXPECT_FALSE(has(text.out, "passed"));
    const auto lines = test::error_lines(text);
    EXPECT_TRUE(!lines.empty() && has(lines[0], code)) << text.err;
    const test::Outcome asked = test::moxie_says({"verify", out_, "--against", against, "--json"});
    EXPECT_EQ(asked.exit_code, 1);
    EXPECT_EQ(asked.err, text.err);
    const Json document = test::document_of(asked, "verify");
    EXPECT_FALSE(document.find("ok")->as_bool(true));
    EXPECT_EQ(document.find("findings")->elements().size(), lines.size());
    for (const Json& finding : document.find("findings")->elements()) test::expect_finding(finding);
    EXPECT_FALSE(fs::exists(fs::path(out_) / "moxie-proof.json"));
    return text.err;
  }

  void flip(const std::string& name, std::size_t from_end) const {
    std::string bytes = test::read_bytes(fs::path(out_) / name);
    bytes[bytes.size() - from_end] = static_cast<char>(bytes[bytes.size() - from_end] ^ 0x55);
    folder_.write("out/" + name, bytes);
  }
};

TEST_F(FailedProofs, NameTheByteThatDiffersC01) {
  flip("rank-001/model-00001.safetensors", 100);
  const std::string said = expect_failure("MOXIE-V", model_);
  EXPECT_TRUE(has(said, "rank 1")) << said;
  EXPECT_TRUE(has(said, "model-00001.safetensors")) << said;
}

TEST_F(FailedProofs, NameTheFileThatIsAbsentC01) {
  fs::remove(fs::path(out_) / "rank-002/model-00000.safetensors");
  EXPECT_TRUE(has(expect_failure("MOXIE-V", model_), "model-00000.safetensors"));
}

TEST_F(FailedProofs, NameTheRankThatIsAbsentC01) {
  fs::remove_all(fs::path(out_) / "rank-002");
  EXPECT_TRUE(has(expect_failure("MOXIE-V", model_), "rank 2"));
}

TEST_F(FailedProofs, SayThatTheSourceIsAnotherC01) {
  const std::string other = (folder_.path() / "other").string();
  test::write_tiny(other, {.edits = {test::poke("layers.0.ffn.experts.1.w3.weight", 77, 0x11)}});
  const std::string said = expect_failure("MOXIE-V", other);
  EXPECT_TRUE(has(said, "layers.0.ffn.experts.1.w3.weight")) << said;
}

}  // namespace
}  // namespace moxie

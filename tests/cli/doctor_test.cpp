// SPDX-License-Identifier: Apache-2.0
// moxie doctor and what its certificate does to plan, pack and run.
#include <gtest/gtest.h>

#include <string>

#include "certificate/cast_model.hpp"
#include "cli/command.hpp"
#include "moxie/certificate.hpp"

namespace moxie {
namespace {

namespace fs = std::filesystem;

using test::expect_document;
using test::expect_success;
using test::has;
using test::Words;

class Doctor : public testing::Test {
 protected:
  std::string at(const std::string& name) const { return (folder_.path() / name).string(); }
  std::string write(const std::string& name, const test::TinyOptions& options) const {
    return test::write_tiny(folder_.path() / name, options).string();
  }
  // Exit 1 and the finding's code on stderr.
  void expect_sick(const Words& arguments, std::string_view code) const {
    const test::Outcome outcome = test::moxie_says(arguments + Words{"--json"});
    EXPECT_EQ(outcome.exit_code, 1) << outcome.err;
    EXPECT_TRUE(has(outcome.err, code)) << outcome.err;
    const Json document = test::document_of(outcome, "doctor");
    EXPECT_FALSE(document.find("ok")->as_bool(true));
    EXPECT_TRUE(has(outcome.out, code)) << outcome.out;
  }

  test::TempFolder folder_;
};

TEST_F(Doctor, FindsNothingInASoundCheckpointOrPackedSet) {
  const std::string model = write("model", test::cast_options(1));
  for (const Words& more : {Words{}, Words{"--deep"}, Words{"--layers", "0"}}) {
    const Json document = expect_document(Words{"doctor", model} + more);
    EXPECT_TRUE(document.find("ok")->as_bool());
    EXPECT_EQ(document.find("layers")->as_unsigned(), 1U);
    EXPECT_TRUE(document.find("findings")->elements().empty());
    EXPECT_TRUE(document.find("certificate")->is_null());
  }
  expect_success({"pack", model, "--out", at("packed"), "--tp", "3"});
  expect_success({"verify", at("packed"), "--against", model});
  EXPECT_TRUE(expect_document({"doctor", at("packed"), "--deep"}).find("ok")->as_bool());
}

TEST_F(Doctor, AnswersOneForAFileThatCanNotBeRead) {
  folder_.write("broken/config.json", R"({"model_type": "deepseek_v4"})");
  folder_.write("broken/model.safetensors", "12345");
  expect_sick({"doctor", at("broken")}, "MOXIE-C");
  expect_sick({"doctor", at("nowhere")}, "MOXIE-C");
}

// Experts without FP4 as well: what inspect refuses is no sound checkpoint.
TEST_F(Doctor, LooksAtExpertsInEveryFormat) {
  for (const char* format : {"bf16", "fp8"}) {
    const std::string model = at(format);
    expect_success({"synth", model, "--model", "tiny", "--format", format, "--num-layers", "2"});
    const test::Outcome sound = expect_success({"doctor", model});
    EXPECT_TRUE(has(sound.out, ": 2 layers examined, headers only")) << sound.out;
    fs::remove(model + "/model-00001-of-00002.safetensors");
    expect_sick({"doctor", model}, "MOXIE-C010");
    EXPECT_TRUE(has(test::moxie_says({"doctor", model}).out, ": 1 of 2 layers examined"));
  }
}

TEST_F(Doctor, ReadsValuesOnlyWhenAskedTo) {
  test::TinyOptions options = test::cast_options(2);
  options.edits.push_back(
      test::byte_of("model.layers.0.mlp.experts.1.up_proj.weight_scale", 5, 0xFF));
  const std::string model = write("model", options);
  expect_success({"doctor", model});
  expect_sick({"doctor", model, "--deep"}, "MOXIE-K003");
  expect_sick({"doctor", model, "--certificate", at("c.json")}, "MOXIE-K003");
  EXPECT_FALSE(fs::exists(at("c.json")));
}

TEST_F(Doctor, FindsAPackedByteThatChanged) {
  const std::string model = write("model", test::cast_options(3));
  expect_success({"pack", model, "--out", at("packed"), "--layout", "kernel"});
  const fs::path file = folder_.path() / "packed/rank-000/model-00000.safetensors";
  std::string bytes = test::read_bytes(file);
  bytes.back() = static_cast<char>(bytes.back() + 1);
  folder_.write("packed/rank-000/model-00000.safetensors", bytes);
  expect_sick({"doctor", at("packed"), "--deep"}, "MOXIE-K005");
}

TEST_F(Doctor, RefusesAPlaceThatIsNoneForTheCertificate) {
  const std::string model = write("model", test::cast_options(4));
  for (const std::string& place : {model + "/c.json", at("no/folder/c.json"), model, std::string()})
    test::expect_refusal(2, "MOXIE-U003", {"doctor", model, "--certificate", place});
  expect_success({"pack", model, "--out", at("packed")});
  test::expect_refusal(2, "MOXIE-U001", {"doctor", at("packed"), "--certificate", at("c.json")});
}

TEST_F(Doctor, ACertificateTurnsCastsIntoMxfp4ThatRunsAndIsProven) {
  const std::string model = write("model", test::cast_options(5));
  const Json examined = expect_document({"doctor", model, "--certificate", at("c.json")});
  EXPECT_EQ(examined.find("certificate")->as_string(), at("c.json"));
  const Words certified = {"--certificate", at("c.json")};

  const Json before = expect_document({"plan", model});
  const Json after = expect_document(Words{"plan", model, "--why"} + certified);
  EXPECT_EQ(after.find("format")->as_string(), "mxfp4");
  EXPECT_TRUE(after.find("recast")->as_bool());
  EXPECT_EQ(before.find("recast"), nullptr);
  const auto bytes = [](const Json& plan) {
    return plan.find("ranks")->elements()[0].find("bytes_layer")->as_unsigned();
  };
  EXPECT_LT(bytes(after), bytes(before));
  EXPECT_TRUE(after.find("certificate")->elements()[0].find("mxfp4_cast")->as_bool());

  test::expect_refusal(4, "MOXIE-K012", Words{"pack", model, "--out", at("logical")} + certified);
  expect_success(Words{"pack", model, "--out", at("packed"), "--layout", "kernel", "--tp", "3"} +
                 certified);
  expect_success({"verify", at("packed"), "--against", model});
  expect_success({"run", at("packed"), "--tokens", "9", "--check"});
  const Json ran =
      expect_document(Words{"run", model, "--tokens", "9", "--tp", "1,3", "--check"} + certified);
  for (const Json& run : ran.find("runs")->elements())
    EXPECT_TRUE(run.find("check")->find("passed")->as_bool());
}

TEST_F(Doctor, ACertificateLeavesStoredActivationScalesInUse) {
  const std::string model = write("model", test::cast_options(5));
  expect_success({"doctor", model, "--certificate", at("c.json")});
  const Words act = {"--act-format", "nvfp4",         "--act-scale",
                     "checkpoint",   "--certificate", at("c.json")};
  expect_success(Words{"run", model, "--tokens", "9", "--check"} + act);
  expect_success(Words{"pack", model, "--out", at("packed"), "--layout", "kernel", "--tp", "3"} +
                 act);
  expect_success({"verify", at("packed"), "--against", model});
  expect_success({"run", at("packed"), "--tokens", "9", "--check"});
}

TEST_F(Doctor, ACertificateOfOtherBytesIsNoticedBeforeAnythingIsWritten) {
  const std::string model = write("model", test::cast_options(6));
  expect_success({"doctor", model, "--certificate", at("c.json")});
  test::TinyOptions changed = test::cast_options(6);
  changed.edits.push_back(
      test::byte_of("model.layers.0.mlp.experts.2.down_proj.weight_scale", 0, 0x39));
  const std::string other = write("other", changed);
  test::expect_refusal(
      3, "MOXIE-K011",
      {"pack", other, "--out", at("packed"), "--layout", "kernel", "--certificate", at("c.json")});
  EXPECT_FALSE(fs::exists(at("packed")));
  test::expect_refusal(3, "MOXIE-K011", {"run", other, "--certificate", at("c.json")});
}

TEST_F(Doctor, ACertificateThatAllowsNothingSaysWhy) {
  const std::string model = write("model", {.dialect = test::TinyDialect::modelopt, .layers = 1});
  expect_success({"doctor", model, "--certificate", at("c.json")});
  const test::Outcome planned =
      expect_success({"plan", model, "--certificate", at("c.json"), "--why"});
  EXPECT_TRUE(has(planned.err, "MOXIE-P014 note: the experts stay NVFP4")) << planned.err;
  EXPECT_TRUE(has(planned.out, "all but 3")) << planned.out;
  test::expect_refusal(
      4, "MOXIE-P013",
      {"plan", write("wide", {.dialect = test::TinyDialect::modelopt, .inter = 64}),
       "--certificate", at("c.json")});
  folder_.write("bad.json", "{}");
  test::expect_refusal(3, "MOXIE-D001", {"plan", model, "--certificate", at("bad.json")});
}

}  // namespace
}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// moxie quantize: what it answers, what it refuses, and that what it writes runs.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "cli/command.hpp"
#include "moxie/checkpoint.hpp"
#include "support/folder_bytes.hpp"

namespace moxie {
namespace {

using test::expect_document;
using test::expect_refusal;
using test::expect_success;
using test::has;
using test::Kind;
using test::Words;

const Words kSmall = {"--model", "tiny",         "--hidden", "64",     "--inter", "96", "--experts",
                      "4",       "--num-layers", "2",        "--seed", "3",       "-q"};

class Quantize : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return (folder_.path() / name).string(); }
  void synth(const std::string& name, const std::string& format) const {
    expect_success(Words{"synth", path(name), "--format", format} + kSmall);
  }

  test::TempFolder folder_;
};

TEST_F(Quantize, EveryInputAndFormatIsConvertedInspectedAndRunWithACheck) {
  for (const std::string from : {"bf16", "fp8", "mxfp4", "nvfp4"}) {
    synth(from, from);
    for (const std::string to : {"nvfp4", "mxfp4"}) {
      const std::string out = path(from + "-" + to);
      const Json document = expect_document({"quantize", path(from), out, "--format", to});
      EXPECT_EQ(document.find("projections")->as_unsigned(), 24U);
      EXPECT_EQ(document.find("source")->as_string(), from == "fp8" ? "fp8-block" : from);
      const Json inspected = expect_document({"inspect", out});
      EXPECT_EQ(inspected.find("format")->as_string(), to);
      for (const Json& layer : inspected.find("layers")->elements())
        EXPECT_TRUE(layer.find("complete")->as_bool());
      for (const std::string layer : {"0", "1"}) {
        const Json run = expect_document(
            {"run", out, "--layer", layer, "--tokens", "5", "--routing", "model", "--check"});
        EXPECT_TRUE(run.find("check")->find("passed")->as_bool());
      }
    }
  }
}

TEST_F(Quantize, ADenseModelIsInspectedByTypeAndStillNeedsAFormatToPlan) {
  synth("bf16", "bf16");
  synth("fp8", "fp8");
  const Json inspected = expect_document({"inspect", path("fp8")});
  EXPECT_TRUE(inspected.find("format")->is_null());
  EXPECT_EQ(inspected.find("expert_type")->as_string(), "fp8-block");
  EXPECT_TRUE(has(expect_success({"inspect", path("bf16")}).out, "bf16, no FP4: gate and up"));
  expect_refusal(4, "MOXIE-P005", {"plan", path("bf16")});
  expect_success({"plan", path("bf16"), "--format", "nvfp4"});
}

TEST_F(Quantize, TheDocumentHasEveryTensorWorstFirstAndTheTextTen) {
  synth("in", "bf16");
  const Json document = expect_document(
      {"quantize", path("in"), path("out"), "--format", "nvfp4", "--recipe", "mse"});
  test::expect_members(document, {{"ok", Kind::boolean},
                                  {"out", Kind::text},
                                  {"format", Kind::text},
                                  {"dialect", Kind::text_or_null},
                                  {"recipe", Kind::text_or_null},
                                  {"input_scales", Kind::boolean},
                                  {"tensors", Kind::number},
                                  {"copied_tensors", Kind::number},
                                  {"files", Kind::number},
                                  {"bytes", Kind::number},
                                  {"expert_bytes", Kind::number},
                                  {"seconds", Kind::number},
                                  {"total", Kind::object},
                                  {"worst_first", Kind::list},
                                  {"findings", Kind::list}});
  EXPECT_EQ(document.find("worst_first")->elements().size(), 24U);
  double last = 0;
  for (const Json& tensor : document.find("worst_first")->elements()) {
    EXPECT_LE(last, tensor.find("snr_db")->as_double());
    last = tensor.find("snr_db")->as_double();
    EXPECT_TRUE(tensor.find("changed")->is_null());
  }
  const auto text = expect_success({"quantize", path("in"), path("text"), "--format", "nvfp4"}).out;
  EXPECT_TRUE(has(text, "24 of 24 projections"));
  EXPECT_TRUE(has(text, "14 more"));
  const auto all =
      expect_success({"quantize", path("in"), path("all"), "--format", "nvfp4", "-v"}).out;
  EXPECT_FALSE(has(all, " more"));
  EXPECT_TRUE(test::same_folders(path("text"), path("all")));
}

TEST_F(Quantize, RefusalsHaveTheirExitCodesAndLeaveNothing) {
  synth("in", "bf16");
  const auto before = test::folder_bytes(folder_.path());
  const Words start = {"quantize", path("in"), path("out")};
  const auto refused = [&](int exit_code, const char* code, const Words& more) {
    expect_refusal(exit_code, code, start + more);
  };
  refused(2, "MOXIE-U001", {});
  refused(2, "MOXIE-U001", {"--format", "int4"});
  refused(2, "MOXIE-U001", {"--format", "nvfp4", "--recipe", "best"});
  refused(2, "MOXIE-U001", {"--format", "nvfp4", "--dialect", "gguf"});
  refused(2, "MOXIE-K004", {"--format", "nvfp4", "--memory", "10"});
  refused(4, "MOXIE-Q004", {"--format", "nvfp4", "--recipe", "floor"});
  refused(4, "MOXIE-Q005", {"--format", "mxfp4", "--dialect", "modelopt"});
  refused(4, "MOXIE-Q006", {"--format", "fp8"});
  refused(3, "MOXIE-C001", {"--format", "nvfp4", "--activations", "file:" + path("none")});
  refused(2, "MOXIE-U001", {"--format", "nvfp4", "--activations", "file:"});
  refused(2, "MOXIE-U001", {"--format", "nvfp4", "--activations", ""});
  refused(4, "MOXIE-Q005", {"--format", "mxfp4", "--dialect", "gpt-oss"});
  expect_refusal(2, "MOXIE-U001", {"quantize", path("in"), "", "--format", "nvfp4"});
  expect_refusal(2, "MOXIE-U002", {"quantize", path("in"), path("in/x"), "--format", "nvfp4"});
  expect_refusal(4, "MOXIE-P010",
                 Words{"synth", path("x"), "--format", "bf16", "--dialect", "deepseek"} + kSmall);
  expect_refusal(4, "MOXIE-P010",
                 Words{"synth", path("x"), "--format", "fp8", "--dialect", "modelopt"} + kSmall);
  expect_refusal(2, "MOXIE-U001", Words{"synth", path("x"), "--format", "f16"} + kSmall);
  EXPECT_EQ(test::folder_bytes(folder_.path()), before);
}

}  // namespace
}  // namespace moxie

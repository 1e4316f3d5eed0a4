// SPDX-License-Identifier: Apache-2.0
// Every verb that succeeds: its text, its document, and nothing else on either stream.
#include <gtest/gtest.h>

#include <regex>
#include <string>
#include <vector>

#include "cli/command.hpp"
#include "moxie/catalog.hpp"
#include "moxie/moxie.hpp"
#include "support/tiny_checkpoint.hpp"

namespace moxie {
namespace {

using test::document_of;
using test::expect_document;
using test::expect_members;
using test::expect_success;
using test::has;
using test::Kind;
using test::TinyDialect;
using test::Words;

const Words kSmall = {"--model", "tiny", "--hidden", "64", "--inter", "96", "--experts", "3"};

class Answers : public testing::Test {
 protected:
  Answers() { test::write_tiny(folder_.path() / "model", {}); }

  test::Outcome text(const Words& arguments) const {
    const test::Outcome outcome = expect_success(arguments, {.folder = folder_.path()});
    EXPECT_EQ(outcome.err, "");
    EXPECT_FALSE(outcome.out.empty());
    EXPECT_NE(outcome.out.front(), '{');
    return outcome;
  }
  Json document(const Words& arguments) const {
    return expect_document(arguments, {.folder = folder_.path()});
  }

  test::TempFolder folder_;
};

TEST_F(Answers, OfSynthSayWhatWasWritten) {
  EXPECT_TRUE(has(text(Words{"synth", "a"} + kSmall).out, "a: "));
  const Json document = this->document(Words{"synth", "b", "--seed", "7"} + kSmall);
  expect_members(document, {{"ok", Kind::boolean},
                            {"out", Kind::text},
                            {"model", Kind::text},
                            {"format", Kind::text},
                            {"dialect", Kind::text},
                            {"pattern", Kind::text},
                            {"seed", Kind::number},
                            {"tensors", Kind::number},
                            {"files", Kind::number},
                            {"bytes", Kind::number},
                            {"seconds", Kind::number},
                            {"findings", Kind::list}});
  EXPECT_EQ(document.find("out")->as_string(), "b");
  EXPECT_EQ(document.find("seed")->as_unsigned(), 7U);
  EXPECT_EQ(document.find("tensors")->as_unsigned(),
            open_checkpoint(folder_.path() / "b").tensors().size());
}

TEST_F(Answers, OfSynthFollowAConfigOfOnesOwn) {
  const Json document = this->document({"synth", "b", "--config", "model/config.json"});
  EXPECT_EQ(document.find("model")->as_string(), "model/config.json");
  const Checkpoint source = open_checkpoint(folder_.path() / "model");
  const Checkpoint written = open_checkpoint(folder_.path() / "b");
  EXPECT_EQ(read_model(written).config.hidden, read_model(source).config.hidden);
}

TEST_F(Answers, OfInspectSayWhatACheckpointIs) {
  const std::string text = this->text({"inspect", "model"}).out;
  for (const char* word : {"deepseek_v4", "mxfp4", "2 layers", "3 experts", "hidden 64", "inter 96",
                           "activation", "router", "per layer", "in total", "shared", "attention"})
    EXPECT_TRUE(has(text, word)) << word;

  const Json document = this->document({"inspect", "model"});
  expect_members(document, {{"path", Kind::text},
                            {"family", Kind::text},
                            {"dialect", Kind::text},
                            {"format", Kind::text},
                            {"activation", Kind::text},
                            {"router", Kind::text},
                            {"hidden", Kind::number},
                            {"inter", Kind::number},
                            {"experts", Kind::number},
                            {"top_k", Kind::number},
                            {"num_layers", Kind::number},
                            {"moe_layers", Kind::number},
                            {"gated", Kind::boolean},
                            {"layer_bytes", Kind::number},
                            {"total_bytes", Kind::number},
                            {"layers", Kind::list},
                            {"tensors", Kind::object},
                            {"files", Kind::number},
                            {"findings", Kind::list}});
  EXPECT_EQ(test::keys_of(*document.find("tensors")),
            (std::vector<std::string>{"experts", "shared", "attention", "other"}));
  EXPECT_EQ(document.find("tensors")->find("experts")->find("bytes")->as_unsigned(),
            document.find("total_bytes")->as_unsigned());
  EXPECT_EQ(document.find("layers")->elements().size(), 2U);
  // 3 projections of 64 * 96 values: a half byte each, and a scale byte for every 32.
  EXPECT_EQ(document.find("layer_bytes")->as_unsigned(), 3U * 3 * (64 * 96 / 2 + 64 * 96 / 32));
}

TEST_F(Answers, OfInspectNameTheDialectsApart) {
  test::write_tiny(folder_.path() / "nvfp4", {.dialect = TinyDialect::deepseek_v4_nvfp4});
  test::write_tiny(folder_.path() / "modelopt", {.dialect = TinyDialect::modelopt});
  const auto field = [&](const char* model, const char* key) {
    return document({"inspect", model}).find(key)->as_string();
  };
  EXPECT_EQ(field("model", "dialect"), "deepseek-v4");
  EXPECT_EQ(field("nvfp4", "dialect"), "deepseek-v4-nvfp4");
  EXPECT_EQ(field("nvfp4", "format"), "nvfp4");
  EXPECT_EQ(field("modelopt", "dialect"), "modelopt");
}

TEST_F(Answers, OfInspectOnAConfigAloneNeedNoTensor) {
  const Json document = this->document({"inspect", "model/config.json"});
  EXPECT_EQ(document.find("files")->as_unsigned(1), 0U);
  EXPECT_TRUE(document.find("layers")->elements().empty());
  EXPECT_EQ(document.find("format")->as_string(), "mxfp4");
}

// Without a known FP4 format inspect says so; plan then asks for --format.
TEST_F(Answers, OfInspectSayThatNoFp4FormatIsKnown) {
  folder_.write("plain/config.json", R"({"model_type": "qwen3_moe", "hidden_size": 64,
      "moe_intermediate_size": 96, "num_experts": 4, "num_experts_per_tok": 2,
      "num_hidden_layers": 1})");
  EXPECT_TRUE(has(text({"inspect", "plain"}).out, "no known FP4 format"));
  EXPECT_TRUE(document({"inspect", "plain"}).find("format")->is_null());
  EXPECT_EQ(document({"plan", "plain", "--format", "nvfp4"}).find("format")->as_string(), "nvfp4");
}

TEST_F(Answers, OfPlanShowEveryRank) {
  const std::string text = this->text({"plan", "model", "--tp", "2", "--ep", "2"}).out;
  for (const char* word : {"moe_inter", "virtual", "logical", "kernel", "target cpu, cpu.",
                           "4 ranks", "[0, 2)", "[2, 3)"})
    EXPECT_TRUE(has(text, word)) << word << "\n" << text;
  EXPECT_FALSE(has(text, "answer"));
  EXPECT_TRUE(std::regex_search(this->text({"plan", "model", "--why"}).out,
                                std::regex("cpu\\.[a-z0-9.]+ +chosen")));
}

TEST_F(Answers, OfPlanExplainTheChoiceOnlyWhenAsked) {
  EXPECT_EQ(document({"plan", "model"}).find("why"), nullptr);
  const Json why = *document({"plan", "model", "--why"}).find("why");
  ASSERT_FALSE(why.elements().empty());
  for (const Json& entry : why.elements()) {
    expect_members(entry, {{"kernel", Kind::text},
                           {"supported", Kind::boolean},
                           {"chosen", Kind::boolean},
                           {"reason", Kind::text}});
  }
}

TEST_F(Answers, OfPlanWithTokensSayHowLargeTheWorkspaceIs) {
  EXPECT_TRUE(document({"plan", "model"}).find("workspace_bytes")->is_null());
  const Json document = this->document({"plan", "model", "--tokens", "64", "--tp", "2"});
  const MoeModel model = read_model(open_checkpoint(folder_.path() / "model"));
  EXPECT_EQ(document.find("workspace_bytes")->as_unsigned(),
            workspace_size(make_plan(model, {.tp = 2}), spec_of(model.config), 64));
  EXPECT_TRUE(document.find("findings")->elements().empty());
}

TEST_F(Answers, OfPackAndVerifyCountWhatTheyWroteAndProved) {
  EXPECT_TRUE(has(text({"pack", "model", "--out", "a", "--tp", "3"}).out, "a: 3 ranks, 2 layers"));
  const Json packed = document({"pack", "model", "--out", "b", "--tp", "3"});
  expect_members(packed, {{"ok", Kind::boolean},
                          {"out", Kind::text},
                          {"plan_hash", Kind::text},
                          {"layout", Kind::text},
                          {"ranks", Kind::list},
                          {"layers", Kind::list},
                          {"files", Kind::number},
                          {"bytes", Kind::number},
                          {"seconds", Kind::number},
                          {"findings", Kind::list}});
  EXPECT_TRUE(packed.find("ok")->as_bool());
  EXPECT_EQ(packed.find("files")->as_unsigned(), 6U);
  EXPECT_EQ(packed.find("plan_hash")->as_string().size(), 32U);

  EXPECT_TRUE(has(text({"verify", "a", "--against", "model"}).out, "verdict: passed"));
  const Json proof = document({"verify", "b", "--against", "model"});
  expect_members(proof, {{"ok", Kind::boolean},
                         {"plan_hash", Kind::text},
                         {"ranks", Kind::number},
                         {"layers", Kind::list},
                         {"files", Kind::number},
                         {"tensors", Kind::number},
                         {"real_bytes", Kind::number},
                         {"tail_bytes", Kind::number},
                         {"seconds", Kind::number},
                         {"findings", Kind::list}});
  EXPECT_TRUE(proof.find("ok")->as_bool());
  EXPECT_EQ(proof.find("plan_hash")->as_string(), packed.find("plan_hash")->as_string());
  EXPECT_EQ(proof.find("real_bytes")->as_unsigned(),
            document({"inspect", "model"}).find("total_bytes")->as_unsigned());
}

TEST_F(Answers, OfDevicesListEveryKernelOfTheCatalog) {
  const std::string text = this->text({"devices"}).out;
  const Json document = this->document({"devices"});
  expect_members(document, {{"version", Kind::text},
                            {"cpu", Kind::object},
                            {"cuda", Kind::object},
                            {"gpus", Kind::list},
                            {"kernels", Kind::list},
                            {"findings", Kind::list}});
  const auto& kernels = document.find("kernels")->elements();
  ASSERT_EQ(kernels.size(), kernel_catalog().size());
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    const KernelEntry& kernel = kernel_catalog()[i];
    expect_members(kernels[i], {{"name", Kind::text},
                                {"target", Kind::text},
                                {"targets", Kind::list},
                                {"layout", Kind::text},
                                {"built", Kind::boolean},
                                {"runs_here", Kind::boolean},
                                {"reason", Kind::text}});
    EXPECT_EQ(kernels[i].find("name")->as_string(), kernel.name);
    EXPECT_EQ(kernels[i].find("built")->as_bool(), kernel.built);
    EXPECT_EQ(kernels[i].find("reason")->as_string().empty(),
              kernels[i].find("runs_here")->as_bool());
    EXPECT_TRUE(has(text, kernel.name));
  }
}

TEST_F(Answers, KeepAFolderThatIsNamedLikeAVerbApartFromIt) {
  std::filesystem::copy(folder_.path() / "model", folder_.path() / "pack");
  EXPECT_EQ(document({"inspect", "pack"}).find("path")->as_string(), "pack");
  EXPECT_EQ(document({"pack", "pack", "--out", "verify"}).find("out")->as_string(), "verify");
  EXPECT_TRUE(document({"verify", "verify", "--against", "pack"}).find("ok")->as_bool());
}

TEST(TheCommand, SaysItsVersion) {
  EXPECT_EQ(expect_success({"--version"}).out, std::string(version()) + "\n");
}

}  // namespace
}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// Ctrl-C during long work, and what a person sees of long work.
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include "cli/command.hpp"
#include "support/safetensors_bytes.hpp"

namespace moxie {
namespace {

namespace fs = std::filesystem;

using test::has;
using test::moxie_says;
using test::Outcome;
using test::Stdout;
using test::Words;

// Sizes of which no machine is through before the signal comes; most bytes are never written.
const Words kHuge = {"--model", "tiny",    "--num-layers", "400",       "--hidden",
                     "1024",    "--inter", "1024",         "--pattern", "constant"};

class Interrupt : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return (folder_.path() / name).string(); }

  // True once anything but `known` is in the folder.
  bool begun() const { return test::tree_of(folder_.path()) != before_; }

  Outcome interrupted(const Words& words) const {
    return moxie_says(words, {.interrupt_when = [this](const Outcome&) { return begun(); }});
  }
  void expect_interrupted(const Words& words) {
    before_ = test::tree_of(folder_.path());
    const Outcome text = interrupted(words);
    EXPECT_EQ(text.exit_code, 130) << text.err;
    EXPECT_EQ(text.out, "");
    EXPECT_EQ(text.err, "moxie: MOXIE-U130 error: interrupted\n");
    EXPECT_EQ(test::tree_of(folder_.path()), before_);

    const Outcome asked = interrupted(words + Words{"--json"});
    EXPECT_EQ(asked.exit_code, 130);
    EXPECT_EQ(test::keys_of(test::document_of(asked, words[0])),
              (std::vector<std::string>{"schema", "ok", "findings"}));
    EXPECT_EQ(test::tree_of(folder_.path()), before_);
  }

  // A checkpoint whose bytes are a hole: many layers, at no cost.
  void write_hollow_model() const {
    constexpr std::uint64_t kWidth = 1024;
    constexpr int kLayers = 200;
    const std::string head = R"({"model_type": "deepseek_v4", "expert_dtype": "fp4",
        "hidden_size": 1024, "moe_intermediate_size": 1024, "n_routed_experts": 8,
        "num_experts_per_tok": 2, "quantization_config": {"quant_method": "fp8"}, )";
    folder_.write("model/config.json",
                  head + "\"num_hidden_layers\": " + std::to_string(kLayers) + "}");
    std::string header = "{";
    std::uint64_t at = 0;
    const auto add = [&](const std::string& name, const char* dtype, std::uint64_t columns) {
      header += (at == 0 ? "" : ",") +
                test::entry(name, dtype, std::to_string(kWidth) + "," + std::to_string(columns), at,
                            at + kWidth * columns);
      at += kWidth * columns;
    };
    for (int layer = 0; layer < kLayers; ++layer) {
      for (int expert = 0; expert < 8; ++expert) {
        for (const char* projection : {"w1", "w2", "w3"}) {
          const std::string stem = "layers." + std::to_string(layer) + ".ffn.experts." +
                                   std::to_string(expert) + "." + projection;
          add(stem + ".weight", "I8", kWidth / 2);
          add(stem + ".scale", "F8_E8M0", kWidth / 32);
        }
      }
    }
    const fs::path file =
        folder_.write("model/model.safetensors", test::safetensors_bytes(header + "}", ""));
    fs::resize_file(file, fs::file_size(file) + at);
  }

  test::TempFolder folder_;
  std::vector<std::string> before_;
};

TEST_F(Interrupt, LeavesNothingOfASynth) {
  expect_interrupted(Words{"synth", path("out")} + kHuge);
}

TEST_F(Interrupt, LeavesNothingOfAPack) {
  write_hollow_model();
  expect_interrupted({"pack", path("model"), "--out", path("out"), "--tp", "3"});
}

TEST_F(Interrupt, LeavesNothingOfAConversion) {
  write_hollow_model();
  expect_interrupted({"quantize", path("model"), path("out"), "--format", "nvfp4"});
}

TEST_F(Interrupt, LeavesOtherRanksOfAPack) {
  write_hollow_model();
  const Words pack = {"pack", path("model"), "--out", path("out"), "--tp", "3", "--layers"};
  EXPECT_EQ(moxie_says(pack + Words{"0", "--rank", "0"}).exit_code, 0);
  before_ = test::tree_of(folder_.path());
  const Outcome outcome = interrupted(pack + Words{"0..199", "--rank", "1"});
  EXPECT_EQ(outcome.exit_code, 130) << outcome.err;
  EXPECT_EQ(test::tree_of(folder_.path()), before_);
}

// Nothing can be cleaned up after SIGKILL: what is left has a temporary name, no rank's, and does
// not stand in the way of packing again.
TEST_F(Interrupt, AKilledPackLeavesNoRankAndCanBeRepeated) {
  write_hollow_model();
  const Words pack = {"pack", path("model"), "--out", path("out"), "--tp", "3"};
  const Outcome outcome = moxie_says(
      pack,
      {.interrupt_when =
           [this](const Outcome&) { return fs::exists(path("out")) && !fs::is_empty(path("out")); },
       .interrupt_with = SIGKILL});
  EXPECT_EQ(outcome.signal, SIGKILL);
  std::size_t left = 0;
  for (const auto& entry : fs::directory_iterator(path("out"))) {
    ++left;
    EXPECT_TRUE(entry.path().filename().string().starts_with(".rank-")) << entry.path();
  }
  EXPECT_GT(left, 0U);
  EXPECT_NE(moxie_says({"verify", path("out"), "--against", path("model")}).exit_code, 0);
  EXPECT_EQ(moxie_says(pack + Words{"--layers", "0"}).exit_code, 0);
  EXPECT_TRUE(fs::exists(path("out") + "/rank-002/model-00000.safetensors"));
}

TEST_F(Interrupt, OnATerminalComesAfterABarAndLeavesNothing) {
  const Outcome outcome = moxie_says(
      Words{"synth", path("out")} + kHuge,
      {.to = Stdout::terminal,
       .interrupt_when = [](const Outcome& so_far) { return has(so_far.out, "s left"); }});
  EXPECT_EQ(outcome.exit_code, 130);
  EXPECT_TRUE(has(outcome.out, "synth [")) << outcome.out;
  EXPECT_TRUE(has(outcome.out, "B/s")) << outcome.out;  // the rate
  EXPECT_TRUE(has(outcome.out, "moxie: ")) << outcome.out;
  EXPECT_TRUE(test::tree_of(folder_.path()).empty());
}

// Without a terminal there is one closing line for work of half a second and more, else none.
TEST(LongWork, SaysOneLineAtItsEnd) {
  const test::TempFolder folder;
  for (const char* layers : {"1", "24"}) {
    const Outcome outcome =
        test::expect_success({"synth", (folder.path() / layers).string(), "--model", "tiny",
                              "--num-layers", layers, "--json"});
    const double seconds = test::document_of(outcome, "synth").find("seconds")->as_double();
    const auto lines = test::lines_of(outcome.err);
    EXPECT_TRUE(seconds >= 0.45 || lines.empty()) << outcome.err;
    EXPECT_TRUE(seconds <= 0.7 || lines.size() == 1) << outcome.err;
    for (const std::string& line : lines) EXPECT_TRUE(line.starts_with("synth: ")) << line;
    EXPECT_FALSE(has(outcome.err, "\r"));
  }
}

}  // namespace
}  // namespace moxie

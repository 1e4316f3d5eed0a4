// SPDX-License-Identifier: Apache-2.0
// C-01, exit 2: what was asked is no command. Nothing is opened, nothing is written.
#include <gtest/gtest.h>

#include <string>

#include "cli/command.hpp"
#include "support/tiny_checkpoint.hpp"

namespace moxie {
namespace {

using test::expect_refusal;
using test::has;
using test::Words;

constexpr int kUsage = 2;

class UsageRefusals : public testing::Test {
 protected:
  UsageRefusals() : model_(test::write_tiny(folder_.path() / "model", {}).string()) {
    out_ = (folder_.path() / "out").string();
    before_ = test::tree_of(folder_.path());
  }
  ~UsageRefusals() override { EXPECT_EQ(test::tree_of(folder_.path()), before_); }

  std::string plan(const Words& options) const {
    return expect_refusal(kUsage, "MOXIE-U001", Words{"plan", model_} + options);
  }
  std::string pack(const Words& options) const {
    return expect_refusal(kUsage, "MOXIE-U001",
                          Words{"pack", model_, "--out", out_, "--tp", "3"} + options);
  }
  std::string synth(const Words& options, const char* code = "MOXIE-U001") const {
    return expect_refusal(kUsage, code, Words{"synth", out_} + options);
  }

  test::TempFolder folder_;
  std::string model_;
  std::string out_;
  std::vector<std::string> before_;
};

TEST_F(UsageRefusals, NameTheVerbsThatThereAreC01) {
  for (const Words& words : {Words{}, Words{"frobnicate"}, Words{"--frobnicate"}, Words{""}}) {
    const std::string line = expect_refusal(kUsage, "MOXIE-U001", words, "usage");
    EXPECT_TRUE(
        has(line, "synth, inspect, plan, pack, quantize, verify, doctor, run, bench, devices"))
        << line;
    EXPECT_TRUE(has(line, words.empty() ? "got nothing" : words[0])) << line;
  }
}

TEST_F(UsageRefusals, NameTheUnknownFlagC01) {
  for (const Words& words : {Words{"synth", out_, "--model", "tiny"}, Words{"inspect", model_},
                             Words{"plan", model_}, Words{"pack", model_, "--out", out_},
                             Words{"verify", model_, "--against", model_}, Words{"devices"}}) {
    const std::string line = expect_refusal(kUsage, "MOXIE-U001", words + Words{"--frobnicate"});
    EXPECT_TRUE(has(line, "--frobnicate")) << line;
    EXPECT_TRUE(has(line, "see moxie " + words[0] + " --help")) << line;
  }
}

TEST_F(UsageRefusals, AreTheSameWhereverJsonStands) {
  const std::string at_the_end = test::moxie_says({"plan", model_, "--tp", "x", "--json"}).out;
  EXPECT_EQ(test::moxie_says({"plan", "--json", model_, "--tp", "x"}).out, at_the_end);
  EXPECT_EQ(test::moxie_says({"plan", model_, "--json", "--tp", "x"}).out, at_the_end);
  EXPECT_TRUE(at_the_end.starts_with("{\n  \"schema\": \"moxie.plan/1\",\n  \"ok\": false"));
}

TEST_F(UsageRefusals, CoverWhatIsLeftOut) {
  expect_refusal(kUsage, "MOXIE-U001", {"plan"});
  expect_refusal(kUsage, "MOXIE-U001", {"inspect"});
  expect_refusal(kUsage, "MOXIE-U001", {"pack", model_});
  expect_refusal(kUsage, "MOXIE-U001", {"verify", model_});
  synth({});
  plan({"--tp"});
}

TEST_F(UsageRefusals, CoverWhatIsTooMuch) {
  plan({model_});
  plan({"--tp", "3", "--tp", "4"});
  expect_refusal(kUsage, "MOXIE-U001", {"devices", model_});
  synth({"--model", "tiny", "--config", model_ + "/config.json"});
}

// 010 is ten, not eight; -1 and 2^64 do not wrap around.
TEST_F(UsageRefusals, CoverCountsThatAreNone) {
  for (const char* count :
       {"x", "-1", "", "1.5", "0x3", "3 ", " 3", "+3", "99999999999999999999"}) {
    for (const char* flag : {"--tp", "--ep", "--kernel-align", "--tokens"}) {
      if (std::string(count) != "x" && std::string(count) != "-1" && flag[2] != 't') continue;
      EXPECT_TRUE(has(plan({std::string(flag) + "=" + count}), flag));
    }
  }
  for (const char* flag : {"--seed", "--hidden", "--inter", "--experts", "--num-layers"})
    synth({"--model", "tiny", flag, "-1"});
  plan({"--tokens", "0"});
  EXPECT_EQ(test::moxie_says({"plan", model_, "--tp", "010"}).out,
            test::moxie_says({"plan", model_, "--tp", "10"}).out);
}

TEST_F(UsageRefusals, CoverCountsOutOfRange) {
  for (const Words& options : {Words{"--tp", "0"}, Words{"--tp", "65"}, Words{"--ep", "0"},
                               Words{"--kernel-align", "0"}, Words{"--kernel-align", "65537"}})
    expect_refusal(kUsage, "MOXIE-P001", Words{"plan", model_} + options);
  expect_refusal(kUsage, "MOXIE-P001", {"pack", model_, "--out", out_, "--tp", "0"});
  for (const char* flag : {"--hidden", "--inter", "--experts", "--num-layers"})
    synth({"--model", "tiny", flag, "0"}, "MOXIE-U003");
}

TEST_F(UsageRefusals, ListTheNamesThatAnOptionTakes) {
  EXPECT_TRUE(has(plan({"--target", "sm91"}), "cpu|sm90|sm100|sm120"));
  EXPECT_TRUE(has(plan({"--act-format", "fp4"}), "bf16|fp8|fp8x2|mxfp8|nvfp4|int8|int8x2"));
  EXPECT_TRUE(has(plan({"--format", "fp8"}), "mxfp4|nvfp4"));
  EXPECT_TRUE(has(plan({"--color", "sometimes"}), "auto|always|never"));
  EXPECT_TRUE(has(plan({"--placement", "diagonal"}), "contiguous"));
  EXPECT_TRUE(has(pack({"--layout", "blob"}), "logical|kernel"));
  EXPECT_TRUE(has(synth({"--model", "tiny", "--dialect", "latin"}), "deepseek|modelopt"));
  EXPECT_TRUE(has(synth({"--model", "tiny", "--format", "int4"}), "mxfp4|nvfp4"));
  EXPECT_TRUE(has(synth({"--model", "tiny", "--pattern", "plaid"}), "normal|outliers|monotonic"));
  EXPECT_TRUE(
      has(synth({"--model", "gpt-2"}, "MOXIE-U003"), "deepseek-v4-flash, deepseek-v4-pro, tiny"));
}

TEST_F(UsageRefusals, CoverRangesOfLayersThatAreNone) {
  for (const char* layers : {"a", "-1", "", "1..0", "0..", "..1", "0...1", "0,,1", "0,", ",0",
                             "0..999999999", "99999999999", "1.0"})
    EXPECT_TRUE(has(pack({std::string("--layers=") + layers}), "--layers")) << layers;
}

TEST_F(UsageRefusals, CoverRanksThatAreNone) {
  for (const char* rank : {"-1", "x", "1,2", "", "1.0", "ALL"})
    EXPECT_TRUE(has(pack({std::string("--rank=") + rank}), "--rank")) << rank;
  const std::string line = expect_refusal(
      kUsage, "MOXIE-K004", {"pack", model_, "--out", out_, "--tp", "3", "--rank", "7"});
  EXPECT_TRUE(has(line, "rank 7")) << line;
  EXPECT_TRUE(has(line, "3 ranks")) << line;
}

TEST_F(UsageRefusals, CoverSizesThatAreNone) {
  for (const char* size :
       {"5x", "MB", "-1", "-1MB", "", "1e9", "0x100000", "0xff", "010MB", "0b11",
        "18446744073709551616", "18446744073709551617KiB", "99999999999999999999999", "20EiB"})
    EXPECT_TRUE(has(pack({std::string("--memory=") + size}), "--memory")) << size;
  for (const char* size : {"0", "1KB"}) {
    const std::string line =
        expect_refusal(kUsage, "MOXIE-K004", {"pack", model_, "--out", out_, "--memory", size});
    EXPECT_TRUE(has(line, "give at least")) << line;
  }
}

TEST_F(UsageRefusals, CoverAnOutputThatExists) {
  expect_refusal(kUsage, "MOXIE-U002", {"synth", model_, "--model", "tiny"});
}

}  // namespace
}  // namespace moxie

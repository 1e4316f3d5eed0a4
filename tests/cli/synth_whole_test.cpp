// SPDX-License-Identifier: Apache-2.0
// A whole checkpoint from the command line, and the verbs that read it.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "cli/command.hpp"

namespace moxie {
namespace {

using test::expect_document;
using test::expect_refusal;
using test::expect_success;
using test::has;
using test::Words;

class SynthWholeCommand : public testing::Test {
 protected:
  std::string out() const { return (folder_.path() / "out").string(); }
  Json synth(const Words& more) const {
    return expect_document(Words{"synth", out(), "--model", "tiny", "--whole"} + more);
  }

  test::TempFolder folder_;
};

TEST_F(SynthWholeCommand, WritesWhatEveryVerbTakes) {
  for (const char* format : {"mxfp4", "nvfp4"}) {
    SCOPED_TRACE(format);
    const Json written = synth({"--num-layers", "4", "--format", format});
    // 29 tensors around the experts of a layer, 4 and 11 more with a compressor, 10 of the draft
    // block, 6 of the model; 8 experts.
    const std::uint64_t parts = format == std::string("mxfp4") ? 6 : 12;
    EXPECT_EQ(written.find("tensors")->as_unsigned(),
              5 * 29U + 4 + 11 + 10 + 6 + 4 * 8 * parts + 8 * 6);
    EXPECT_EQ(written.find("files")->as_unsigned(), parts == 6 ? 8U : 9U);

    const Json seen = expect_document({"inspect", out()});
    EXPECT_TRUE(seen.find("findings")->elements().empty());
    const auto& layers = seen.find("layers")->elements();
    ASSERT_EQ(layers.size(), 5U);
    EXPECT_EQ(layers[4].find("prefix")->as_string(), "mtp.0.ffn.experts");
    EXPECT_TRUE(layers[4].find("mtp")->as_bool());
    EXPECT_EQ(layers[4].find("format")->as_string(), "mxfp4");

    expect_success({"plan", out(), "--tp", "3"});
    expect_success({"run", out(), "--layer", "0", "--tokens", "4", "--check"});
    expect_success({"run", out(), "--layer", "1", "--tokens", "4", "--routing", "model"});
    // A plan has one format; the draft block's is always MXFP4.
    if (parts == 6) expect_success({"run", out(), "--layer", "4", "--tokens", "4", "--check"});
    expect_success({"doctor", out(), "--deep"});
    const std::string set = (folder_.path() / "set").string();
    expect_success({"pack", out(), "--out", set, "--tp", "3"});
    expect_success({"verify", set, "--against", out()});
    std::filesystem::remove_all(out());
    std::filesystem::remove_all(set);
  }
}

// Attention is what makes up the block `attn`; norms of blocks and mixes of the residual are not.
TEST_F(SynthWholeCommand, IsInspectedByClassesOfTensors) {
  synth({"--num-layers", "3"});
  const Json seen = expect_document({"inspect", out()});
  const Json& classes = *seen.find("tensors");
  const auto count = [&](const char* kind) {
    return classes.find(kind)->find("tensors")->as_unsigned();
  };
  EXPECT_EQ(count("experts"), 4U * 8 * 6);
  EXPECT_EQ(count("shared"), 4U * 6);
  EXPECT_EQ(count("attention"), 4U * 13 + 11 + 4);
  // Norms, mixes and router of four blocks; of the draft ten more; of the model six.
  EXPECT_EQ(count("other"), 4U * (2 + 6 + 2) + 10 + 6);
}

TEST_F(SynthWholeCommand, OfAnotherFamilyIsRefusedWithTheReason) {
  const std::string line =
      expect_refusal(4, "MOXIE-P010", {"synth", out(), "--model", "kimi-k2", "--whole"});
  EXPECT_TRUE(has(line, "deepseek_v4")) << line;
  EXPECT_TRUE(has(line, "--whole")) << line;
  EXPECT_FALSE(std::filesystem::exists(out()));
}

TEST_F(SynthWholeCommand, NamesWhatAConfigLacks) {
  synth({});
  Json config = Json::parse(test::read_bytes(folder_.path() / "out/config.json"), "config.json");
  config.erase("o_lora_rank");
  const std::string file = folder_.write("lacks.json", config.dump()).string();
  const std::string line = expect_refusal(
      4, "MOXIE-P010", {"synth", (folder_.path() / "b").string(), "--config", file, "--whole"});
  EXPECT_TRUE(has(line, "o_lora_rank")) << line;
  // What was written is a config to write from.
  expect_success({"synth", (folder_.path() / "b").string(), "--config", out(), "--whole"});
}

}  // namespace
}  // namespace moxie

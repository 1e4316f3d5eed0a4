// SPDX-License-Identifier: Apache-2.0
// --help of every verb: two examples first, every option after, and the examples work as printed.
#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "cli/command.hpp"

namespace moxie {
namespace {

using test::expect_success;
using test::has;
using test::Words;

struct Verb {
  std::string name;
  Words options;  // those of the contract that this version has
};

const Words kCommon = {"--json", "-q", "-v", "--color", "--help"};
const Words kPlanOptions = {"--tp",     "--ep",         "--placement",    "--format",
                            "--target", "--act-format", "--kernel-align", "--certificate"};

std::vector<Verb> verbs() {
  return {{"synth",
           kCommon + Words{"OUT", "--model", "--config", "--num-layers", "--experts", "--hidden",
                           "--inter", "--format", "--dialect", "--pattern", "--whole", "--seed"}},
          {"inspect", kCommon + Words{"MODEL"}},
          {"plan", kCommon + kPlanOptions + Words{"MODEL", "--tokens", "--why"}},
          {"pack", kCommon + kPlanOptions +
                       Words{"MODEL", "--out", "--rank", "--layers", "--layout", "--memory"}},
          {"quantize", kCommon + Words{"MODEL", "OUT", "--format", "--dialect", "--recipe",
                                       "--activations", "--memory"}},
          {"verify", kCommon + Words{"DIR", "--against"}},
          {"run", kCommon + kPlanOptions +
                      Words{"MODEL", "--layer", "--top-k", "--routing", "--input", "--tokens",
                            "--seed", "--repeat", "--threads", "--check", "--trace", "--output"}},
          {"doctor", kCommon + Words{"MODEL", "--layers", "--deep", "--certificate"}},
          {"devices", kCommon}};
}

Words words_of(const std::string& line) {
  std::istringstream stream(line);
  Words words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

// The indented lines under "Examples:".
Words examples_of(const Words& command) {
  const auto lines = test::lines_of(expect_success(command).out);
  Words examples;
  if (lines.empty() || lines[0] != "Examples:") return examples;
  for (std::size_t i = 1; i < lines.size() && lines[i].starts_with("  "); ++i)
    examples.push_back(lines[i].substr(2));
  return examples;
}

TEST(Help, StartsWithTwoExamplesOfItsVerb) {
  for (const Verb& verb : verbs()) {
    const auto examples = examples_of({verb.name, "--help"});
    ASSERT_EQ(examples.size(), 2U) << verb.name;
    for (const std::string& example : examples)
      EXPECT_TRUE(example.starts_with("moxie " + verb.name)) << example;
  }
  EXPECT_EQ(examples_of({"--help"}).size(), 2U);
}

TEST(Help, NamesEveryOption) {
  for (const Verb& verb : verbs()) {
    const std::string help = expect_success({verb.name, "--help"}).out;
    for (const std::string& option : verb.options) EXPECT_TRUE(has(help, option)) << option;
    EXPECT_EQ(expect_success({verb.name, "-h"}).out, help);
  }
}

TEST(Help, NamesEveryVerb) {
  const std::string help = expect_success({"--help"}).out;
  for (const Verb& verb : verbs()) EXPECT_TRUE(has(help, "\n  " + verb.name + " ")) << verb.name;
}

TEST(Help, FitsATerminalOfUsualWidth) {
  for (const Verb& verb : verbs()) {
    for (const std::string& line : test::lines_of(expect_success({verb.name, "--help"}).out))
      EXPECT_LE(line.size(), 128U) << line;
  }
}

// The examples speak of `layer`, `model`, `config.json` and `packed`; small ones stand in for them.
TEST(Help, GivesExamplesThatWorkAsPrinted) {
  const Words small = {"--hidden", "64", "--inter", "96", "--experts", "8"};
  Words commands;
  for (const Verb& verb : verbs()) commands = commands + examples_of({verb.name, "--help"});
  commands = commands + examples_of({"--help"});
  EXPECT_EQ(commands.size(), 20U);
  for (const std::string& command : commands) {
    SCOPED_TRACE(command);
    const test::TempFolder folder;
    const test::Launch here{.folder = folder.path()};
    const auto prepare = [&](const Words& words) { expect_success(words, here); };
    Words words = words_of(command);
    ASSERT_EQ(words[0], "moxie");
    words.erase(words.begin());
    if (words[0] == "synth") {
      words = words + small;  // widths and experts as asked for here, all else as printed
    } else {
      prepare(Words{"synth", "layer", "--model", "tiny"} + small);
      prepare(Words{"synth", "model", "--model", "tiny", "--num-layers", "6"} + small);
      std::filesystem::copy(folder.path() / "layer/config.json", folder.path() / "config.json");
      if (words[0] == "verify" || words[0] == "run")
        prepare({"pack", "layer", "--out", "packed", "--tp", "3"});
    }
    EXPECT_FALSE(expect_success(words, here).out.empty());
  }
}

}  // namespace
}  // namespace moxie

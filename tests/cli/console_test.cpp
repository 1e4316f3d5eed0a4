// SPDX-License-Identifier: Apache-2.0
// Streams: quiet and verbose, colours only where wanted, and an stdout that takes nothing.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "cli/command.hpp"
#include "support/tiny_checkpoint.hpp"

namespace moxie {
namespace {

using test::expect_success;
using test::has;
using test::moxie_says;
using test::Outcome;
using test::Stdout;
using test::Words;

constexpr char kEscape[] = "\x1b[";

class Console : public testing::Test {
 protected:
  // One shard is absent: every verb that opens the model has a warning to give.
  Console() : model_(test::write_tiny(folder_.path() / "model", {.shards = shards()}).string()) {
    std::filesystem::remove(folder_.path() / "model/model-1.safetensors");
    out_ = (folder_.path() / "out").string();
    expect_success({"pack", model_, "--out", out_, "--layers", "0"});
  }
  static test::TinyShards shards() { return test::TinyShards::indexed; }

  Words verify() const { return {"verify", out_, "--against", model_}; }

  test::TempFolder folder_;
  std::string model_;
  std::string out_;
};

TEST_F(Console, QuietLeavesErrorsOnly) {
  for (const Words& words : {Words{"inspect", model_}, Words{"plan", model_}, verify()}) {
    const Outcome plain = expect_success(words);
    EXPECT_TRUE(has(plain.err, "MOXIE-C010 warning")) << plain.err;
    const Outcome quiet = expect_success(words + Words{"-q"});
    EXPECT_EQ(quiet.err, "");
    EXPECT_EQ(quiet.out, plain.out);
    EXPECT_EQ(expect_success(words + Words{"--quiet"}).err, "");
  }
  const Outcome refused = moxie_says({"plan", model_, "--ep", "9", "-q"});
  EXPECT_EQ(test::lines_of(refused.err).size(), 1U) << refused.err;
  EXPECT_EQ(test::lines_of(moxie_says({"plan", model_, "-q", "--tp", "x"}).err).size(), 1U);
}

TEST_F(Console, QuietLeavesTheDocumentWhole) {
  for (const char* verb : {"inspect", "plan"}) {
    EXPECT_EQ(expect_success({verb, model_, "--json", "-q"}).out,
              expect_success({verb, model_, "--json"}).out);
  }
}

TEST_F(Console, VerboseSaysHowLongItTook) {
  for (const char* flag : {"-v", "--verbose"}) {
    const Outcome outcome = expect_success({"plan", model_, flag});
    EXPECT_EQ(outcome.out, expect_success({"plan", model_}).out);
    EXPECT_TRUE(has(outcome.err, "MOXIE-C010"));
    EXPECT_TRUE(has(outcome.err, "moxie: plan took "));
  }
}

TEST_F(Console, ColoursNothingThatIsNoTerminal) {
  for (const Words& words : {verify(), Words{"plan", model_}, Words{"plan", model_, "--ep", "9"},
                             Words{"plan", "--wrong"}}) {
    for (const Words& color : {Words{}, Words{"--color", "auto"}, Words{"--color", "never"}}) {
      const Outcome outcome = moxie_says(words + color);
      EXPECT_FALSE(has(outcome.out + outcome.err, kEscape)) << outcome.out << outcome.err;
    }
  }
}

TEST_F(Console, ColoursWhenTold) {
  const Words always = {"--color", "always"};
  EXPECT_TRUE(has(moxie_says(verify() + always).out, kEscape));
  for (const Words& words :
       {verify(), Words{"plan", model_}, Words{"plan", model_, "--ep", "9"},
        Words{"plan", model_, "--wrong"}, Words{"plan", model_, "--tp", "x"}}) {
    const Outcome outcome = moxie_says(words + always);
    EXPECT_TRUE(has(outcome.err, kEscape)) << outcome.err;
    EXPECT_TRUE(outcome.err.ends_with("\x1b[0m\n")) << outcome.err;
  }
}

TEST_F(Console, NeverColoursADocument) {
  for (const Words& words : {verify(), Words{"plan", model_}, Words{"plan", model_, "--ep", "9"}})
    EXPECT_FALSE(has(moxie_says(words + Words{"--json", "--color", "always"}).out, kEscape));
}

TEST_F(Console, ColoursATerminalUnlessNoColorIsSet) {
  const auto shows = [&](const Words& options, const std::string& no_color) {
    return has(expect_success(verify() + options,
                              {.variables = {{"NO_COLOR", no_color}}, .to = Stdout::terminal})
                   .out,
               kEscape);
  };
  EXPECT_TRUE(shows({}, ""));  // set but empty counts as not set
  EXPECT_TRUE(shows({"--color", "auto"}, ""));
  EXPECT_FALSE(shows({}, "1"));
  EXPECT_FALSE(shows({"--color", "never"}, ""));
  EXPECT_TRUE(shows({"--color", "always"}, "1"));  // asked for by name
}

TEST_F(Console, EndsSilentlyWhenNobodyReads) {
  for (const Words& words : {Words{"devices"}, Words{"inspect", model_}, Words{"plan", model_},
                             verify(), Words{"plan", model_, "--json"}, Words{"--help"}}) {
    const Outcome outcome =
        moxie_says(words + (words[0] == "--help" ? Words{} : Words{"-q"}), {.to = Stdout::unread});
    EXPECT_EQ(outcome.err, "") << words[0];
    EXPECT_NE(outcome.exit_code, 5) << words[0];
  }
}

TEST_F(Console, DoesItsWorkWhenNobodyReads) {
  const std::string out = (folder_.path() / "again").string();
  const Outcome outcome =
      moxie_says({"pack", model_, "--out", out, "--layers", "0"}, {.to = Stdout::unread});
  EXPECT_EQ(outcome.exit_code, 0);
  expect_success({"verify", out, "--against", model_});
}

TEST_F(Console, SaysThatStdoutTakesNothing) {
  for (const Stdout to : {Stdout::full, Stdout::closed}) {
    for (const Words& words : {Words{"devices"}, Words{"inspect", model_}, Words{"plan", model_},
                               verify(), Words{"plan", model_, "--json"}}) {
      const Outcome outcome = moxie_says(words + Words{"-q"}, {.to = to});
      EXPECT_EQ(outcome.exit_code, 5);
      EXPECT_TRUE(outcome.err.starts_with("moxie: MOXIE-E001 error: write to stdout failed"))
          << outcome.err;
      EXPECT_EQ(test::lines_of(outcome.err).size(), 1U) << outcome.err;
    }
  }
}

// A closed stream must not become the number of the next file: what is meant for a person would go
// into a tensor.
TEST_F(Console, WritesNoTalkIntoFiles) {
  const std::string out = (folder_.path() / "again").string();
  moxie_says({"pack", model_, "--out", out, "--layers", "0"}, {.to = Stdout::closed});
  expect_success({"verify", out, "--against", model_});
}

}  // namespace
}  // namespace moxie

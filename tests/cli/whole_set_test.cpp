// SPDX-License-Identifier: Apache-2.0
// pack and verify of a whole checkpoint, the rate of reading, and the verbs that take the set.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "cli/run_command.hpp"
#include "support/whole_checkpoint.hpp"

namespace moxie {
namespace {

namespace fs = std::filesystem;

using test::expect_document;
using test::expect_members;
using test::expect_refusal;
using test::expect_success;
using test::has;
using test::Kind;
using test::number;
using test::numbers;
using test::Words;

class WholeSetCommand : public testing::Test {
 protected:
  WholeSetCommand() {
    expect_success(
        Words{"synth", model(), "--model", "tiny", "--whole", "--num-layers", "2", "-q"});
  }

  std::string model() const { return (folder_.path() / "model").string(); }
  std::string set() const { return (folder_.path() / "set").string(); }
  Json pack(const Words& options) const {
    return expect_document(Words{"pack", model(), "--out", set()} + options);
  }

  test::TempFolder folder_;
};

TEST_F(WholeSetCommand, PackSaysHowMuchWasReadAndHowFast) {
  const Json packed = pack({"--tp", "3"});
  EXPECT_EQ(numbers(*packed.find("layers")), (std::vector<std::uint64_t>{0, 1, 2}));
  EXPECT_EQ(number(packed, "files"), 3U * (3 + 1));
  expect_members(packed, {{"source_bytes", Kind::number},
                          {"seconds", Kind::number},
                          {"pack_bytes_per_s", Kind::number}});
  EXPECT_EQ(packed.find("read_bytes_per_s"), nullptr) << "nobody asked";
  EXPECT_EQ(packed.find("read_ratio"), nullptr);
  std::uint64_t stored = 0;
  const Checkpoint source = open_checkpoint(model());
  for (const TensorInfo& tensor : source.tensors()) stored += tensor.bytes;
  EXPECT_EQ(number(packed, "source_bytes"), stored) << "each once, however many ranks hold it";
  const double seconds = packed.find("seconds")->as_double();
  EXPECT_GT(seconds, 0);
  EXPECT_NEAR(packed.find("pack_bytes_per_s")->as_double() * seconds, static_cast<double>(stored),
              1e-6 * static_cast<double>(stored));
}

TEST_F(WholeSetCommand, MeasureReadStatesBothRatesAndTheirRatio) {
  const Json plain = pack({"--tp", "3"});
  fs::remove_all(set());
  const Json packed = pack({"--tp", "3", "--measure-read"});
  const auto value = [&](const char* key) {
    const Json* found = packed.find(key);
    return found == nullptr ? -1 : found->as_double();
  };
  EXPECT_EQ(number(packed, "source_bytes"), number(plain, "source_bytes"));
  EXPECT_GT(value("read_bytes_per_s"), 0);
  EXPECT_GT(value("read_ratio"), 0);
  EXPECT_NEAR(value("read_ratio") * value("read_bytes_per_s"), value("pack_bytes_per_s"),
              1e-6 * value("pack_bytes_per_s"));
  EXPECT_EQ(packed.find("plan_hash")->as_string(), plain.find("plan_hash")->as_string());
  expect_success({"verify", set(), "--against", model()});
  fs::remove_all(set());
  const std::string shown = expect_success({"pack", model(), "--out", set(), "--measure-read"}).out;
  EXPECT_TRUE(has(shown, "% of reading alone at ")) << shown;
}

// What can not be packed is not read first, and a refusal leaves nothing.
TEST_F(WholeSetCommand, MeasureReadRefusesWhatPackRefuses) {
  expect_refusal(2, "MOXIE-K004",
                 {"pack", model(), "--out", set(), "--rank", "1", "--measure-read"});
  expect_refusal(3, "MOXIE-M011",
                 {"pack", model(), "--out", set(), "--layers", "9", "--measure-read"});
  EXPECT_FALSE(fs::exists(set()));
}

TEST_F(WholeSetCommand, EveryVerbThatTakesASetTakesThisOne) {
  for (const Words& options : {Words{"--tp", "3"}, Words{"--tp", "2", "--layout", "kernel"},
                               Words{"--ep", "2", "--placement", "interleaved"}}) {
    pack(options);
    const Json proof = expect_document({"verify", set(), "--against", model()});
    EXPECT_TRUE(proof.find("ok")->as_bool());
    EXPECT_EQ(numbers(*proof.find("layers")), (std::vector<std::uint64_t>{0, 1, 2}));
    EXPECT_TRUE(proof.find("findings")->elements().empty());
    for (const char* layer : {"0", "1", "2"})
      expect_success({"run", set(), "--layer", layer, "--tokens", "4", "--check"});
    const Json doctor = expect_document({"doctor", set(), "--deep"});
    EXPECT_TRUE(doctor.find("findings")->elements().empty());
    expect_success({"bench", "--problem", set(), "--tokens", "4", "--samples", "1"});
    EXPECT_EQ(test::text(expect_document({"inspect", set()}), "family"), "deepseek_v4");
    fs::remove_all(set());
  }
}

// verify answers 1 and names file and tensor; doctor --deep finds the checksum.
TEST_F(WholeSetCommand, ADamagedByteAroundTheExpertsIsTheAnswerNo) {
  pack({"--tp", "3"});
  const fs::path file = fs::path(set()) / "rank-001" / "model-top.safetensors";
  std::uint64_t at = 0;
  {
    const Checkpoint packed = open_checkpoint(file);
    at = packed.find("head.weight")->offset + 1;
  }
  std::string bytes = test::read_bytes(file);
  bytes[at] ^= 1;
  folder_.write(fs::relative(file, folder_.path()), bytes);
  const test::Outcome answer = test::moxie_says({"verify", set(), "--against", model(), "--json"});
  EXPECT_EQ(answer.exit_code, 1);
  const Json document = Json::parse(answer.out, "stdout");
  EXPECT_EQ(test::codes_of(document), (std::vector<std::string>{"MOXIE-V001", "MOXIE-V002"}));
  const Json& where = *document.find("findings")->elements()[1].find("where");
  EXPECT_EQ(where.find("tensor")->as_string(), "head.weight");
  EXPECT_EQ(where.find("file")->as_string(), file.string());
  EXPECT_EQ(test::moxie_says({"doctor", set(), "--deep"}).exit_code, 1);
}

// The later layers' drafts under NVFP4 main layers: the width that stops it is named.
TEST_F(WholeSetCommand, DraftsThatDoNotFitAnNvfp4PlanAreExit4WithTheWidth) {
  const std::string other = (folder_.path() / "nvfp4").string();
  expect_success({"synth", other, "--model", "tiny", "--whole", "--format", "nvfp4", "-q"});
  pack({"--tp", "3"});
  fs::remove_all(set());
  const std::string line =
      expect_refusal(4, "MOXIE-M009", {"pack", other, "--out", set(), "--tp", "6"});
  EXPECT_TRUE(has(line, "do not divide the width 112")) << line;
  expect_refusal(4, "MOXIE-M009", {"pack", other, "--out", set(), "--layout", "kernel"});
  EXPECT_TRUE(has(line, "--layers main")) << line;
  const Json main =
      expect_document({"pack", other, "--out", set(), "--tp", "6", "--layers", "main"});
  EXPECT_EQ(number(main, "files"), 6U * 2) << "the layer, and what belongs to none";
  expect_success({"verify", set(), "--against", other});
  fs::remove_all(set());
  expect_refusal(2, "MOXIE-U001",
                 {"pack", other, "--out", set(), "--layers", "main", "--layers", "0"});
  expect_success({"pack", other, "--out", set(), "--tp", "2"});
  expect_success({"verify", set(), "--against", other});
  expect_success({"doctor", set(), "--deep"});
  for (const std::string& from : {set(), other})
    expect_refusal(4, "MOXIE-M009", {"run", from, "--tp", "2", "--layer", "1"});
}

// Fewer experts than the main layers', and more: all of them run, and no other.
TEST_F(WholeSetCommand, DraftsRunWithExpertsOfTheirOwnNumber) {
  for (const std::uint64_t experts : {3U, 8U}) {
    const std::string other = (folder_.path() / ("v4.1-" + std::to_string(experts))).string();
    test::write_whole(other, {.config = test::narrow_v4_1(experts)});
    const Words run = {"--layer", "2", "--tokens", "9", "--check", "--tp", "3"};
    const std::string all = std::to_string(experts);
    const auto expect_run = [&](const std::string& from) {
      expect_success(Words{"run", from} + run + Words{"--top-k", all});
      expect_refusal(2, "MOXIE-R007",
                     Words{"run", from} + run + Words{"--top-k", std::to_string(experts + 1)});
      const Json ran = expect_document(Words{"run", from} + run);
      EXPECT_TRUE(ran.find("ok")->as_bool());
    };
    expect_run(other);
    for (const char* layout : {"logical", "kernel"}) {
      expect_success({"pack", other, "--out", set(), "--tp", "3", "--layout", layout});
      expect_run(set());
      const Json doctor = expect_document({"doctor", set(), "--deep"});
      EXPECT_TRUE(doctor.find("ok")->as_bool());
      fs::remove_all(set());
    }
  }
}

}  // namespace
}  // namespace moxie

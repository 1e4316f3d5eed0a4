// SPDX-License-Identifier: Apache-2.0
// --placement of plan, pack, run and bench.
#include <sys/stat.h>

#include <string>

#include "cli/run_command.hpp"
#include "moxie/catalog.hpp"

namespace moxie {
namespace {

using test::expect_document;
using test::expect_refusal;
using test::expect_success;
using test::has;
using test::number;
using test::numbers;
using test::only_run;
using test::text;
using test::Words;

class Placements : public test::RunCommand {
 protected:
  // The option for a file of this content.
  [[nodiscard]] Words file(const std::string& name, const std::string& content) const {
    return {"--placement", "file:" + folder_.write(name, content).string()};
  }
  [[nodiscard]] Words map() const {
    return file("map.json", R"({"experts": [[6, 1, 0, 7, 2, 4], [3, 4, 5, 1]]})");
  }
};

const Words kTwo = {"--ep", "2"};
const Words kInterleaved = {"--ep", "2", "--placement", "interleaved"};

TEST_F(Placements, P06_PlanSaysWhoHoldsWhatInSlotOrder) {
  const std::string model = synth("model");
  const Json plan = expect_document(Words{"plan", model} + kInterleaved);
  EXPECT_EQ(text(plan, "placement"), "interleaved");
  const auto ids = [](const Json& document, std::size_t rank) {
    return document.find("ranks")->elements().at(rank).find("expert_ids")->dump_compact();
  };
  EXPECT_EQ(ids(plan, 1), "[1,3,5,7]");
  const Json mapped = expect_document(Words{"plan", model} + kTwo + map());
  EXPECT_EQ(text(mapped, "placement"), "file");
  EXPECT_EQ(ids(mapped, 0), "[6,1,0,7,2,4]");
  EXPECT_EQ(ids(mapped, 1), "[3,4,5,1]");
  const Words contiguous = {"--placement", "contiguous"};
  EXPECT_EQ(expect_document(Words{"plan", model} + kTwo + contiguous).dump(),
            expect_document(Words{"plan", model} + kTwo).dump());
  const std::string shown = expect_success(Words{"plan", model} + kInterleaved).out;
  EXPECT_TRUE(has(shown, "ep 2, placement interleaved)")) << shown;
  EXPECT_TRUE(has(shown, "1..7 step 2")) << shown;
  const std::string listed = expect_success(Words{"plan", model} + kTwo + map()).out;
  EXPECT_TRUE(has(listed, "6, 1, 0, 7, 2, 4")) << listed;
  EXPECT_TRUE(has(listed, "3..5, 1")) << listed;
}

TEST_F(Placements, PackedSetsVerifyAndRunUnderTheirOwnMap) {
  const std::string model = synth("model");
  for (const Words& placement : {kInterleaved, kTwo + map()}) {
    for (const char* layout : {"logical", "kernel"}) {
      const std::string name = std::string(layout) + placement.back().substr(0, 4);
      const std::string packed =
          pack(model, name, placement + Words{"--tp", "3", "--layout", layout});
      expect_success({"verify", packed, "--against", model});
      const Words call = {"--tokens", "16", "--check"};
      EXPECT_TRUE(expect_document(Words{"run", packed} + call).find("ok")->as_bool());
      // The same option again is no contradiction; every other is.
      expect_success(Words{"run", packed} + call + placement);
      expect_refusal(2, "MOXIE-R013", {"run", packed, "--placement", "contiguous"});
      expect_refusal(2, "MOXIE-R013",
                     Words{"run", packed} + file("other.json", R"({"experts": [[0, 1], [2]]})"));
      EXPECT_EQ(output_of(packed, {"--tokens", "16"}),
                output_of(model, Words{"--tokens", "16", "--tp", "3"} + placement));
    }
  }
}

TEST_F(Placements, RunChecksEveryMapAndCountsEachSlotOnce) {
  const std::string model = synth("model");
  for (const char* act_format : {"bf16", "fp8"}) {
    const Json document = expect_document(Words{"run", model, "--tp", "1,2", "--check", "--tokens",
                                                "40", "--act-format", act_format} +
                                          kTwo + map());
    EXPECT_TRUE(document.find("ok")->as_bool());
    for (const Json& run : document.find("runs")->elements()) {
      const auto slots = numbers(*run.find("rank_slots"));
      const std::uint64_t tp = number(run, "tp");
      ASSERT_EQ(slots.size(), 2 * tp);
      EXPECT_EQ(slots.front() + slots.back(), 40 * 2U) << "two choices a token";
      EXPECT_EQ(number(run, "active_experts"), 10U) << "copies of two are read as well";
    }
  }
  const Json contiguous = expect_document(Words{"run", model, "--tokens", "40"} + kTwo);
  EXPECT_EQ(number(only_run(contiguous), "active_experts"), 8U);
}

TEST_F(Placements, BenchRecordsThePlacementAndHowToRepeatIt) {
  const Words options = {"--problem", "tiny", "--experts", "8", "--hidden", "64", "--inter", "96",
                         "--tokens",  "2",    "--samples", "1", "--json",   "-q"};
  const auto lines =
      test::parse_records(expect_success(Words{"bench"} + options + kTwo + map()).out);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(text(*lines[0].find("problem"), "placement"), map()[1]);
  EXPECT_TRUE(has(text(lines[0], "repro"), "--placement " + map()[1]));
  const auto plain = test::parse_records(expect_success(Words{"bench"} + options + kTwo).out);
  EXPECT_EQ(plain.at(0).find("problem")->find("placement"), nullptr);
  expect_refusal(
      4, "MOXIE-P024",
      Words{"bench", "--problem", "tiny", "--experts", "8", "--weights", "random", "--rank", "1"} +
          kTwo + map());
}

TEST_F(Placements, FilesThatAreNoMapOfThisPlanAreRefused) {
  const std::string model = synth("model");
  const auto refuse = [&](int exit, const char* code, const Words& options) {
    expect_refusal(exit, code, Words{"plan", model} + options);
    expect_refusal(exit, code, Words{"pack", model, "--out", at("out")} + options);
    expect_refusal(exit, code, Words{"run", model} + options);
  };
  refuse(2, "MOXIE-P020", Words{"--ep", "3"} + map());
  refuse(3, "MOXIE-P021", kTwo + file("a", R"({"experts": [[0,1,2,3],[4,5,6,8]]})"));
  refuse(3, "MOXIE-P022", kTwo + file("b", R"({"experts": [[0,1,2,3],[4,5,6]]})"));
  refuse(3, "MOXIE-P023", kTwo + file("c", R"([[0,1,2,3],[4,5,6,7]])"));
  refuse(3, "MOXIE-P023", kTwo + Words{"--placement", "file:" + at("absent.json")});
  refuse(3, "MOXIE-P023", kTwo + Words{"--placement", "file:" + model});
  refuse(3, "MOXIE-P023", kTwo + Words{"--placement", "file:/dev/zero"});
  const std::string pipe = at("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  refuse(3, "MOXIE-P023", kTwo + Words{"--placement", "file:" + pipe});
  refuse(3, "MOXIE-C003", kTwo + file("d", R"({"experts": [[0,1)"));
  refuse(2, "MOXIE-U001", {"--placement", "diagonal"});
  refuse(2, "MOXIE-U001", {"--placement", "file:"});
  expect_refusal(4, "MOXIE-P002", Words{"plan", model, "--target", "sm100"} + kTwo + map(), {},
                 kernel_catalog().size());
}

}  // namespace
}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// nvfp4 activations by command: every policy checked, reported and refused as the contract says.
#include <cmath>
#include <string>
#include <utility>

#include "cli/run_command.hpp"

namespace moxie {
namespace {

using test::expect_refusal;
using test::expect_success;
using test::has;
using test::keys_of;
using test::Words;

class ActScales : public test::RunCommand {
 protected:
  [[nodiscard]] std::string modelopt(const std::string& name = "nvfp4") const {
    return synth(name, {"--format", "nvfp4", "--dialect", "modelopt"});
  }
  static Words nvfp4(const std::string& policy, const Words& more = {}) {
    return Words{"--act-format", "nvfp4", "--act-scale", policy, "--tokens", "9"} + more;
  }
};

Json only_document(const Words& words) {
  return Json::parse(expect_success(words + Words{"--json"}).out, "stdout");
}

TEST_F(ActScales, EveryPolicyPassesItsCheckOnAnyRanksC05) {
  const std::string stored = modelopt();
  const std::string mxfp4 = synth("mxfp4");
  for (const std::string policy : {"checkpoint", "warmup", "dynamic", "row"}) {
    for (const std::string& model : {stored, mxfp4}) {
      if (model == mxfp4 && policy == "checkpoint") continue;
      const Json document =
          only_document(Words{"run", model, "--tp", "1,3", "--check"} + nvfp4(policy));
      EXPECT_EQ(document.find("problem")->find("act_scale")->as_string(), policy);
      ASSERT_EQ(document.find("runs")->elements().size(), 2U);
      for (const Json& run : document.find("runs")->elements()) {
        EXPECT_TRUE(run.find("check")->find("passed")->as_bool()) << policy;
        const Json& scales = *run.find("act_scales");
        EXPECT_EQ(keys_of(scales), policy == "warmup"
                                       ? (std::vector<std::string>{"policy", "margin", "stages"})
                                       : (std::vector<std::string>{"policy", "stages"}));
        ASSERT_EQ(scales.find("stages")->elements().size(), 2U);
        for (const Json& stage : scales.find("stages")->elements()) {
          EXPECT_EQ(keys_of(stage),
                    (std::vector<std::string>{"name", "least", "most", "blocks", "saturated",
                                              "underflowed", "not_numbers", "guarded"}));
          EXPECT_GT(stage.find("least")->as_double(), 0);
          EXPECT_GE(stage.find("most")->as_double(), stage.find("least")->as_double());
          EXPECT_GT(stage.find("blocks")->as_unsigned(), 0U);
          EXPECT_EQ(stage.find("guarded")->as_unsigned(), 0U);
        }
        const double lost = run.find("check")->find("unquantised_l2")->as_double();
        EXPECT_TRUE(lost > 0.05 && lost < 0.4) << lost;
      }
    }
  }
  const std::string text = expect_success(Words{"run", mxfp4} + nvfp4("warmup")).out;
  for (const char* part : {"nvfp4, scales warmup, margin 8", "before down", "saturated"})
    EXPECT_TRUE(has(text, part)) << part;
}

TEST_F(ActScales, APackedSetKeepsItsPolicy) {
  const std::string model = modelopt();
  for (const auto& [policy, layout] :
       {std::pair<std::string, std::string>{"checkpoint", "logical"}, {"warmup", "kernel"}}) {
    const std::string set = pack(
        model, policy,
        Words{"--tp", "3", "--layout", layout, "--act-format", "nvfp4", "--act-scale", policy});
    expect_success({"verify", set, "--against", model, "-q"});
    const Json document = only_document({"run", set, "--check", "--tokens", "9"});
    EXPECT_EQ(document.find("problem")->find("act_scale")->as_string(), policy);
    expect_success(Words{"run", set, "--kernel-align", "32"} + nvfp4(policy));
    expect_refusal(2, "MOXIE-R013", {"run", set, "--act-scale", "dynamic"});
    expect_refusal(2, "MOXIE-R013", {"run", set, "--act-margin", "4"});
  }
  expect_refusal(2, "MOXIE-R013", {"run", pack(model, "plain", {}), "--act-scale", "row"});
}

TEST_F(ActScales, OptionsThatMeanNothingAreExit2AndPoliciesWithoutASourceExit4) {
  const std::string mxfp4 = synth("mxfp4");
  const std::string out = at("out");
  for (const Words& verb : {Words{"plan", mxfp4},
                            {"run", mxfp4},
                            {"pack", mxfp4, "--out", out},
                            {"bench", "--problem", mxfp4}}) {
    const auto refused = [&](int exit, const char* code, const Words& options) {
      expect_refusal(exit, code, verb + options);
    };
    refused(2, "MOXIE-P011", {"--act-scale", "row"});
    refused(2, "MOXIE-P011", {"--act-format", "fp8", "--act-scale", "row"});
    refused(2, "MOXIE-P011", {"--act-margin", "8"});
    refused(2, "MOXIE-P011", {"--act-format", "nvfp4", "--act-scale", "row", "--act-margin", "8"});
    refused(2, "MOXIE-P001",
            {"--act-format", "nvfp4", "--act-scale", "warmup", "--act-margin", "0"});
    for (const char* margin : {"x", "", "nan", "inf", "8x", "0x8"})
      refused(2, "MOXIE-U001",
              {"--act-format", "nvfp4", "--act-scale", "warmup",
               std::string("--act-margin=") + margin});
    refused(2, "MOXIE-U001", {"--act-format", "nvfp4", "--act-scale", "best"});
    refused(4, "MOXIE-P012", {"--act-format", "nvfp4"});
    refused(4, "MOXIE-P012", {"--act-format", "nvfp4", "--act-scale", "checkpoint"});
    refused(4, "MOXIE-P016",
            {"--act-format", "nvfp4", "--act-scale", "dynamic", "--batch-invariant"});
  }
}

// by command, before anything is computed.
TEST_F(ActScales, R10_AnAbsentOrUnusableInputScaleIsNamed) {
  for (const bool absent : {true, false}) {
    test::TinyOptions options{.dialect = test::TinyDialect::modelopt, .experts = 4, .layers = 1};
    const std::string ending = "experts.2.down_proj.input_scale";
    options.edits.push_back([&](test::TinyTensor& tensor) {
      if (!tensor.name.ends_with(ending)) return true;
      const float tiny = 1e-40F;
      std::memcpy(tensor.bytes.data(), &tiny, sizeof tiny);
      return !absent;
    });
    const std::string model =
        test::write_tiny(folder_.path() / (absent ? "absent" : "tiny"), options).string();
    const std::string line = expect_refusal(3, absent ? "MOXIE-M006" : "MOXIE-M007",
                                            {"run", model, "--act-format", "nvfp4"});
    for (const char* part : {"layer 0", "down", "expert 2"})
      EXPECT_TRUE(has(line, part)) << part << ": " << line;
    expect_success({"run", model, "--tokens", "4", "--check", "-q"});
    expect_success(Words{"run", model, "--check", "-q"} + nvfp4("row"));
  }
}

TEST_F(ActScales, AClippedCallAndAWarmUpWithoutASlotAreWarnedOf) {
  const std::string model = modelopt();
  // Far above what calibration saw.
  const std::string large = input({activations(3, 1e6F)});
  const Json clipped =
      only_document({"run", model, "--input", large, "--act-format", "nvfp4", "--check"});
  EXPECT_TRUE(clipped.find("ok")->as_bool()) << "clipped is what the format says";
  EXPECT_TRUE(has(clipped.find("findings")->dump(), "MOXIE-R019"));
  const Json idle =
      only_document(Words{"run", model, "--ep", "8", "--routing", "one:0"} + nvfp4("warmup"));
  EXPECT_TRUE(has(idle.find("findings")->dump(), "MOXIE-R018"));
}

TEST_F(ActScales, BenchChecksAndTimesAPolicy) {
  const test::Outcome outcome = expect_success(
      Words{"bench", "--problem", modelopt(), "--samples", "2", "--json", "--act-format", "nvfp4",
            "--act-scale", "warmup", "--act-margin", "4", "--tokens", "5"});
  for (const std::string& line : test::lines_of(outcome.out)) {
    const Json record = Json::parse(line, "stdout");
    EXPECT_EQ(record.find("problem")->find("act_scale")->as_string(), "warmup");
    EXPECT_TRUE(has(record.find("repro")->as_string(), "--act-scale warmup --act-margin 4"));
  }
}

TEST_F(ActScales, ASweepShowsWhatAMarginSaves) {
  const std::string model = synth("mxfp4");
  const Words sweep = {"bench", "--problem", model, "--tokens", "16", "--sweep", "act-margin"};
  const test::Outcome outcome = expect_success(sweep + Words{"1,2..8", "--json"});
  std::vector<Json> records;
  for (const std::string& line : test::lines_of(outcome.out))
    records.push_back(Json::parse(line, "stdout"));
  ASSERT_EQ(records.size(), 4 * 4U);
  const auto saturated = [](const Json& record) {
    std::uint64_t count = 0;
    for (const Json& stage : record.find("act_scales")->find("stages")->elements())
      count += stage.find("saturated")->as_unsigned();
    return count;
  };
  std::uint64_t last = 0;
  for (const Json& record : records) {
    EXPECT_EQ(record.find("sweep")->as_string(), "act-margin");
    const std::uint64_t margin = record.find("margin")->as_unsigned();
    const std::uint64_t growth = record.find("growth")->as_unsigned();
    const double error = record.find("relative_l2")->as_double();
    // x of other samples is less than twice that of the first; a larger margin never clips more of
    // it. What is clipped of x is missing before down, so that there it may.
    const Json& x = record.find("act_scales")->find("stages")->elements()[0];
    const std::uint64_t clipped = x.find("saturated")->as_unsigned();
    if (margin >= 2 * growth) {
      EXPECT_EQ(clipped, 0U) << margin << " " << growth;
    }
    if (margin > 1) {
      EXPECT_LE(clipped, last) << margin << " " << growth;
    }
    last = clipped;
    if (growth >= 4 * margin) {
      EXPECT_GT(saturated(record), 0U) << margin << " " << growth;
      EXPECT_GT(error, 0.25);
    }
    EXPECT_TRUE(error > 0.05 && error < 1);
  }
  EXPECT_TRUE(has(expect_success(sweep + Words{"8"}).out, "| margin |"));
  for (const Words& wrong : {Words{"0"}, {"x"}, {"4..1"}, {"1,,2"}})
    expect_refusal(2, "MOXIE-U001", sweep + wrong);
  expect_refusal(2, "MOXIE-U001", {"bench", "--problem", model, "--sweep", "tokens", "1..4"});
  expect_refusal(2, "MOXIE-U003", sweep + Words{"8", "--act-format", "fp8"});
  expect_refusal(2, "MOXIE-U003", sweep + Words{"8", "--act-scale", "row"});
  expect_refusal(2, "MOXIE-U003", sweep + Words{"8", "--act-margin", "8"});
}

}  // namespace
}  // namespace moxie

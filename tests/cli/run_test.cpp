// SPDX-License-Identifier: Apache-2.0
// moxie run: what it computes, counts, writes and says.
#include <cmath>
#include <numeric>
#include <random>

#include "cli/run_command.hpp"
#include "support/forced_kernels.hpp"

namespace moxie {
namespace {

using test::expect_document;
using test::expect_success;
using test::has;
using test::keys_of;
using test::only_run;
using test::Words;

class Run : public test::RunCommand {};

const Words kFormats = {"mxfp4", "nvfp4"};

std::uint64_t number(const Json& object, std::string_view key) {
  const Json* value = object.find(key);
  return value == nullptr ? ~0ULL : value->as_unsigned(~0ULL);
}

void expect_passed(const Json& check) {
  EXPECT_EQ(keys_of(check),
            (std::vector<std::string>{"passed", "max_err_over_bound", "worst", "relative_l2",
                                      "worst_row", "norm_ratio", "unquantised_l2", "stages",
                                      "clamped", "reference_s"}));
  EXPECT_TRUE(check.find("passed")->as_bool());
  EXPECT_TRUE(check.find("max_err_over_bound")->as_double(9) <= 1);
  EXPECT_TRUE(check.find("relative_l2")->as_double(9) < 1e-3);
  EXPECT_NEAR(check.find("norm_ratio")->as_double(), 1, 1e-3);
  EXPECT_EQ(keys_of(*check.find("worst")),
            (std::vector<std::string>{"token", "column", "expected", "got", "bound"}));
}

TEST_F(Run, PassesItsCheckInBothFormatsForAListOfPlans) {
  const std::string seed = std::to_string(std::random_device{}() % 1000);
  SCOPED_TRACE("seed " + seed);
  for (const std::string& format : kFormats) {
    const std::string model = synth(format, {"--format", format, "--seed", seed});
    for (const char* act_format : {"bf16", "fp8", "fp8x2", "mxfp8", "int8", "int8x2"}) {
      SCOPED_TRACE(format + " " + act_format);
      const Json document =
          expect_document({"run", model, "--tp", "1,3", "--ep", "2", "--act-format", act_format,
                           "--check", "--tokens", "9", "--seed", seed});
      EXPECT_TRUE(document.find("ok")->as_bool());
      expect_passed(*document.find("check"));
      const auto& runs = document.find("runs")->elements();
      ASSERT_EQ(runs.size(), 2U);
      for (std::size_t i = 0; i < 2; ++i) {
        const Json plan = expect_document(
            {"plan", model, "--tp", i == 0 ? "1" : "3", "--ep", "2", "--act-format", act_format});
        EXPECT_EQ(number(runs[i], "tp"), i == 0 ? 1U : 3U);
        EXPECT_EQ(number(runs[i], "ep"), 2U);
        expect_passed(*runs[i].find("check"));
        std::vector<std::uint64_t> bytes;
        for (const Json& rank : plan.find("ranks")->elements())
          bytes.push_back(number(rank, "bytes_layer"));
        EXPECT_EQ(test::numbers(*runs[i].find("bytes_per_rank")), bytes);
        // C-03: every slot is one rank group's; its tp ranks all compute it.
        const auto slots = test::numbers(*runs[i].find("rank_slots"));
        EXPECT_EQ(std::accumulate(slots.begin(), slots.end(), std::uint64_t{0}),
                  number(runs[i], "tp") * 9 * number(*document.find("problem"), "top_k"));
      }
    }
  }
}

TEST_F(Run, HasTheDocumentOfTheContract) {
  const test::PortableKernel forced;
  const std::string model = synth("model");
  const Json document = expect_document({"run", model, "--repeat", "3", "--routing", "zipf:1.5"});
  EXPECT_EQ(keys_of(document), (std::vector<std::string>{"schema", "ok", "path", "model", "problem",
                                                         "runs", "check", "findings"}));
  EXPECT_TRUE(document.find("check")->is_null());
  const Json& problem = *document.find("problem");
  EXPECT_EQ(keys_of(problem),
            (std::vector<std::string>{"tokens", "hidden", "inter", "experts", "top_k", "format",
                                      "act_format", "target", "routing", "seed", "layer"}));
  EXPECT_EQ(number(problem, "tokens"), 64U);
  EXPECT_EQ(number(problem, "inter"), 96U);
  EXPECT_EQ(problem.find("routing")->as_string(), "zipf:1.5");
  const Json& run = only_run(document);
  EXPECT_EQ(keys_of(run),
            (std::vector<std::string>{"tp", "ep", "kernels", "layout", "bytes_per_rank",
                                      "active_experts", "rank_slots", "timing", "tokens_per_s",
                                      "stages", "work", "rate", "ceiling", "check"}));
  EXPECT_EQ(keys_of(*run.find("timing")),
            (std::vector<std::string>{"mode", "samples", "median_us", "iqr_us", "p10", "p90"}));
  EXPECT_EQ(number(*run.find("timing"), "samples"), 3U);
  EXPECT_GT(run.find("tokens_per_s")->as_double(), 0);
  EXPECT_TRUE(run.find("kernels")->find("route")->is_null());
  EXPECT_EQ(run.find("kernels")->find("experts")->as_string(), "cpu.portable.experts");
  std::vector<std::string> stages;
  for (const Json& stage : run.find("stages")->elements())
    stages.push_back(stage.find("name")->as_string());
  EXPECT_EQ(stages, (std::vector<std::string>{"slots", "quantise", "gate_up", "down", "combine",
                                              "reduce"}));
  EXPECT_EQ(keys_of(*run.find("ceiling")),
            (std::vector<std::string>{"gbps_measured", "tflops_measured", "percent"}));
  EXPECT_GT(run.find("ceiling")->find("gbps_measured")->as_double(), 0);
}

TEST_F(Run, AsTextHasTwoTablesAndAVerdict) {
  const std::string model = synth("model");
  const test::Outcome outcome = expect_success({"run", model, "--tp", "1..4", "--check"});
  for (const char* word : {"kernel width", "bytes/rank", "tokens/s", "err/bound", "relative L2",
                           "against unquantised", "gate_up", "tp 4", "ceilings", "verdict: passed"})
    EXPECT_TRUE(has(outcome.out, word)) << word << "\n" << outcome.out;
  EXPECT_FALSE(has(outcome.out, "repeat"));
  EXPECT_FALSE(has(expect_success({"run", model}).out, "verdict"));
}

TEST_F(Run, TracesEveryRepeat) {
  const Json document =
      expect_document({"run", synth("model"), "--repeat", "3", "--trace", "--tp", "2"});
  const Json* trace = only_run(document).find("trace");
  ASSERT_NE(trace, nullptr);
  ASSERT_EQ(trace->elements().size(), 3U);
  for (const Json& repeat : trace->elements()) {
    EXPECT_EQ(keys_of(repeat), (std::vector<std::string>{"total_us", "slots", "quantise", "gate_up",
                                                         "down", "combine", "reduce"}));
    EXPECT_GT(repeat.find("gate_up")->as_double() + repeat.find("quantise")->as_double(), 0);
  }
  EXPECT_TRUE(has(expect_success({"run", at("model"), "--trace"}).out, "repeat"));
}

TEST_F(Run, C02_CountsTheBytesOfActiveExpertsOnly) {
  const std::string model =
      synth("model", {"--format", "nvfp4"}, {"--inter", "32", "--experts", "128"});
  const std::string file = input({activations(2), ids({2, 2}, {0, 1, 1, 2}), weights({2, 2})});
  const Json document = expect_document({"run", model, "--input", file, "--tp", "1,2"});
  ASSERT_NE(document.find("runs"), nullptr);
  EXPECT_EQ(document.find("runs")->elements().size(), 2U);
  for (const Json& run : document.find("runs")->elements()) {
    EXPECT_EQ(number(run, "active_experts"), 3U);
    const Json& work = *run.find("work");
    EXPECT_EQ(number(work, "bytes_weights"), 10368U);
    EXPECT_EQ(number(work, "flops"), 2U * 4 * 3 * 64 * 32);
    EXPECT_EQ(number(work, "bytes_acts"), 2U * 2 * 64 * 4);
  }
  EXPECT_EQ(document.find("problem")->find("routing")->as_string(), "input");
}

TEST_F(Run, LeavesMaskedSlotsOut) {
  const std::string model = synth("model");
  const std::string file = input({activations(2), ids({2, 2}, {-1, 5, -1, -1}), weights({2, 2})});
  const Json document = expect_document(
      {"run", model, "--input", file, "--check", "--output", at("out.safetensors")});
  const Json& run = only_run(document);
  EXPECT_EQ(number(run, "active_experts"), 1U);
  EXPECT_EQ(test::numbers(*run.find("rank_slots")), (std::vector<std::uint64_t>{1}));
  const std::vector<float> y = floats(open_checkpoint(at("out.safetensors")), "output");
  ASSERT_EQ(y.size(), 128U);
  EXPECT_TRUE(std::any_of(y.begin(), y.begin() + 64, [](float v) { return v != 0; }));
  EXPECT_TRUE(std::all_of(y.begin() + 64, y.end(), [](float v) { return v == 0; }));
}

TEST_F(Run, WritesOutputReferenceBoundAndTheInputsAsUsed) {
  const std::string model = synth("model");
  expect_success({"run", model, "--check", "--tp", "1,3", "--tokens", "5", "--seed", "11", "-q",
                  "--output", at("out.safetensors")});
  const Checkpoint file = open_checkpoint(at("out.safetensors"));
  std::vector<std::string> names;
  for (const TensorInfo& tensor : file.tensors()) names.push_back(tensor.name);
  EXPECT_EQ(names, (std::vector<std::string>{"hidden_states", "topk_ids", "topk_weights",
                                             "token_ids", "output", "reference", "bound"}));
  const auto y = floats(file, "output");
  const auto reference = floats(file, "reference");
  const auto bound = floats(file, "bound");
  ASSERT_EQ(y.size(), 5U * 64);
  ASSERT_EQ(reference.size(), y.size());
  ASSERT_EQ(bound.size(), y.size());
  double norm = 0;
  for (std::size_t i = 0; i < y.size(); ++i) {
    const double error = std::abs(static_cast<double>(y[i]) - static_cast<double>(reference[i]));
    EXPECT_TRUE(error <= static_cast<double>(bound[i])) << i;
    norm += std::abs(reference[i]);
  }
  EXPECT_GT(norm, 0.01);

  // The output is an input: it runs again to the same bytes.
  output_of(model, {"--input", "file:" + at("out.safetensors"), "--tp", "3"});
  const Checkpoint second = open_checkpoint(at("out.safetensors"));
  EXPECT_EQ(floats(second, "output"), y);
  EXPECT_EQ(second.tensors().size(), 5U);
}

TEST_F(Run, GivesTheSameBytesForASeedWhateverTheThreads) {
  const std::string model = synth("model");
  const Words options = {"--tokens", "33", "--routing", "zipf:1"};
  const std::string one = output_of(model, options + Words{"--threads", "1"});
  EXPECT_EQ(output_of(model, options + Words{"--threads", "2"}), one);
  EXPECT_EQ(output_of(model, options + Words{"--repeat", "4"}), one);
  EXPECT_NE(output_of(model, options + Words{"--seed", "1"}), one);
}

TEST_F(Run, OfAPackedSetIsTheModelsBitForBit) {
  for (const std::string& format : kFormats) {
    const std::string model = synth(format, {"--format", format});
    const Words probe = {"--tokens", "17", "--seed", "3", "--check"};
    const std::string expected =
        output_of(model, probe + Words{"--tp", "3", "--ep", "2", "--act-format", "fp8"});
    for (const std::string layout : {"logical", "kernel"}) {
      SCOPED_TRACE(format + " " + layout);
      const std::string set =
          pack(model, format + layout,
               {"--tp", "3", "--ep", "2", "--act-format", "fp8", "--layout", layout});
      EXPECT_TRUE(output_of(set, probe) == expected);
      EXPECT_TRUE(output_of(set, probe + Words{"--tp", "3", "--act-format", "fp8", "--format",
                                               format, "--kernel-align", "32"}) == expected);
    }
  }
}

TEST_F(Run, WarnsOfAPackedSetThatIsNotProven) {
  const std::string model = synth("model");
  const std::string set = pack(model, "set", {"--tp", "2"});
  const auto codes = test::codes_of(expect_document({"run", set}));
  EXPECT_EQ(std::ranges::count(codes, "MOXIE-K009"), 1);
  expect_success({"verify", set, "--against", model});
  const auto proven = test::codes_of(expect_document({"run", set}));
  EXPECT_EQ(std::ranges::count(proven, "MOXIE-K009"), 0);
}

TEST_F(Run, RoutesByTheModelOnHashLayersAndOthers) {
  const std::string model = synth("model", {"--num-layers", "2"});
  for (const std::string layer : {"0", "1"}) {
    const Json document =
        expect_document({"run", model, "--layer", layer, "--routing", "model", "--check"});
    EXPECT_EQ(document.find("problem")->find("routing")->as_string(), "model");
    EXPECT_EQ(only_run(document).find("kernels")->find("route")->as_string(), "cpu.portable.route");
    EXPECT_GT(number(only_run(document), "active_experts"), 1U);
    EXPECT_TRUE(document.find("ok")->as_bool());
  }
}

TEST_F(Run, NeedsNoRouterForAnotherRouting) {
  test::TinyOptions options;  // experts alone
  options.config = test::tiny_config(options).set("swiglu_limit", 10.0);
  test::write_tiny(folder_.path() / "plain", options);
  const Json document = expect_document({"run", at("plain"), "--check", "--layer", "1"});
  EXPECT_EQ(number(*document.find("problem"), "layer"), 1U);
  test::expect_refusal(3, "MOXIE-M016", {"run", at("plain"), "--routing", "model"});
}

TEST_F(Run, MasksATokenWithoutAnIdAndRefusesAnIdOutsideTheVocabulary) {
  const std::string model = synth("model");
  const auto with_first = [&](std::int64_t first) {
    const std::string file =
        input({activations(2), tensor<std::int64_t>("token_ids", DType::i64, {2}, {first, 5})});
    return Words{"run", model, "--routing", "model", "--input", file};
  };
  const auto slots = [&](std::int64_t first) {
    const Json document = expect_document(with_first(first));
    EXPECT_EQ(std::ranges::count(test::codes_of(document), "MOXIE-R011"), 0);
    return test::numbers(*only_run(document).find("rank_slots"));
  };
  EXPECT_EQ(slots(5), (std::vector<std::uint64_t>{4}));
  EXPECT_EQ(slots(-1), (std::vector<std::uint64_t>{2}));
  const std::string line = test::expect_refusal(3, "MOXIE-R005", with_first(1'000'000));
  EXPECT_TRUE(has(line, "token_ids")) << line;
}

TEST_F(Run, WarnsOfResultsThatAreNoNumbersEvenUnchecked) {
  const std::string model = synth("model");
  const std::string file =
      input({activations(2, 40), ids({2, 2}, {0, 1, 2, 3}), weights({2, 2}, 3e38F)});
  const Json document = expect_document({"run", model, "--input", file});
  EXPECT_EQ(std::ranges::count(test::codes_of(document), "MOXIE-R016"), 1);
}

TEST_F(Run, NotesAClampThatNoValueReached) {
  const std::string model = synth("model");
  const auto notes = [&](float value) {
    const std::string file =
        input({activations(2, value), ids({2, 2}, {0, 1, 2, 3}), weights({2, 2})});
    const Json document = expect_document({"run", model, "--input", file, "--check"});
    return std::ranges::count(test::codes_of(document), "MOXIE-R015");
  };
  EXPECT_EQ(notes(1e-3F), 1);
  EXPECT_EQ(notes(1e4F), 0);
}

TEST_F(Run, JudgesTheStagesApart) {
  const std::string model = synth("model");
  const Json document = expect_document({"run", model, "--tp", "1,3", "--check"});
  for (const Json& run : document.find("runs")->elements()) {
    const auto& stages = run.find("check")->find("stages")->elements();
    ASSERT_EQ(stages.size(), 2U);
    EXPECT_EQ(stages[0].find("name")->as_string(), "gate_up");
    EXPECT_EQ(number(stages[0], "values"), 64U * 2 * 96);
    EXPECT_EQ(number(stages[0], "outside"), 0U);
    EXPECT_EQ(stages[1].find("name")->as_string(), "down");
    EXPECT_LT(stages[1].find("relative_l2")->as_double(1), 1e-6);
  }
}

TEST_F(Run, TakesARoutingFromAFile) {
  const std::string model = synth("model");
  const std::string file =
      input({activations(3), ids({3, 2}, {7, 0, 7, 1, 7, 2}), weights({3, 2})});
  const Json document =
      expect_document({"run", model, "--routing", "file:" + file, "--tokens", "3", "--check"});
  EXPECT_EQ(number(only_run(document), "active_experts"), 4U);
  test::expect_refusal(2, "MOXIE-R006", {"run", model, "--routing", "file:" + file});
}

TEST_F(Run, TakesNoTokens) {
  const std::string model = synth("model");
  const Json document = expect_document(
      {"run", model, "--tokens", "0", "--check", "--tp", "2", "--output", at("out.safetensors")});
  EXPECT_TRUE(document.find("ok")->as_bool());
  EXPECT_EQ(only_run(document).find("tokens_per_s")->as_double(9), 0);
  expect_success({"run", model, "--input", at("out.safetensors"), "--check"});
}

TEST_F(Run, AnswersOneWhenAnElementIsOutsideItsBound) {
  const std::string model = synth("model");
  // Each weight is a number; their products with the experts' outputs are none in f32.
  const std::string file =
      input({activations(2, 40), ids({2, 2}, {0, 1, 2, 3}), weights({2, 2}, 3e38F)});
  const Words words = {"run", model, "--input", file, "--check", "--tp", "1,3"};
  const test::Outcome text = test::moxie_says(words);
  EXPECT_EQ(text.exit_code, 1);
  EXPECT_TRUE(has(text.out, "verdict: FAILED")) << text.out;
  const auto errors = test::error_lines(text);
  ASSERT_EQ(errors.size(), 2U) << text.err;  // one a plan, not one a comparison
  for (const std::string& line : errors) EXPECT_TRUE(has(line, "MOXIE-R010")) << line;
  const test::Outcome asked = test::moxie_says(words + Words{"--json"});
  EXPECT_EQ(asked.exit_code, 1);
  const Json document = test::document_of(asked, "run");
  EXPECT_FALSE(document.find("ok")->as_bool(true));
  EXPECT_FALSE(document.find("check")->find("passed")->as_bool(true));
  EXPECT_TRUE(document.find("check")->find("max_err_over_bound")->is_null());  // infinite
}

}  // namespace
}  // namespace moxie

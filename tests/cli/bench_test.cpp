// SPDX-License-Identifier: Apache-2.0
// moxie bench: its records, its problems, its baseline, what it refuses and what it leaves behind.
#include <filesystem>
#include <fstream>

#include "cli/run_command.hpp"
#include "moxie/catalog.hpp"
#include "support/forced_kernels.hpp"

namespace moxie {
namespace {

using test::expect_members;
using test::expect_refusal;
using test::expect_success;
using test::has;
using test::keys_of;
using test::Kind;
using test::Launch;
using test::number;
using test::Outcome;
using test::parse_records;
using test::text;
using test::Words;

using Names = std::vector<std::string>;

constexpr const char* kSmall = R"({"model": "tiny", "hidden": 64, "inter": 96})";

std::string lines_from(const std::vector<Json>& records) {
  std::string lines;
  for (const Json& record : records) lines += record.dump_compact() + "\n";
  return lines;
}

// The records of an earlier run as if each had taken `factor` times as long.
std::string lines_scaled(std::vector<Json> records, double factor) {
  for (Json& record : records) {
    Json timing = *record.find("timing");
    timing.set("median_us", timing.find("median_us")->as_double() * factor);
    record.set("timing", std::move(timing));
  }
  return lines_from(records);
}

class Bench : public test::RunCommand {
 protected:
  Bench() { std::filesystem::create_directory(temp()); }

  // Where the command makes its temporary folders.
  [[nodiscard]] std::filesystem::path temp() const { return folder_.path() / "temp folder"; }
  [[nodiscard]] Launch launch() const { return {.command = {}, .variables = {{"TMPDIR", temp()}}}; }
  [[nodiscard]] std::string file(const std::string& name, const std::string& content) const {
    return folder_.write(name, content).string();
  }
  [[nodiscard]] Outcome says(const Words& options) const {
    return test::moxie_says(Words{"bench", "--samples", "1"} + options, launch());
  }
  // Succeeds and says nothing on stderr.
  [[nodiscard]] std::vector<Json> records(const Words& options) const {
    const Outcome outcome =
        expect_success(Words{"bench", "--samples", "1", "--json", "-q"} + options, launch());
    EXPECT_EQ(outcome.err, "");
    return parse_records(outcome.out);
  }
};

TEST_F(Bench, C06_PrintsAColdAndAWarmRecordWithEveryKeyOfTheContract) {
  const test::PortableKernel forced;
  const std::vector<Json> lines = records({"--problem", "tiny", "--tokens", "2"});
  ASSERT_EQ(lines.size(), 2U);
  for (std::size_t i = 0; i < 2; ++i) {
    const Json& record = lines[i];
    EXPECT_EQ(
        keys_of(record),
        (Names{"schema",  "ok",         "command",        "repro",   "time_utc", "build",
               "host",    "device",     "problem",        "kernels", "layout",   "kernel_width",
               "threads", "rank_slots", "active_experts", "sets",    "check",    "timing",
               "stages",  "work",       "rate",           "ceiling", "findings"}));
    expect_members(record, {{"command", Kind::text},
                            {"repro", Kind::text},
                            {"layout", Kind::text},
                            {"kernel_width", Kind::number},
                            {"threads", Kind::number},
                            {"rank_slots", Kind::list},
                            {"active_experts", Kind::number},
                            {"findings", Kind::list}});
    EXPECT_EQ(text(record, "schema"), "moxie.bench/1");
    EXPECT_TRUE(record.find("ok")->as_bool());
    EXPECT_EQ(text(record, "time_utc").size(), std::string("2000-01-01T00:00:00Z").size());
    EXPECT_TRUE(record.find("device")->is_null());
    EXPECT_EQ(text(record, "command"),
              "moxie bench --samples 1 --json -q --problem tiny --tokens 2");

    const Json& build = *record.find("build");
    EXPECT_EQ(keys_of(build),
              (Names{"version", "commit", "dirty", "compiler", "flags", "cuda", "archs"}));
    expect_members(build, {{"version", Kind::text},
                           {"commit", Kind::text_or_null},
                           {"compiler", Kind::text},
                           {"flags", Kind::text},
                           {"archs", Kind::list}});
    EXPECT_EQ(keys_of(*record.find("host")), (Names{"cpu", "isa", "cores", "kernel"}));
    expect_members(*record.find("host"), {{"cpu", Kind::text},
                                          {"isa", Kind::list},
                                          {"cores", Kind::number},
                                          {"kernel", Kind::text}});

    const Json& problem = *record.find("problem");
    EXPECT_EQ(keys_of(problem),
              (Names{"model", "tokens", "hidden", "inter", "experts", "top_k", "tp", "ep", "format",
                     "act_format", "target", "routing", "seed"}));
    EXPECT_EQ(text(problem, "model"), "tiny");
    EXPECT_EQ(number(problem, "tokens"), 2U);
    EXPECT_EQ(number(problem, "hidden"), 256U);
    EXPECT_EQ(number(problem, "inter"), 640U);
    EXPECT_EQ(number(problem, "experts"), 8U);
    EXPECT_EQ(number(problem, "top_k"), 2U);
    EXPECT_EQ(text(problem, "routing"), "uniform");
    EXPECT_TRUE(record.find("kernels")->find("route")->is_null());
    EXPECT_EQ(text(*record.find("kernels"), "experts"), "cpu.portable.experts");
    EXPECT_EQ(test::numbers(*record.find("rank_slots")), (std::vector<std::uint64_t>{4}));

    const Json& check = *record.find("check");
    EXPECT_EQ(keys_of(check), (Names{"passed", "max_err_over_bound", "worst", "relative_l2",
                                     "worst_row", "norm_ratio", "unquantised_l2", "stages",
                                     "clamped", "reference_s", "max_tile_err", "bound", "tokens"}));
    EXPECT_EQ(number(check, "tokens"), 2U);
    EXPECT_TRUE(check.find("passed")->as_bool());
    EXPECT_TRUE(check.find("max_err_over_bound")->as_double(9) <= 1);
    EXPECT_TRUE(check.find("max_tile_err")->as_double(9) < 4e-3);  // half an ulp of bf16
    EXPECT_GT(check.find("bound")->as_double(), 0);

    const Json& timing = *record.find("timing");
    EXPECT_EQ(keys_of(timing),
              (Names{"mode", "samples", "median_us", "iqr_us", "p10", "p90", "host_us",
                     "passes_differ_pct", "rejected", "read_fraction", "read_gbps", "noise"}));
    EXPECT_GT(timing.find("read_fraction")->as_double(), 0);
    EXPECT_GT(timing.find("read_gbps")->as_double(), 0);
    const Json& noise = *timing.find("noise");
    EXPECT_EQ(keys_of(noise), (Names{"limit_pct", "rejected_samples", "quiet"}));
    EXPECT_EQ(noise.find("limit_pct")->as_double(), 2);
    // What was quiet or the quietest of it, and of a pass never more than four times what is asked.
    EXPECT_LE(number(noise, "rejected_samples"), 24U);
    EXPECT_EQ(text(timing, "mode"), i == 0 ? "cold" : "warm");
    EXPECT_EQ(number(timing, "samples"), 6U);  // two passes of at least three
    EXPECT_EQ(record.find("sets")->elements().size(), 8U);
    EXPECT_GT(timing.find("p10")->as_double(), 0);
    EXPECT_LE(timing.find("p10")->as_double(), timing.find("median_us")->as_double());
    EXPECT_LE(timing.find("median_us")->as_double(), timing.find("p90")->as_double());
    EXPECT_TRUE(timing.find("rejected")->is_bool());
    EXPECT_EQ(timing.find("rejected")->as_bool(),
              timing.find("passes_differ_pct")->as_double() > 5);

    Names stages;
    for (const Json& stage : record.find("stages")->elements()) {
      EXPECT_EQ(keys_of(stage), (Names{"name", "median_us"}));
      stages.push_back(text(stage, "name"));
    }
    EXPECT_EQ(stages, (Names{"slots", "quantise", "gate_up", "down", "combine", "reduce"}));
    EXPECT_EQ(keys_of(*record.find("work")), (Names{"flops", "bytes_weights", "bytes_acts"}));
    EXPECT_EQ(keys_of(*record.find("rate")), (Names{"tflops", "gbps"}));
    EXPECT_EQ(keys_of(*record.find("ceiling")),
              (Names{"gbps_measured", "tflops_measured", "percent", "nearer", "fp32_tflops",
                     "bf16_tflops", "vnni_tops", "maddubs_tops"}));
    const double bf16 = record.find("ceiling")->find("bf16_tflops")->as_double();
    const double fp32 = record.find("ceiling")->find("fp32_tflops")->as_double();
    EXPECT_EQ(record.find("ceiling")->find("tflops_measured")->as_double(), bf16 > 0 ? bf16 : fp32);
    for (const char* key : {"gbps_measured", "tflops_measured", "percent"})
      EXPECT_GT(record.find("ceiling")->find(key)->as_double(), 0) << key;
  }
  EXPECT_EQ(test::tree_of(temp()), Names{});  // the checkpoint it made is gone
}

TEST_F(Bench, GivesOneRecordForEveryPointAndMode) {
  const auto lines =
      records({"--problem", file("small.json", kSmall), "--tokens", "1..2", "--tp", "1,3"});
  Names points;
  for (const Json& record : lines) {
    const Json& problem = *record.find("problem");
    points.push_back(std::to_string(number(problem, "tokens")) + " " +
                     std::to_string(number(problem, "tp")) + " " +
                     text(*record.find("timing"), "mode"));
    EXPECT_EQ(record.find("rank_slots")->elements().size(), number(problem, "tp"));
  }
  EXPECT_EQ(points, (Names{"1 1 cold", "1 1 warm", "1 3 cold", "1 3 warm", "2 1 cold", "2 1 warm",
                           "2 3 cold", "2 3 warm"}));
}

TEST_F(Bench, C02_CountsTheBytesOfActiveExpertsOnly) {
  const std::string problem =
      file("problem.json",
           R"({"model": "tiny", "hidden": 64, "inter": 32, "experts": 128, "format": "nvfp4"})");
  const std::string routing = input({ids({2, 2}, {0, 1, 1, 2}), weights({2, 2})});
  const auto lines = records(
      {"--problem", problem, "--tokens", "2", "--tp", "1,2", "--routing", "file:" + routing});
  ASSERT_EQ(lines.size(), 4U);
  for (const Json& record : lines) {
    EXPECT_EQ(number(record, "active_experts"), 3U);
    const Json& work = *record.find("work");
    EXPECT_EQ(number(work, "bytes_weights"), 10368U);
    EXPECT_EQ(number(work, "flops"), 2U * 4 * 3 * 64 * 32);
    EXPECT_EQ(number(work, "bytes_acts"), 2U * 2 * 64 * 2);  // x and y in bf16
    EXPECT_EQ(text(*record.find("problem"), "routing"), "file:" + routing);
  }
}

TEST_F(Bench, TakesAProblemFileAndOptionsWinOverIt) {
  const std::string problem =
      file("problem.json", R"({"model": "tiny", "hidden": 64, "inter": 64, "experts": 4,
 "format": "nvfp4", "top_k": 3, "tokens": [1, 2], "routing": "zipf:1.5", "seed": 7})");
  const auto as_given = records({"--problem", problem});
  ASSERT_EQ(as_given.size(), 4U);
  const Json& given = *as_given[2].find("problem");
  EXPECT_EQ(text(given, "model"), problem);
  EXPECT_EQ(number(given, "tokens"), 2U);
  EXPECT_EQ(number(given, "inter"), 64U);
  EXPECT_EQ(number(given, "experts"), 4U);
  EXPECT_EQ(number(given, "top_k"), 3U);
  EXPECT_EQ(text(given, "format"), "nvfp4");
  EXPECT_EQ(text(given, "routing"), "zipf:1.5");
  EXPECT_EQ(number(given, "seed"), 7U);
  const auto other = records({"--problem", problem, "--tokens", "3", "--top-k", "1", "--format",
                              "mxfp4", "--routing", "one:2", "--seed", "9"});
  ASSERT_EQ(other.size(), 2U);
  const Json& won = *other[0].find("problem");
  EXPECT_EQ(number(won, "tokens"), 3U);
  EXPECT_EQ(number(won, "top_k"), 1U);
  EXPECT_EQ(text(won, "format"), "mxfp4");
  EXPECT_EQ(text(won, "routing"), "one:2");
  EXPECT_EQ(number(won, "seed"), 9U);
  EXPECT_EQ(number(other[0], "active_experts"), 1U);
}

TEST_F(Bench, TakesACheckpointAndAPackedSet) {
  const std::string model = synth("model");
  const std::string set = pack(model, "set", {"--tp", "3", "--kernel-align", "64"});
  for (const std::string& problem : {model, set}) {
    SCOPED_TRACE(problem);
    const auto lines = records({"--problem", problem, "--tokens", "2"});
    ASSERT_EQ(lines.size(), 2U);
    EXPECT_EQ(text(*lines[0].find("problem"), "model"), problem);
    EXPECT_EQ(number(*lines[0].find("problem"), "tp"), problem == set ? 3U : 1U);
    EXPECT_EQ(number(*lines[0].find("problem"), "inter"), 96U);
  }
  EXPECT_TRUE(std::filesystem::exists(model + "/config.json"));
  EXPECT_TRUE(std::filesystem::exists(set + "/moxie-plan.json"));
  expect_refusal(2, "MOXIE-R013", {"bench", "--problem", set, "--tp", "2"});
}

TEST_F(Bench, RoutesByTheModelOnAHashLayer) {
  const auto lines = records({"--problem", "tiny", "--routing", "model", "--tokens", "9"});
  ASSERT_EQ(lines.size(), 2U);
  for (const Json& record : lines) {
    EXPECT_TRUE(record.find("check")->find("passed")->as_bool());
    EXPECT_EQ(text(*record.find("problem"), "routing"), "model");
    EXPECT_EQ(text(*record.find("kernels"), "route"), "cpu.portable.route");
    EXPECT_GT(number(record, "active_experts"), 1U);
    EXPECT_EQ(test::numbers(*record.find("rank_slots")), (std::vector<std::uint64_t>{18}));
  }
  const Json run = test::expect_document({"run", synth("model"), "--routing", "model", "--check"});
  EXPECT_TRUE(run.find("ok")->as_bool());
  EXPECT_EQ(text(*test::only_run(run).find("kernels"), "route"), "cpu.portable.route");
}

TEST_F(Bench, StatesALineThatMeasuresThePointAgain) {
  const std::string problem = file("it's small.json", kSmall);
  const Json first = records({"--problem", problem, "--tokens", "1,3", "--tp", "1,3", "--ep", "2",
                              "--seed", "5", "--act-format", "fp8", "--kernel-align", "64",
                              "--threads", "1", "--routing", "zipf:1.25"})
                         .back();
  Launch again = launch();
  const std::filesystem::path folder = std::filesystem::path(MOXIE_CLI_PATH).parent_path();
  again.variables.emplace_back("PATH", folder.string() + ":/usr/bin:/bin");
  again.command = {"/bin/sh", "-c", text(first, "repro") + " --samples 1 --json -q"};
  const Outcome outcome = test::run(again);
  EXPECT_EQ(outcome.exit_code, 0) << text(first, "repro") << "\n" << outcome.err;
  const auto repeated = parse_records(outcome.out);
  ASSERT_EQ(repeated.size(), 2U);  // the point alone, cold and warm
  const Json& last = repeated.back();
  for (const char* key :
       {"problem", "kernels", "layout", "kernel_width", "threads", "rank_slots", "work", "repro"})
    EXPECT_EQ(*last.find(key), *first.find(key)) << key;
  EXPECT_EQ(*last.find("check")->find("worst"), *first.find("check")->find("worst"));
}

TEST_F(Bench, AsTextIsATableThatSaysWhatIsTimed) {
  const Outcome outcome = says({"--problem", file("small.json", kSmall), "--tokens", "2"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* word :
       {"| tokens | tp | mode |", "ms, median [IQR]", "% of ceiling", "| cold |", "| warm |",
        "of read test", "Inside the timed region", "Ceilings measured"})
    EXPECT_TRUE(has(outcome.out, word)) << word << "\n" << outcome.out;
  EXPECT_FALSE(has(outcome.out, "moxie.bench/1"));
}

TEST_F(Bench, ComparesWithABaseline) {
  const Words point = {"--problem", file("small.json", kSmall), "--tokens", "2"};
  const auto earlier = records(point);
  ASSERT_EQ(earlier.size(), 2U);
  const auto against = [&](const std::string& content, const Words& more = {}) {
    return says(point + Words{"--json", "--baseline", file("earlier.jsonl", content)} + more);
  };
  // The same machine, with room for noise.
  const Outcome equal = against(lines_from(earlier), {"--fail-over", "1e6"});
  EXPECT_EQ(equal.exit_code, 0) << equal.err;
  EXPECT_FALSE(has(equal.err, "MOXIE-B002"));
  const Outcome slower_before = against(lines_scaled(earlier, 1e4));
  EXPECT_EQ(slower_before.exit_code, 0) << slower_before.err;

  const Outcome faster_before = against(lines_scaled(earlier, 1e-4));
  EXPECT_EQ(faster_before.exit_code, 1);
  const auto errors = test::error_lines(faster_before);
  ASSERT_EQ(errors.size(), 2U) << faster_before.err;
  EXPECT_TRUE(errors[0].starts_with("moxie: MOXIE-B004 error: 2 tokens, tp 1, cold")) << errors[0];
  EXPECT_TRUE(has(errors[1], "warm")) << errors[1];
  const auto records = parse_records(faster_before.out);
  ASSERT_EQ(records.size(), 2U);
  for (const Json& record : records) {
    EXPECT_FALSE(record.find("ok")->as_bool(true));
    EXPECT_TRUE(record.find("check")->find("passed")->as_bool());
    EXPECT_EQ(std::ranges::count(test::codes_of(record), "MOXIE-B004"), 1);
    for (const Json& finding : record.find("findings")->elements()) test::expect_finding(finding);
  }

  // A record of another mode or another problem is no baseline.
  const Outcome half = against(lines_scaled({earlier[1]}, 1e-4));
  EXPECT_EQ(test::error_lines(half).size(), 1U) << half.err;
  Json other = earlier[0];
  other.set("problem", Json(*earlier[0].find("problem")).set("seed", 1));
  const Outcome unrelated = against(lines_scaled({other}, 1e-4));
  EXPECT_EQ(unrelated.exit_code, 0) << unrelated.err;
  EXPECT_TRUE(has(unrelated.err, "MOXIE-B002 warning")) << unrelated.err;
}

TEST_F(Bench, NamesAProblemThatIsNone) {
  const auto problem = [&](const std::string& content) {
    return Words{"bench", "--problem", file("problem.json", content)};
  };
  const std::string line = expect_refusal(2, "MOXIE-B001", {"bench", "--problem", "nobody"});
  EXPECT_TRUE(has(line, "tiny")) << line;
  expect_refusal(3, "MOXIE-C003", problem(R"({"model": "tiny")"));
  expect_refusal(3, "MOXIE-C003", problem(R"({"seed": 1, "seed": 2})"));
  for (const char* content :
       {R"([])", R"({"model": "tiny", "layers": 2})", R"({"model": "nobody"})", R"({"model": 1})",
        R"({"tokens": "8"})", R"({"tokens": []})", R"({"tokens": [8, -1]})", R"({"top_k": 1.5})",
        R"({"format": "fp8"})", R"({"routing": "even"})", R"({"seed": null})"}) {
    SCOPED_TRACE(content);
    expect_refusal(3, "MOXIE-B001", problem(content));
  }
}

TEST_F(Bench, RefusesBeforeTheFirstRecordAndLeavesNothingC01) {
  const std::pair<Words, const char*> wrong[] = {
      {{"--tokens", "x"}, "MOXIE-U001"},      {{"--tokens", "2..1"}, "MOXIE-U001"},
      {{"--samples", "0"}, "MOXIE-U001"},     {{"--threads", "0"}, "MOXIE-U001"},
      {{"--fail-over", "-1"}, "MOXIE-U001"},  {{"--routing", "even"}, "MOXIE-U001"},
      {{"--tp", "0"}, "MOXIE-P001"},          {{"--top-k", "9"}, "MOXIE-R007"},
      {{"--routing", "one:8"}, "MOXIE-U003"}, {{"--baseline", at("absent")}, "MOXIE-B002"},
      {{"--fail-over", "nan"}, "MOXIE-U001"}, {{"--fail-over", "-1"}, "MOXIE-U001"},
      {{"--baseline", temp()}, "MOXIE-B002"}};
  const std::string small = file("small.json", kSmall);
  ::setenv("TMPDIR", temp().c_str(), 1);
  for (const auto& [options, code] : wrong)
    expect_refusal(2, code, Words{"bench", "--problem", small} + options);
  expect_refusal(3, "MOXIE-C003",
                 {"bench", "--problem", small, "--baseline", file("earlier", "{\n")});
  expect_refusal(3, "MOXIE-B002",
                 {"bench", "--problem", small, "--baseline", file("empty", "{}\n")});
  expect_refusal(2, "MOXIE-B002", {"bench", "--problem", small, "--baseline", "/dev/zero"});
  expect_refusal(4, "MOXIE-P002",
                 {"bench", "--problem", small, "--target", "sm90", "--act-format", "int8"}, {},
                 kernel_catalog().size());
  // The first point is right, the second is not.
  const std::string routing = input({ids({1, 2}, {0, 1}), weights({1, 2})});
  expect_refusal(2, "MOXIE-R006",
                 {"bench", "--problem", small, "--tokens", "1,2", "--routing", "file:" + routing});
  ::unsetenv("TMPDIR");
  EXPECT_EQ(test::tree_of(temp()), Names{});
}

TEST_F(Bench, DrawsWeightsWithoutACheckpointForOneRankAlone) {
  const Words tiny = {"--problem", "tiny", "--tokens", "9", "--weights", "random"};
  const Json whole = records(tiny).front();
  EXPECT_TRUE(whole.find("check")->find("passed")->as_bool());
  EXPECT_EQ(text(*whole.find("problem"), "weights"), "random");
  EXPECT_EQ(number(*whole.find("problem"), "experts"), 8U);
  EXPECT_EQ(whole.find("problem")->find("rank"), nullptr);

  const Json by_tp = records(tiny + Words{"--tp", "3", "--rank", "2", "--format", "nvfp4"}).front();
  const Json& problem = *by_tp.find("problem");
  EXPECT_TRUE(by_tp.find("check")->find("passed")->as_bool());
  EXPECT_EQ(number(problem, "tp"), 3U);
  EXPECT_EQ(number(problem, "inter"), 640U);
  EXPECT_EQ(number(problem, "rank"), 2U);
  EXPECT_EQ(number(problem, "rank_inter"), 640U - 2 * number(by_tp, "kernel_width"));

  const Json by_ep =
      records(tiny + Words{"--ep", "4", "--rank", "3", "--routing", "hot:6"}).front();
  EXPECT_TRUE(by_ep.find("check")->find("passed")->as_bool());
  EXPECT_EQ(number(*by_ep.find("problem"), "rank_experts"), 2U);
  EXPECT_GE(test::numbers(*by_ep.find("rank_slots")).front(), 9U);
  EXPECT_LT(test::numbers(*by_ep.find("rank_slots")).front(), 18U);
  EXPECT_LE(number(by_ep, "active_experts"), 2U);
}

TEST_F(Bench, RotatesRoutingSetsAndCountsTheirMean) {
  const auto lines =
      records({"--problem", "tiny", "--tokens", "3", "--sets", "2", "--weights", "random"});
  ASSERT_EQ(lines.size(), 2U);
  for (const Json& record : lines) {
    const auto& sets = record.find("sets")->elements();
    ASSERT_EQ(sets.size(), 2U);
    EXPECT_EQ(number(sets[0], "seed"), 0U);
    EXPECT_EQ(number(sets[1], "seed"), 1U);
    EXPECT_EQ(number(*record.find("work"), "bytes_weights"),
              (number(sets[0], "bytes_weights") + number(sets[1], "bytes_weights") + 1) / 2);
    EXPECT_TRUE(has(text(record, "repro"), "--weights random --sets 2"));
  }
}

TEST_F(Bench, DrawsWeightsForMoreExpertsThanItWouldWrite) {
  const Words small = {"--problem", "tiny", "--tokens", "1", "--hidden", "64", "--inter", "32"};
  const Json many = records(small + Words{"--experts", "40"}).front();
  EXPECT_EQ(text(*many.find("problem"), "weights"), "random");
  EXPECT_EQ(number(*many.find("problem"), "experts"), 40U);
  const Json few = records(small + Words{"--experts", "16"}).front();
  EXPECT_EQ(few.find("problem")->find("weights"), nullptr);
}

TEST_F(Bench, SaysWhatAPeerLacksB006) {
  const Outcome outcome =
      says({"--problem", "tiny", "--tokens", "1", "--vs", "ggml", "--python", "no such python"});
  EXPECT_EQ(outcome.exit_code, 5);
  EXPECT_TRUE(has(outcome.err, "MOXIE-B006")) << outcome.err;
  const std::string python = file("python",
                                  "#!/bin/sh\necho '{\"error\": \"missing\", \"text\": "
                                  "\"no module llama_cpp\"}'\n");
  std::filesystem::permissions(python, std::filesystem::perms::owner_all);
  const Outcome missing =
      says({"--problem", "tiny", "--tokens", "1", "--vs", "ggml", "--python", python});
  EXPECT_EQ(missing.exit_code, 5);
  EXPECT_TRUE(has(missing.err, "no module llama_cpp")) << missing.err;
  EXPECT_EQ(test::tree_of(temp()), Names{});
}

TEST_F(Bench, TakesSizesOfANamedProblemAndSaysThemAgain) {
  const Json record = records({"--problem", "tiny", "--tokens", "1", "--experts", "3", "--hidden",
                               "64", "--inter", "96", "--routing", "zipf"})
                          .front();
  const Json& problem = *record.find("problem");
  EXPECT_EQ(number(problem, "experts"), 3U);
  EXPECT_EQ(number(problem, "hidden"), 64U);
  EXPECT_EQ(number(problem, "inter"), 96U);
  EXPECT_EQ(text(problem, "routing"), "zipf:1");
  EXPECT_TRUE(has(text(record, "repro"), "--experts 3 --hidden 64 --inter 96"));
}

TEST_F(Bench, RefusesWhatDoesNotGoTogetherB005) {
  const std::string model = synth("model");
  for (const Words& options :
       {Words{"--problem", "tiny", "--mode", "graph"}, Words{"--problem", "tiny", "--vs", "torch"},
        Words{"--problem", "tiny", "--vs", "ggml", "--target", "sm90"},
        Words{"--problem", "tiny", "--vs", "ggml", "--tp", "2"},
        Words{"--problem", "tiny", "--vs", "ggml", "--act-format", "fp8"},
        Words{"--problem", model, "--rank", "0"}, Words{"--problem", model, "--rank", "0"},
        Words{"--problem", model, "--weights", "random"},
        Words{"--problem", model, "--experts", "2"}, Words{"--problem", "tiny", "--sets", "4097"},
        Words{"--problem", "tiny", "--samples", "18446744073709551615"},
        Words{"--problem", "tiny", "--load", "--samples", "1000001"}})
    expect_refusal(2, "MOXIE-B005", Words{"bench"} + options);
  expect_refusal(2, "MOXIE-P001",
                 {"bench", "--problem", "tiny", "--weights", "random", "--rank", "1"});
  expect_refusal(3, "MOXIE-M016",
                 {"bench", "--problem", "tiny", "--weights", "random", "--routing", "model"});
  for (const Words& options : {Words{"--sets", "0"}, Words{"--mode", "cold"},
                               Words{"--weights", "none"}, Words{"--routing", "hot:x"}})
    expect_refusal(2, "MOXIE-U001", Words{"bench", "--problem", "tiny"} + options);
}

TEST_F(Bench, RemovesItsCheckpointWhenInterrupted) {
  Launch interrupted = launch();
  bool made = false;
  interrupted.interrupt_when = [&](const Outcome& so_far) {
    made = made || !test::tree_of(temp()).empty();
    return has(so_far.out, "\n");
  };
  const Outcome outcome = test::moxie_says(
      {"bench", "--problem", "tiny", "--tokens", "1,256,257,258,259,260,261,262", "--json"},
      interrupted);
  EXPECT_EQ(outcome.exit_code, 130);
  EXPECT_TRUE(has(outcome.err, "MOXIE-U130")) << outcome.err;
  EXPECT_TRUE(made);
  EXPECT_EQ(test::tree_of(temp()), Names{});
}

}  // namespace
}  // namespace moxie

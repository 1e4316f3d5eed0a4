// SPDX-License-Identifier: Apache-2.0
// moxie bench: check, then time, cold and warm; one record a point.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "cli/act_scales.hpp"
#include "cli/bench_problem.hpp"
#include "cli/bench_record.hpp"
#include "cli/bench_sweep.hpp"
#include "cli/layer_call.hpp"
#include "cli/references.hpp"
#include "cli/run_subject.hpp"
#include "moxie/report.hpp"

namespace moxie::cli {

namespace {

// A pass ends after so many seconds even with samples missing; the record says how many there were.
constexpr double kPassSeconds = 10;
constexpr std::uint64_t kLeastSamples = 3;
constexpr int kMostTries = 3;  // of a point whose two passes differ
const std::vector<std::uint64_t> kDefaultTokens = {1, 8, 64};

// One call after another into a bf16 result, as an engine would make them.
class TimedLayer {
 public:
  TimedLayer(const MoeLayer& layer, const Probe& probe)
      : call_(layer, probe.tokens), probe_(probe), y_(probe.tokens * probe.hidden) {}

  // Microseconds of one call.
  double call() {
    LayerIo io = io_of(probe_, y_.data(), DType::bf16, &flags_);
    io.trace = &trace_;
    return call_layer(call_, io);
  }
  void evict() { call_.evict(); }
  [[nodiscard]] const Trace& trace() const { return trace_; }
  // Whether the bf16 result is within half a unit in the last place of this one.
  [[nodiscard]] bool result_is(const std::vector<float>& exact) const {
    for (std::size_t i = 0; i < y_.size(); ++i) {
      const auto got = std::bit_cast<float>(static_cast<std::uint32_t>(y_[i]) << 16);
      if (!(std::abs(got - exact[i]) <= std::ldexp(std::abs(exact[i]), -8))) return false;
    }
    return true;
  }

 private:
  HostCall call_;
  const Probe& probe_;
  std::vector<std::uint16_t> y_;  // [tokens, hidden] bf16
  Trace trace_;
  std::uint32_t flags_ = 0;
};

// Two passes of half the samples each, repeated while they differ.
void measure(TimedLayer& layer, std::uint64_t samples, CacheFlusher& flusher, BenchPoint& point) {
  const auto pass = [&] {
    std::vector<double> times;
    const Stopwatch watch;
    for (std::uint64_t i = 0; i < std::max((samples + 1) / 2, kLeastSamples); ++i) {
      if (i >= kLeastSamples && watch.seconds() > kPassSeconds) break;
      if (interrupted())
        throw Error(ErrorCode::interrupted, {.code = "MOXIE-U130", .message = "interrupted"});
      if (point.mode == BenchMode::cold) {
        flusher.flush();
        layer.evict();
      }
      times.push_back(layer.call());
      point.traces.push_back(layer.trace());
    }
    return times;
  };
  for (int attempt = 0; attempt < kMostTries; ++attempt) {
    point.traces.clear();
    const std::vector<double> first = pass();
    const std::vector<double> second = pass();
    const double a = summarise(first).median_us;
    const double b = summarise(second).median_us;
    point.passes_differ_pct = 100 * (std::max(a, b) / std::min(a, b) - 1);
    point.samples_us = first;
    point.samples_us.insert(point.samples_us.end(), second.begin(), second.end());
    if (point.passes_differ_pct <= kMostPassesDiffer) return;
  }
}

// Records of an earlier run by identity.
std::map<std::string, double> read_baseline(const std::filesystem::path& path) {
  std::ifstream stream(path);
  if (std::error_code absent; !stream || std::filesystem::is_directory(path, absent)) {
    throw Error(ErrorCode::usage, {.code = "MOXIE-B002",
                                   .message = "the baseline can not be read",
                                   .where = {.file = path.string()}});
  }
  std::map<std::string, double> medians;
  for (std::string line; std::getline(stream, line);) {
    if (line.empty()) continue;
    const Json record = Json::parse(line, path.string());
    const Json* schema = record.find("schema");
    const bool ours = schema != nullptr && schema->as_string() == "moxie.bench/1";
    if (const double median = median_us_of(record); ours && median > 0)
      medians[identity_of(record)] = median;
  }
  if (medians.empty()) {
    throw Error(ErrorCode::input, {.code = "MOXIE-B002",
                                   .message = "the baseline holds no record",
                                   .where = {.file = path.string()},
                                   .expected = "lines of moxie bench --json",
                                   .got = "none with a time"});
  }
  return medians;
}

class Bench {
 public:
  Bench(const BenchArgs& args, const Console& console)
      : args_(args), console_(console), problem_(read_problem(args.problem)) {
    if (args.baseline) baseline_ = read_baseline(*args.baseline);
  }

  int run() {
    catch_interrupts();
    std::unique_ptr<TemporaryCheckpoint> made;
    if (problem_.folder.empty()) {
      if (args_.plan.format) problem_.synth.format = args_.plan.format;
      problem_.synth.seed = seed();
      made = std::make_unique<TemporaryCheckpoint>(problem_.synth, console_.progress("synth"));
    }
    RunArgs run_args = args_of_run(made != nullptr ? made->folder() : problem_.folder);
    const RunSubject subject(run_args);
    console_.talk(subject.findings());
    const unsigned threads = args_.threads == 0 ? host_cpu().threads : args_.threads;
    setting_ = {.command = args_.command,
                .model = problem_.name,
                .seed = seed(),
                .kernel_align = args_.plan.kernel_align,
                .threads = args_.threads,
                .threads_used = threads,
                .ceilings = ceilings_of(subject.plans().front().target, threads),
                .build = build_json(),
                .host = host_json()};
    if (!args_.act_margins.empty()) {
      run_args.tokens = token_counts().back();
      ActMarginSweep(subject, run_args, setting_, console_).run(args_.act_margins);
      return 0;
    }
    // What can be refused is refused before the first record.
    std::vector<RunProbe> probes;
    for (const std::uint64_t tokens : token_counts()) {
      run_args.tokens = tokens;
      probes.push_back(make_run_probe(run_args, subject));
      console_.talk(probes.back().findings);
    }
    for (const RunProbe& probe : probes) {
      References references(subject, probe.probe, console_);
      for (const ShardPlan& plan : subject.plans()) run_plan(subject, plan, probe, references);
    }
    finish();
    return passed_ ? 0 : static_cast<int>(ErrorCode::verdict);
  }

 private:
  [[nodiscard]] std::uint64_t seed() const { return args_.seed.value_or(problem_.seed); }
  [[nodiscard]] std::vector<std::uint64_t> token_counts() const {
    if (!args_.tokens.empty()) return args_.tokens;
    return problem_.tokens.empty() ? kDefaultTokens : problem_.tokens;
  }
  [[nodiscard]] RunArgs args_of_run(const std::filesystem::path& folder) const {
    RunArgs run;
    run.model = folder;
    run.plan = args_.plan;
    if (!args_.act_margins.empty()) sweep_plan(run.plan);
    run.top_k = args_.top_k ? args_.top_k : problem_.top_k;
    run.routing = args_.routing ? args_.routing : problem_.routing;
    run.seed = seed();
    run.threads = args_.threads;
    return run;
  }

  // A sweep says what it sweeps; options that say otherwise are refused.
  static void sweep_plan(GivenPlan& plan) {
    if (plan.act_format.value_or(ActFormat::nvfp4) != ActFormat::nvfp4 ||
        plan.act_scale.value_or(ActScale::warmup) != ActScale::warmup || plan.act_margin) {
      throw Error(ErrorCode::usage,
                  {.code = "MOXIE-U003",
                   .message = "--sweep act-margin chooses format, policy and margin itself",
                   .expected = "--act-format nvfp4, --act-scale warmup and no --act-margin",
                   .got = "another"});
    }
    plan.act_format = ActFormat::nvfp4;
    plan.act_scale = ActScale::warmup;
  }

  void run_plan(const RunSubject& subject, const ShardPlan& plan, const RunProbe& probe,
                References& references) {
    MoeLayer layer(plan, subject.spec(), subject.load(plan, {}));
    const std::vector<Finding> warmed = warm_up(layer, probe.probe);
    const CheckedRun checked = references.check(layer);
    TimedLayer timed(layer, probe.probe);
    timed.call();
    BenchPoint point{.plan = &plan,
                     .tokens = probe.probe.tokens,
                     .top_k = probe.probe.top_k,
                     .routing = probe.routing,
                     .rank_slots = slots_of_ranks(plan, probe.probe),
                     .work = count_work(subject.config(), plan.format, probe.probe, DType::bf16),
                     .check = figures_of(checked),
                     .findings = checked.whole.findings,
                     .samples_us = {},
                     .traces = {}};
    point.findings.insert(point.findings.end(), checked.stages.findings.begin(),
                          checked.stages.findings.end());
    point.findings.insert(point.findings.end(), warmed.begin(), warmed.end());
    if (!timed.result_is(checked.y)) {
      point.check.passed = false;
      point.findings.push_back(
          {.code = "MOXIE-R010", .message = "the bf16 result is not the f32 result rounded once"});
    }
    for (const BenchMode mode : {BenchMode::cold, BenchMode::warm}) {
      point.mode = mode;
      if (point.check.passed) measure(timed, args_.samples, flusher_, point);
      report(point);
      if (!point.check.passed) break;  // a wrong result is not worth a time
    }
  }

  void report(const BenchPoint& point) {
    Json record = record_of(setting_, point);
    const auto name =
        fmt::format("{} tokens, tp {}, {}", point.tokens, point.plan->tp, name_of(point.mode));
    std::vector<Finding> findings = point.findings;
    if (point.passes_differ_pct > kMostPassesDiffer) {
      findings.push_back({.code = "MOXIE-B003",
                          .severity = Severity::warning,
                          .message = name + ": two passes differ, the machine was not quiet",
                          .expected = fmt::format("at most {} %", kMostPassesDiffer),
                          .got = fmt::format("{:.1f} %", point.passes_differ_pct)});
    }
    const bool slower = compare(record, name, findings);
    const bool ok = point.check.passed && !slower;
    passed_ = passed_ && ok;
    record.set("ok", ok).set("findings", to_json(findings));
    console_.print_line(record);
    console_.talk(findings);
    add_row(point);
  }

  // Whether the record is slower than its baseline by more than is allowed.
  bool compare(const Json& record, const std::string& name, std::vector<Finding>& findings) {
    const auto known = baseline_.find(identity_of(record));
    const double median = median_us_of(record);
    if (known == baseline_.end() && args_.baseline && median > 0) {
      findings.push_back({.code = "MOXIE-B002",
                          .severity = Severity::warning,
                          .message = name + ": the baseline has no record of this point",
                          .where = {.file = args_.baseline->string()}});
    }
    if (known == baseline_.end() || !(median > 0)) return false;
    const double slower_pct = 100 * (median / known->second - 1);
    if (slower_pct <= args_.fail_over_pct) return false;
    findings.push_back({.code = "MOXIE-B004",
                        .message = name + ": slower than the baseline",
                        .expected = fmt::format("{:.1f} us and at most {} % more", known->second,
                                                args_.fail_over_pct),
                        .got = fmt::format("{:.1f} us, {:+.1f} %", median, slower_pct)});
    return true;
  }

  void add_row(const BenchPoint& point) {
    const bool timed = !point.samples_us.empty();
    const SampleSummary summary = timed ? summarise(point.samples_us) : SampleSummary{};
    const Rates rates = rates_of(point.work, setting_.ceilings, point.tokens, summary.median_us);
    const auto figure = [&](std::string text) { return timed ? std::move(text) : "-"; };
    table_.add_row(
        {fmt::to_string(point.tokens), fmt::to_string(point.plan->tp),
         std::string(name_of(point.mode)),
         figure(fmt::format("{:.3f} [{:.3f}]", summary.median_us * 1e-3, summary.iqr_us * 1e-3)),
         figure(fmt::format("{:.1f}", rates.tokens_per_s)),
         figure(fmt::format("{:.2f}", rates.gbps)), figure(fmt::format("{:.4f}", rates.tflops)),
         figure(percent_text(rates.percent)),
         fmt::format("{:.3f}", point.check.whole.max_err_over_bound)});
    last_ = *point.plan;
  }

  void finish() {
    console_.print_text(fmt::format(
        "{}: {} experts, hidden {}, inter {}, {}, activations {}, {}\n"
        "Inside the timed region: one call, slots to bf16 result; outside: routing, packing, "
        "checks.\n"
        "Ceilings measured in this process: {}.\n\n{}",
        setting_.model, last_.experts, last_.hidden, last_.inter().original.value,
        name_of(last_.format), acts_text(last_), last_.kernel, ceilings_text(setting_.ceilings),
        table_.to_markdown()));
  }

  const BenchArgs& args_;
  const Console& console_;
  BenchProblem problem_;
  BenchSetting setting_;
  std::map<std::string, double> baseline_;
  CacheFlusher flusher_;
  Table table_{{"tokens", "tp", "mode", "ms, median [IQR]", "tokens/s", "GB/s", "Tflop/s",
                "% of ceiling", "err/bound"}};
  ShardPlan last_;
  bool passed_ = true;
};

}  // namespace

int run_bench(const BenchArgs& args, const Console& console) { return Bench(args, console).run(); }

}  // namespace moxie::cli

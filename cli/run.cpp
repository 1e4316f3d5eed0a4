// SPDX-License-Identifier: Apache-2.0
// moxie run: one layer on one probe, plan after plan; timed, and checked when asked.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <span>
#include <utility>

#include "cli/act_scales.hpp"
#include "cli/layer_call.hpp"
#include "cli/output_place.hpp"
#include "cli/references.hpp"
#include "cli/run_report.hpp"
#include "cli/run_subject.hpp"

namespace moxie::cli {

namespace {

namespace fs = std::filesystem;

void stop_if_interrupted() {
  if (interrupted())
    throw Error(ErrorCode::interrupted, {.code = "MOXIE-U130", .message = "interrupted"});
}

// One warm-up, then the measured calls. y holds the last one's result.
void measure(const MoeLayer& layer, const Probe& probe, std::uint64_t repeat, PlanRun& run,
             std::vector<float>& y, std::uint32_t& flags) {
  HostCall call(layer, probe.tokens);
  y.assign(probe.tokens * probe.hidden, std::numeric_limits<float>::quiet_NaN());
  Trace trace;
  LayerIo io = io_of(probe, y.data(), DType::f32, &flags);
  io.trace = &trace;
  io.act_stats = &run.act_stats;
  call_layer(call, io);
  io.act_stats = nullptr;
  for (std::uint64_t i = 0; i < repeat; ++i) {
    run.samples_us.push_back(call_layer(call, io));
    run.traces.push_back(trace);
  }
}

// Doubles as f32.
std::vector<float> rounded(std::span<const double> values) {
  std::vector<float> result;
  result.reserve(values.size());
  for (const double value : values) result.push_back(static_cast<float>(value));
  return result;
}

// Bounds around references that were rounded: raised by that rounding, and rounded up.
std::vector<float> rounded_up(std::span<const double> bounds, std::span<const double> exact,
                              std::span<const float> references) {
  std::vector<float> result;
  result.reserve(bounds.size());
  for (std::size_t i = 0; i < bounds.size(); ++i) {
    const double bound = bounds[i] + std::abs(exact[i] - static_cast<double>(references[i]));
    const auto nearest = static_cast<float>(bound);
    result.push_back(static_cast<double>(nearest) < bound
                         ? std::nextafter(nearest, std::numeric_limits<float>::infinity())
                         : nearest);
  }
  return result;
}

// The last plan's results.
void write_output(const fs::path& path, const Probe& probe, const std::vector<float>& y,
                  const std::optional<CheckedRun>& checked) {
  const auto matrix = [&](const std::vector<float>& values) {
    return MatrixRef{.data = values.data(),
                     .dtype = DType::f32,
                     .rows = probe.tokens,
                     .cols = probe.hidden,
                     .row_stride = probe.hidden};
  };
  std::vector<NamedMatrix> more = {{"output", matrix(y)}};
  std::vector<float> expected;
  std::vector<float> bound;
  if (checked) {
    expected = rounded(checked->reference->y);
    bound = rounded_up(checked->whole.bound, checked->reference->y, expected);
    more.push_back({"reference", matrix(expected)});
    more.push_back({"bound", matrix(bound)});
  }
  catch_interrupts();  // what is half written goes away
  write_probe(path, probe, more);
  stop_if_interrupted();
}

// Results that are no numbers, which inputs or weights near the end of fp32 give.
std::vector<Finding> value_findings(const std::vector<float>& y, int layer) {
  const auto bad = std::ranges::count_if(y, [](float value) { return !std::isfinite(value); });
  if (bad == 0) return {};
  return {{.code = "MOXIE-R016",
           .severity = Severity::warning,
           .message = "the result holds values that are not finite",
           .where = {.layer = layer},
           .expected = "finite values",
           .got = fmt::format("{} of {}", bad, y.size()),
           .hint = "fp32 sums overflow above 3.4e38; look at the input and at the block scales"}};
}

void append(std::vector<Finding>& to, const std::vector<Finding>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

}  // namespace

int run_run(const RunArgs& args, const Console& console) {
  const RunSubject subject(args);
  if (args.output) {
    require_output_place(*args.output, "--output");
    subject.require_not_own(*args.output, "--output");
  }
  console.talk(subject.findings());
  const RunProbe routed = make_run_probe(args, subject);
  const Probe& probe = routed.probe;
  RunReport report{.path = args.model.string(),
                   .subject = &subject,
                   .probe = &routed,
                   .seed = args.seed,
                   .trace = args.trace,
                   .work = count_work(subject.plans().front(), probe, DType::f32),
                   .ceilings = ceilings_of(subject.plans().front().target, args.threads),
                   .runs = {},
                   .findings = routed.findings};
  References references(subject, probe, console);
  std::vector<float> y;
  std::uint32_t flags = 0;
  std::optional<CheckedRun> checked;  // the last plan's
  for (const ShardPlan& plan : subject.plans()) {
    PlanRun run{.plan = &plan, .samples_us = {}, .traces = {}, .check = {}};
    MoeLayer layer(plan, subject.spec(),
                   subject.sources(plan, console.progress(fmt::format("load tp {}", plan.tp))));
    append(report.findings, warm_up(layer, probe));
    measure(layer, probe, args.repeat, run, y, flags);
    append(report.findings, act_findings(plan, run.act_stats, subject.layer()));
    if (args.check) {
      checked = references.check(layer);
      append(report.findings, checked->whole.findings);
      for (const Finding& finding : checked->stages.findings) {
        // The same element outside both bounds is one finding.
        if (checked->whole.passed || finding.code != "MOXIE-R010")
          append(report.findings, {finding});
      }
      run.check = figures_of(*checked);
    }
    append(report.findings, rate_findings(report, run));
    report.runs.push_back(std::move(run));
  }
  append(report.findings, flag_findings(flags));
  append(report.findings, value_findings(y, subject.layer()));
  if (args.output) write_output(*args.output, probe, checked ? checked->y : y, checked);
  console.talk(report.findings);
  report.findings.insert(report.findings.begin(), subject.findings().begin(),
                         subject.findings().end());
  console.print(document_of(report), text_of(report, console));
  return report.passed() ? 0 : static_cast<int>(ErrorCode::verdict);
}

}  // namespace moxie::cli

// SPDX-License-Identifier: Apache-2.0
// Counts, rates and shares of a run; tables and the document moxie.run/1.
#include "cli/run_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "cli/act_scales.hpp"
#include "moxie/report.hpp"

namespace moxie::cli {

namespace {

double median_us(const PlanRun& run) { return summarise(run.samples_us).median_us; }

Rates rates_of(const RunReport& report, const PlanRun& run) {
  return cli::rates_of(report.work, ceiling_of(report.ceilings, run.plan->act_format),
                       report.probe->probe.tokens, median_us(run));
}

template <class Range>
Json list_of(const Range& values) {
  Json list = Json::array();
  for (const auto& value : values) list.push_back(value);
  return list;
}

Json trace_json(const PlanRun& run) {
  Json repeats = Json::array();
  for (std::size_t i = 0; i < run.traces.size(); ++i) {
    Json repeat = Json::object().set("total_us", run.samples_us[i]);
    for (std::size_t stage = 0; stage < kStageCount; ++stage) {
      const auto named = static_cast<Stage>(stage);
      repeat.set(name_of(named), static_cast<double>(run.traces[i][named]) * 1e-3);
    }
    repeats.push_back(std::move(repeat));
  }
  return repeats;
}

Json run_json(const RunReport& report, const PlanRun& run) {
  const ShardPlan& plan = *run.plan;
  const SampleSummary timing = summarise(run.samples_us);
  const Rates rates = rates_of(report, run);
  std::vector<std::uint64_t> bytes;
  for (const RankPlan& rank : plan.ranks) bytes.push_back(rank.bytes_layer);
  Json json;
  json.set("tp", plan.tp).set("ep", plan.ep);
  json.set("kernels", kernels_json(plan, report.probe->routing == "model"));
  json.set("layout", name_of(plan.layout.kind)).set("bytes_per_rank", list_of(bytes));
  json.set("active_experts", report.work.active_experts)
      .set("rank_slots", list_of(slots_of_ranks(plan, report.probe->probe)));
  json.set("timing", Json::object()
                         .set("mode", "warm")
                         .set("samples", timing.samples)
                         .set("median_us", timing.median_us)
                         .set("iqr_us", timing.iqr_us)
                         .set("p10", timing.p10_us)
                         .set("p90", timing.p90_us));
  json.set("tokens_per_s", rates.tokens_per_s).set("stages", stages_json(run.traces));
  if (report.trace) json.set("trace", trace_json(run));
  json.set("work", work_json(report.work));
  json.set("rate", Json::object().set("tflops", rates.tflops).set("gbps", rates.gbps));
  json.set("ceiling", ceiling_json(ceiling_of(report.ceilings, plan.act_format), rates));
  if (has_act_scales(plan)) json.set("act_scales", act_scales_json(plan, run.act_stats));
  json.set("check", run.check ? check_json(*run.check) : Json());
  return json;
}

// The run whose check is worst; nullptr without checks.
const PlanRun* worst_of(const RunReport& report) {
  const PlanRun* worst = nullptr;
  const auto key = [](const PlanRun& run) {
    return std::pair(!run.check->passed, run.check->whole.max_err_over_bound);
  };
  for (const PlanRun& run : report.runs) {
    if (run.check && (worst == nullptr || key(run) > key(*worst))) worst = &run;
  }
  return worst;
}

std::string head_text(const RunReport& report) {
  const ShardPlan& plan = *report.runs.front().plan;
  const Probe& probe = report.probe->probe;
  return fmt::format(
      "{}, layer {}: {} of {} experts active, {} tokens x {} slots, routing {}, seed {}\n"
      "{}, activations {}, hidden {}, inter {}, {}\n\n",
      plan.model, report.subject->layer(), report.work.active_experts, plan.experts, probe.tokens,
      probe.top_k, report.probe->routing, report.seed, name_of(plan.format), acts_text(plan),
      plan.hidden, plan.inter().original.value, plan.kernel);
}

std::string runs_text(const RunReport& report) {
  Table table({"tp", "ep", "kernel width", "bytes/rank", "tokens/s", "ms", "% of ceiling",
               "err/bound", "relative L2", "against unquantised"});
  for (const PlanRun& run : report.runs) {
    const Rates rates = rates_of(report, run);
    std::uint64_t bytes = 0;
    for (const RankPlan& rank : run.plan->ranks) bytes = std::max(bytes, rank.bytes_layer);
    const auto checked = [&](double LayerCheck::* value, const char* format) {
      return run.check ? fmt::format(fmt::runtime(format), run.check->whole.*value)
                       : std::string("-");
    };
    table.add_row({fmt::to_string(run.plan->tp), fmt::to_string(run.plan->ep),
                   fmt::to_string(run.plan->inter().kernel.value), format_count(bytes),
                   fmt::format("{:.1f}", rates.tokens_per_s),
                   fmt::format("{:.3f}", median_us(run) * 1e-3), percent_text(rates.percent),
                   checked(&LayerCheck::max_err_over_bound, "{:.3f}"),
                   checked(&LayerCheck::relative_l2, "{:.2e}"),
                   checked(&LayerCheck::unquantised_l2, "{:.2e}")});
  }
  return table.to_text();
}

std::string stages_text(const RunReport& report) {
  std::vector<std::string> head = {"stage, us"};
  for (const PlanRun& run : report.runs) head.push_back(fmt::format("tp {}", run.plan->tp));
  Table table(head);
  for (std::size_t i = 0; i < kStageCount; ++i) {
    const auto stage = static_cast<Stage>(i);
    std::vector<std::string> row = {std::string(name_of(stage))};
    for (const PlanRun& run : report.runs)
      row.push_back(fmt::format("{:.1f}", stage_median_us(run.traces, stage)));
    table.add_row(std::move(row));
  }
  return "\n" + table.to_text();
}

std::string scales_text(const RunReport& report) {
  std::vector<std::string> head = act_stage_head();
  head.insert(head.begin(), "tp");
  Table table(head);
  for (const PlanRun& run : report.runs) {
    for (const auto& [name, stage] :
         {std::pair{"x", &run.act_stats.x}, {"before down", &run.act_stats.act}}) {
      std::vector<std::string> row = act_stage_row(name, *stage);
      row.insert(row.begin(), fmt::to_string(run.plan->tp));
      table.add_row(std::move(row));
    }
  }
  return "\n" + table.to_text();
}

std::string trace_text(const RunReport& report) {
  std::vector<std::string> head = {"tp", "repeat", "total us"};
  for (std::size_t i = 0; i < kStageCount; ++i) head.emplace_back(name_of(static_cast<Stage>(i)));
  Table table(head);
  for (const PlanRun& run : report.runs) {
    for (std::size_t i = 0; i < run.traces.size(); ++i) {
      std::vector<std::string> row = {fmt::to_string(run.plan->tp), fmt::to_string(i),
                                      fmt::format("{:.1f}", run.samples_us[i])};
      for (const std::uint64_t stage_ns : run.traces[i].stage_ns)
        row.push_back(fmt::format("{:.1f}", static_cast<double>(stage_ns) * 1e-3));
      table.add_row(std::move(row));
    }
  }
  return "\n" + table.to_text();
}

}  // namespace

bool RunReport::passed() const {
  return std::ranges::all_of(runs,
                             [](const PlanRun& run) { return !run.check || run.check->passed; });
}

std::vector<Finding> rate_findings(const RunReport& report, const PlanRun& run) {
  std::vector<Finding> findings;
  const Rates rates = rates_of(report, run);
  const auto warn = [&](std::string_view what, std::string_view unit, double rate, double ceiling,
                        std::string hint) {
    if (!(rate > ceiling) || report.work.active_experts == 0) return;
    findings.push_back({.code = "MOXIE-R012",
                        .severity = Severity::warning,
                        .message = fmt::format("{} rate of tp {} is above this machine's measured "
                                               "ceiling",
                                               what, run.plan->tp),
                        .expected = fmt::format("at most {:.4g} {}", ceiling, unit),
                        .got = fmt::format("{:.4g}", rate),
                        .hint = std::move(hint)});
  };
  warn("the byte", "GB/s", rates.gbps, report.ceilings.read_gbps,
       "weights that stay in a cache are not read from memory");
  warn("the arithmetic", "Tflop/s", rates.tflops,
       ceiling_of(report.ceilings, run.plan->act_format).tflops,
       "the kernel multiplies with wider instructions than the ceiling's");
  return findings;
}

Json document_of(const RunReport& report) {
  const ShardPlan& plan = *report.runs.front().plan;
  const Probe& probe = report.probe->probe;
  Json problem;
  problem.set("tokens", probe.tokens)
      .set("hidden", plan.hidden)
      .set("inter", plan.inter().original.value);
  problem.set("experts", plan.experts)
      .set("top_k", probe.top_k)
      .set("format", name_of(plan.format))
      .set("act_format", name_of(plan.act_format));
  if (has_act_scales(plan)) problem.set("act_scale", name_of(plan.act_scale));
  problem.set("target", name_of(plan.target)).set("routing", report.probe->routing);
  problem.set("seed", report.seed).set("layer", report.subject->layer());
  Json runs = Json::array();
  for (const PlanRun& run : report.runs) runs.push_back(run_json(report, run));
  const PlanRun* worst = worst_of(report);
  Json document;
  document.set("schema", "moxie.run/1").set("ok", report.passed());
  document.set("path", report.path).set("model", plan.model).set("problem", std::move(problem));
  document.set("runs", std::move(runs));
  document.set("check", worst != nullptr ? check_json(*worst->check) : Json());
  return document.set("findings", to_json(report.findings));
}

std::string text_of(const RunReport& report, const Console& console) {
  std::string text = head_text(report) + runs_text(report);
  if (has_stage_times(report.runs.front().traces)) text += stages_text(report);
  if (has_act_scales(*report.runs.front().plan)) text += scales_text(report);
  if (report.trace) text += trace_text(report);
  text += fmt::format(
      "\nwork per call: {:.4g} Gflop, {} of weights, {} of activations\n"
      "ceilings measured now: {}\n",
      static_cast<double>(report.work.flops) * 1e-9, format_bytes(report.work.bytes_weights),
      format_bytes(report.work.bytes_acts), ceilings_text(report.ceilings));
  if (const PlanRun* worst = worst_of(report)) {
    const LayerCheck& check = worst->check->whole;
    for (const PlanRun& run : report.runs) {
      text += fmt::format(
          "stages of tp {}: gate_up {} of {} values outside their interval; down error/bound "
          "{:.3f}, "
          "relative L2 {:.1e}\n",
          run.plan->tp, run.check->acts_outside, run.check->acts,
          run.check->down_max_err_over_bound, run.check->down_relative_l2);
    }
    text += fmt::format(
        "verdict: {}; worst at tp {}, token {}, column {}: {:.6g}, expected {:.6g} within {:.3g}\n",
        console.verdict(report.passed()), worst->plan->tp, check.worst_token, check.worst_column,
        check.worst_got, check.worst_expected, check.worst_bound);
    if (report.subject->is_packed())
      text += "the reference is made of the set's own bytes; moxie verify proves those\n";
  }
  return text;
}

}  // namespace moxie::cli

// SPDX-License-Identifier: Apache-2.0
// Counting, dividing, and the parts of documents that hold the results.
#include "cli/figures.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <span>
#include <string_view>
#include <utility>

#include "moxie/catalog.hpp"

namespace moxie::cli {

namespace {

// Calls body(slot, expert-parallel rank) for the slots that are computed.
template <class Body>
void for_slots(const ShardPlan& plan, const Probe& probe, const Body& body) {
  const ExpertOwners owners = owners_of(plan);
  for (std::uint64_t token = 0; token < probe.tokens; ++token) {
    const auto ids = std::span(probe.topk_ids).subspan(token * probe.top_k, probe.top_k);
    for (std::uint64_t choice = 0; choice < probe.top_k; ++choice) {
      if (const auto owner = owners.owner(ids, choice)) body(token * probe.top_k + choice, *owner);
    }
  }
}

}  // namespace

bool holds(const ShardPlan& plan, std::int32_t expert) {
  return expert >= 0 && std::ranges::any_of(plan.ranks, [&](const RankPlan& rank) {
           return rank.experts.holds(static_cast<std::uint64_t>(expert));
         });
}

RunWork count_work(const ShardPlan& plan, const Probe& probe, DType output) {
  RunWork work;
  std::vector<bool> active(plan.experts * plan.ep);
  for_slots(plan, probe, [&](std::uint64_t slot, std::uint32_t ep_rank) {
    ++work.slots;
    active[ep_rank * plan.experts + static_cast<std::uint64_t>(probe.topk_ids[slot])] = true;
  });
  work.active_experts = static_cast<std::uint64_t>(std::ranges::count(active, true));
  const std::uint64_t weights = (plan.gated ? 3 : 2) * plan.hidden * plan.inter().original.value;
  const std::uint64_t group = plan.format == BlockFormat::mxfp4 ? 32 : 16;
  work.flops = 2 * work.slots * weights;
  work.bytes_weights = work.active_experts * (weights / 2 + weights / group);
  work.bytes_acts = probe.x.size() + probe.tokens * probe.hidden * bits_of(output) / 8;
  return work;
}

std::vector<std::uint64_t> slots_of_ranks(const ShardPlan& plan, const Probe& probe) {
  std::vector<std::uint64_t> of_group(plan.ep);
  for_slots(plan, probe, [&](std::uint64_t, std::uint32_t ep_rank) { ++of_group[ep_rank]; });
  std::vector<std::uint64_t> slots;
  for (const RankPlan& rank : plan.ranks) slots.push_back(of_group[rank.ep_rank]);
  return slots;
}

Ceilings ceilings_of(Target target, unsigned threads) {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  if (target != Target::cpu) return {.read_gbps = kNone, .fp32_tflops = kNone};
  return measure_ceilings(threads == 0 ? host_cpu().threads : threads);
}

std::string percent_text(double percent) {
  return std::isfinite(percent) ? fmt::format("{:.1f}", percent) : "-";
}

std::string ceilings_text(const Ceilings& ceilings) {
  if (!std::isfinite(ceilings.read_gbps)) return "not measured on a GPU";
  std::string text = fmt::format("{:.1f} GB/s read", ceilings.read_gbps);
  const auto add = [&](double rate, std::string_view what) {
    if (rate > 0) text += fmt::format(", {:.3f} {}", rate, what);
  };
  add(ceilings.bf16_tflops, "Tflop/s bf16");
  add(ceilings.vnni_tops, "Top/s int8 by VNNI");
  add(ceilings.maddubs_tops, "Top/s int8 by AVX2");
  add(ceilings.fp32_tflops, "Tflop/s fp32 with baseline instructions");
  return text;
}

PlanCeiling ceiling_of(const Ceilings& ceilings, ActFormat act_format) {
  const auto first_of = [&](std::initializer_list<double> rates) {
    for (const double rate : rates) {
      if (rate > 0) return rate;
    }
    return ceilings.fp32_tflops;
  };
  PlanCeiling ceiling{.read_gbps = ceilings.read_gbps, .tflops = ceilings.fp32_tflops};
  const double int8 = first_of({ceilings.vnni_tops, ceilings.maddubs_tops});
  if (act_format == ActFormat::bf16) ceiling.tflops = first_of({ceilings.bf16_tflops});
  if (act_format == ActFormat::int8) ceiling.tflops = int8;
  if (act_format == ActFormat::int8x2) ceiling.tflops = int8 / 2;
  return ceiling;
}

Rates rates_of(const RunWork& work, const PlanCeiling& ceiling, std::uint64_t tokens,
               double median_us) {
  const double seconds = median_us * 1e-6;
  if (!(seconds > 0)) return {};
  const auto flops = static_cast<double>(work.flops);
  const auto bytes = static_cast<double>(work.bytes_weights + work.bytes_acts);
  const double read_s = bytes / (ceiling.read_gbps * 1e9);
  const double flops_s = flops / (ceiling.tflops * 1e12);
  const double least = read_s < flops_s ? flops_s : read_s;  // NaN without ceilings
  return {.tokens_per_s = static_cast<double>(tokens) / seconds,
          .tflops = flops / seconds * 1e-12,
          .gbps = bytes / seconds * 1e-9,
          .percent = least / seconds * 100,
          .reads = read_s > flops_s};
}

double stage_median_us(std::span<const Trace> traces, Stage stage) {
  std::vector<double> samples;
  for (const Trace& trace : traces) samples.push_back(static_cast<double>(trace[stage]) * 1e-3);
  return summarise(std::move(samples)).median_us;
}

Json number_or_null(double value) { return std::isfinite(value) ? Json(value) : Json(); }

CheckFigures figures_of(const CheckedRun& checked) {
  CheckFigures figures{.passed = checked.passed(),
                       .whole = checked.whole,
                       .gate_up_passed = checked.acts_outside == 0,
                       .acts = checked.acts,
                       .acts_outside = checked.acts_outside,
                       .down_passed = checked.stages.max_err_over_bound <= 1,
                       .down_max_err_over_bound = checked.stages.max_err_over_bound,
                       .down_relative_l2 = checked.stages.relative_l2,
                       .clamped = checked.reference->clamped,
                       .reference_s = checked.reference_s,
                       .tokens = checked.tokens};
  figures.whole.bound = {};
  figures.whole.findings = {};
  return figures;
}

Json check_json(const CheckFigures& figures) {
  const LayerCheck& check = figures.whole;
  Json worst;
  worst.set("token", check.worst_token).set("column", check.worst_column);
  worst.set("expected", number_or_null(check.worst_expected))
      .set("got", number_or_null(check.worst_got))
      .set("bound", number_or_null(check.worst_bound));
  Json gate_up;
  gate_up.set("name", name_of(Stage::gate_up)).set("passed", figures.gate_up_passed);
  gate_up.set("values", figures.acts).set("outside", figures.acts_outside);
  Json down;
  down.set("name", name_of(Stage::down)).set("passed", figures.down_passed);
  down.set("max_err_over_bound", number_or_null(figures.down_max_err_over_bound))
      .set("relative_l2", number_or_null(figures.down_relative_l2));
  Json stages = Json::array();
  stages.push_back(std::move(gate_up));
  stages.push_back(std::move(down));
  Json json;
  json.set("passed", figures.passed)
      .set("max_err_over_bound", number_or_null(check.max_err_over_bound))
      .set("worst", std::move(worst));
  json.set("relative_l2", number_or_null(check.relative_l2))
      .set("worst_row", number_or_null(check.worst_row))
      .set("norm_ratio", number_or_null(check.norm_ratio))
      .set("unquantised_l2", number_or_null(check.unquantised_l2));
  json.set("stages", std::move(stages)).set("clamped", figures.clamped);
  return json.set("reference_s", figures.reference_s);
}

bool has_stage_times(std::span<const Trace> traces) {
  return std::ranges::any_of(traces, [](const Trace& trace) {
    return std::ranges::any_of(trace.stage_ns, [](std::uint64_t ns) { return ns > 0; });
  });
}

Json stages_json(std::span<const Trace> traces) {
  const bool timed = has_stage_times(traces);
  Json stages = Json::array();
  for (std::size_t i = 0; i < kStageCount; ++i) {
    const auto stage = static_cast<Stage>(i);
    stages.push_back(Json::object()
                         .set("name", name_of(stage))
                         .set("median_us", timed ? Json(stage_median_us(traces, stage)) : Json()));
  }
  return stages;
}

Json work_json(const RunWork& work) {
  return Json::object()
      .set("flops", work.flops)
      .set("bytes_weights", work.bytes_weights)
      .set("bytes_acts", work.bytes_acts);
}

Json ceiling_json(const PlanCeiling& ceiling, const Rates& rates) {
  return Json::object()
      .set("gbps_measured", number_or_null(ceiling.read_gbps))
      .set("tflops_measured", number_or_null(ceiling.tflops))
      .set("percent", number_or_null(rates.percent));
}

Json kernels_json(const ShardPlan& plan, bool routed) {
  return Json::object()
      .set("route", routed ? Json(plan.route_kernel) : Json())
      .set("experts", plan.kernel);
}

}  // namespace moxie::cli

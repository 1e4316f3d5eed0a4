// SPDX-License-Identifier: Apache-2.0
// All columns in every record, so that a line of a file stands alone.
#include "cli/bench_record.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <utility>

#include "cli/act_scales.hpp"
#include "moxie/device.hpp"
#include "moxie/report.hpp"

namespace moxie::cli {

namespace {

Json problem_json(const BenchSetting& setting, const BenchPoint& point) {
  const ShardPlan& plan = *point.whole;
  Json problem;
  problem.set("model", setting.model).set("tokens", point.tokens).set("hidden", plan.hidden);
  problem.set("inter", plan.inter().original.value).set("experts", plan.experts);
  problem.set("top_k", point.top_k).set("tp", plan.tp).set("ep", plan.ep);
  if (plan.placement.kind != PlacementKind::contiguous) {
    problem.set("placement", setting.placement.empty() ? std::string(name_of(plan.placement.kind))
                                                       : setting.placement);
  }
  problem.set("format", name_of(plan.format)).set("act_format", name_of(plan.act_format));
  if (has_act_scales(plan)) problem.set("act_scale", name_of(plan.act_scale));
  problem.set("target", name_of(plan.target)).set("routing", point.routing);
  problem.set("seed", setting.seed);
  if (setting.makes_weights && setting.weights == BenchWeights::random)
    problem.set("weights", name_of(setting.weights));
  if (!setting.rank) return problem;
  const RankPlan& alone = point.plan->ranks.front();
  return problem.set("rank", *setting.rank)
      .set("rank_inter", alone.slice.rows.count.value)
      .set("rank_experts", alone.experts.count());
}

Json sets_json(const BenchPoint& point) {
  Json sets = Json::array();
  for (const BenchSetWork& set : point.sets) {
    sets.push_back(Json::object()
                       .set("seed", set.seed)
                       .set("slots", set.work.slots)
                       .set("active_experts", set.work.active_experts)
                       .set("bytes_weights", set.work.bytes_weights));
  }
  return sets;
}

Json bench_check_json(const BenchPoint& point) {
  Json check = check_json(point.check);
  return check.set("max_tile_err", number_or_null(point.check.whole.worst_row))
      .set("bound", number_or_null(point.check.whole.worst_bound))
      .set("tokens", point.check.tokens);
}

Json noise_json(std::uint64_t rejected_samples, bool quiet) {
  return Json::object()
      .set("limit_pct", 100 * kMostCoreWait)
      .set("rejected_samples", rejected_samples)
      .set("quiet", quiet);
}

// Of calls: with every rate that was measured.
Json calls_ceiling_json(const BenchSetting& setting, const PlanCeiling& ceiling,
                        const Rates& rates) {
  Json json = ceiling_json(ceiling, rates);
  if (!std::isfinite(ceiling.read_gbps)) return json;
  const Ceilings& all = setting.ceilings;
  const auto rate = [](double value) { return value > 0 ? Json(value) : Json(); };
  json.set("nearer", rates.percent > 0 ? Json(rates.reads ? "read" : "arithmetic") : Json());
  json.set("fp32_tflops", rate(all.fp32_tflops)).set("bf16_tflops", rate(all.bf16_tflops));
  return json.set("vnni_tops", rate(all.vnni_tops)).set("maddubs_tops", rate(all.maddubs_tops));
}

Json timing_json(const BenchPoint& point) {
  if (point.samples_us.empty()) return {};
  const SampleSummary summary = summarise(point.samples_us);
  Json timing;
  timing.set("mode", name_of(point.mode)).set("samples", summary.samples);
  timing.set("median_us", summary.median_us).set("iqr_us", summary.iqr_us);
  timing.set("p10", summary.p10_us).set("p90", summary.p90_us);
  if (point.mode == BenchMode::graph) {
    timing.set("burst_us", number_or_null(burst_median_us(point)));
    timing.set("burst_samples", point.burst_us.size());
    timing.set("eager_us", point.eager_us).set("sets", point.sets.size());
    timing.set("host_us", point.host_us);
  } else {
    timing.set("host_us", summary.median_us);
  }
  timing.set("passes_differ_pct", point.passes_differ_pct);
  timing.set("rejected", point.passes_differ_pct > kMostPassesDiffer);
  if (!point.paired) return timing;
  timing.set("read_fraction", number_or_null(point.paired->read_fraction));
  timing.set("read_gbps", point.paired->read_gbps);
  return timing.set("noise", noise_json(point.paired->rejected_samples, point.paired->quiet));
}

// What a GPU reads and does at least, and how far a graph is from it.
Json graph_ceiling_json(const BenchSetting& setting, const BenchPoint& point, double median_us) {
  const BenchFloor& floor = *point.floor;
  Json curve = Json::array();
  for (const ReadPoint& at : setting.curve.points)
    curve.push_back(Json::object().set("bytes", at.bytes).set("us", at.us));
  const double ratio = median_us > 0 ? median_us / floor.us : std::nan("");
  Json ceiling;
  ceiling.set("gbps_measured",
              number_or_null(static_cast<double>(point.work.bytes_weights) * 1e-3 / floor.read_us));
  ceiling.set("tflops_measured", Json()).set("percent", number_or_null(100 / ratio));
  ceiling.set("floor_us", number_or_null(floor.us)).set("ratio", number_or_null(ratio));
  ceiling.set("burst_ratio", number_or_null(burst_median_us(point) / floor.us));
  ceiling.set("read_us", number_or_null(floor.read_us));
  ceiling.set("flops_us", floor.stated_tflops ? Json(floor.flops_us) : Json());
  ceiling.set("tflops_stated", floor.stated_tflops ? Json(*floor.stated_tflops) : Json());
  ceiling.set("launch_us", setting.launch_us);
  return ceiling.set("read_curve", std::move(curve));
}

Json peer_json(const PeerFigures& peer, double our_median_us, bool on_cpu) {
  Json json;
  json.set("arm", peer.arm).set("versions", peer.versions);
  json.set("relative", number_or_null(peer.relative)).set("limit", peer.limit);
  if (peer.arms.is_array()) json.set("arms", peer.arms);
  json.set("outside_timed_region",
           on_cpu ? "copying x, ids and weights" : "sorting slots by expert");
  if (peer.samples_us.empty()) return json.set("timing", Json()).set("ratio", Json());
  const SampleSummary summary = summarise(peer.samples_us);
  Json timing;
  timing.set("samples", summary.samples).set("median_us", summary.median_us);
  timing.set("iqr_us", summary.iqr_us).set("p10", summary.p10_us).set("p90", summary.p90_us);
  timing.set("passes_differ_pct", peer.passes_differ_pct)
      .set("rejected", peer.passes_differ_pct > kMostPassesDiffer);
  if (on_cpu) timing.set("noise", noise_json(peer.rejected_samples, peer.quiet));
  return json.set("timing", std::move(timing)).set("ratio", summary.median_us / our_median_us);
}

// The line that measures this point alone.
std::string repro_of(const BenchSetting& setting, const BenchPoint& point) {
  const ShardPlan& plan = *point.whole;
  std::string line = fmt::format(
      "moxie bench --problem {} --tokens {} --tp {} --ep {} --format {} --act-format {} "
      "--target {} --top-k {} --routing {} --seed {}",
      shell_word(setting.model), point.tokens, plan.tp, plan.ep, name_of(plan.format),
      name_of(plan.act_format), name_of(plan.target), point.top_k, shell_word(point.routing),
      setting.seed);
  if (has_act_scales(plan)) line += fmt::format(" --act-scale {}", name_of(plan.act_scale));
  if (has_act_scales(plan) && plan.act_scale == ActScale::warmup)
    line += fmt::format(" --act-margin {}", plan.act_margin);
  if (setting.kernel_align) line += fmt::format(" --kernel-align {}", *setting.kernel_align);
  if (setting.batch_invariant) line += " --batch-invariant";
  if (!setting.placement.empty())
    line += fmt::format(" --placement {}", shell_word(setting.placement));
  if (setting.threads > 0) line += fmt::format(" --threads {}", setting.threads);
  if (setting.experts) line += fmt::format(" --experts {}", *setting.experts);
  if (setting.hidden) line += fmt::format(" --hidden {}", *setting.hidden);
  if (setting.inter) line += fmt::format(" --inter {}", *setting.inter);
  if (setting.rank) line += fmt::format(" --rank {}", *setting.rank);
  if (setting.makes_weights) line += fmt::format(" --weights {}", name_of(setting.weights));
  if (plan.target != Target::cpu) line += fmt::format(" --mode {}", name_of(setting.way));
  if (setting.peer) line += fmt::format(" --vs {}", name_of(*setting.peer));
  if (!point.sets.empty()) line += fmt::format(" --sets {}", point.sets.size());
  return line;
}

}  // namespace

std::string shell_word(const std::string& word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:=,+@";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

std::string_view name_of(BenchMode mode) {
  return mode == BenchMode::cold ? "cold" : mode == BenchMode::warm ? "warm" : "graph";
}
std::string_view name_of(BenchWay way) { return way == BenchWay::eager ? "eager" : "graph"; }
std::string_view name_of(BenchWeights weights) {
  return weights == BenchWeights::synth ? "synth" : "random";
}

std::string_view name_of(BenchPeer peer) {
  return peer == BenchPeer::torch ? "torch" : peer == BenchPeer::humming ? "humming" : "ggml";
}

Json device_json() {
  const GpuReport report = list_gpus();
  if (report.gpus.empty()) return {};
  const GpuInfo& gpu = report.gpus[report.current];
  Json device;
  device.set("name", gpu.name).set("cc", fmt::format("{}.{}", gpu.major, gpu.minor));
  device.set("sms", gpu.multiprocessors).set("mem_bytes", gpu.memory_bytes);
  return device.set("driver", report.driver).set("runtime", report.runtime);
}

RunWork mean_work(const std::vector<BenchSetWork>& sets) {
  RunWork mean;
  const auto average = [&](std::uint64_t RunWork::* field) {
    std::uint64_t sum = sets.size() / 2;
    for (const BenchSetWork& set : sets) sum += set.work.*field;
    mean.*field = sets.empty() ? 0 : sum / sets.size();
  };
  for (const auto field : {&RunWork::slots, &RunWork::active_experts, &RunWork::flops,
                           &RunWork::bytes_weights, &RunWork::bytes_acts})
    average(field);
  return mean;
}

Json record_of(const BenchSetting& setting, const BenchPoint& point) {
  const auto now =
      std::chrono::time_point_cast<std::chrono::seconds>(std::chrono::system_clock::now());
  const double median = point.samples_us.empty() ? 0 : summarise(point.samples_us).median_us;
  const PlanCeiling ceiling = ceiling_of(setting.ceilings, point.plan->act_format);
  const Rates rates = rates_of(point.work, ceiling, point.tokens, median);
  Json slots = Json::array();
  for (const std::uint64_t count : point.rank_slots) slots.push_back(count);
  Json record;
  record.set("schema", "moxie.bench/1").set("ok", point.check.passed);
  record.set("command", setting.command).set("repro", repro_of(setting, point));
  record.set("time_utc", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(now)));
  record.set("build", setting.build).set("host", setting.host).set("device", setting.device);
  record.set("problem", problem_json(setting, point));
  record.set("kernels", kernels_json(*point.plan, point.routing == "model"));
  record.set("layout", name_of(point.plan->layout.kind));
  record.set("kernel_width", point.plan->inter().kernel.value).set("threads", setting.threads_used);
  record.set("rank_slots", std::move(slots)).set("active_experts", point.work.active_experts);
  if (!point.sets.empty()) record.set("sets", sets_json(point));
  record.set("check", bench_check_json(point)).set("timing", timing_json(point));
  record.set("stages", stages_json(point.traces)).set("work", work_json(point.work));
  record.set("rate", Json::object().set("tflops", rates.tflops).set("gbps", rates.gbps));
  record.set("ceiling", point.floor ? graph_ceiling_json(setting, point, median)
                                    : calls_ceiling_json(setting, ceiling, rates));
  if (point.peer)
    record.set("vs", peer_json(*point.peer, median, point.plan->target == Target::cpu));
  return record.set("findings", to_json(point.findings));
}

std::string identity_of(const Json& record) {
  const auto part = [&](std::string_view key) {
    const Json* value = record.find(key);
    return value != nullptr ? value->dump_compact() : std::string();
  };
  const Json* timing = record.find("timing");
  const Json* mode = timing != nullptr && timing->is_object() ? timing->find("mode") : nullptr;
  return part("problem") + part("kernels") + part("kernel_width") + part("threads") +
         (mode != nullptr ? mode->as_string() : "");
}

double burst_median_us(const BenchPoint& point) {
  return point.burst_us.empty() ? std::nan("") : summarise(point.burst_us).median_us;
}

double median_us_of(const Json& record) {
  const Json* timing = record.find("timing");
  const Json* median =
      timing != nullptr && timing->is_object() ? timing->find("median_us") : nullptr;
  return median != nullptr ? median->as_double() : 0;
}

}  // namespace moxie::cli

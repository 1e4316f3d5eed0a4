// SPDX-License-Identifier: Apache-2.0
// Counts of both stages, and the distance to the same layer with bf16 activations.
#include "cli/bench_sweep.hpp"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "cli/act_scales.hpp"
#include "cli/layer_call.hpp"
#include "moxie/report.hpp"

namespace moxie::cli {

namespace {

constexpr std::uint64_t kSamples = 3;  // beside the one that warms up
constexpr int kGrowths[] = {1, 2, 4, 8};

// The sample with every activation of x that many times as large, which is exact.
Probe grown(const Probe& sample, int growth) {
  Probe probe = sample;
  for (std::size_t i = 0; i < probe.x.size(); i += 2) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, probe.x.data() + i, sizeof bits);
    const auto value = std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
    const auto larger = std::bit_cast<std::uint32_t>(value * static_cast<float>(growth));
    bits = static_cast<std::uint16_t>(larger >> 16);
    std::memcpy(probe.x.data() + i, &bits, sizeof bits);
  }
  return probe;
}

std::vector<float> result_of(const MoeLayer& layer, const Probe& probe, ActStats* stats) {
  std::vector<float> y(probe.tokens * probe.hidden, std::numeric_limits<float>::quiet_NaN());
  HostCall call(layer, probe.tokens);
  std::uint32_t flags = 0;
  LayerIo io = io_of(probe, y.data(), DType::f32, &flags);
  io.act_stats = stats;
  call_layer(call, io);
  return y;
}

void add(ActStage& to, const ActStage& from) {
  to.blocks += from.blocks;
  to.saturated += from.saturated;
  to.underflowed += from.underflowed;
  to.not_numbers += from.not_numbers;
  to.guarded += from.guarded;
  to.least_scale = from.least_scale;  // frozen: the same in every call
  to.most_scale = from.most_scale;
}

struct Point {
  std::uint64_t margin = 0;
  int growth = 1;
  ActStats stats;
  double error_squares = 0;
  double squares = 0;

  void add(const ActStats& from, const std::vector<float>& got, const std::vector<float>& expected);
  [[nodiscard]] double relative_l2() const { return std::sqrt(error_squares / squares); }
};

void Point::add(const ActStats& from, const std::vector<float>& got,
                const std::vector<float>& expected) {
  cli::add(stats.x, from.x);
  cli::add(stats.act, from.act);
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double error = static_cast<double>(got[i]) - static_cast<double>(expected[i]);
    error_squares += error * error;
    squares += static_cast<double>(expected[i]) * static_cast<double>(expected[i]);
  }
}

// What each margin freezes after a warm-up on this sample.
std::vector<std::vector<ActScales>> scales_of(const MoeLayer& layer, const Probe& sample,
                                              const std::vector<std::uint64_t>& margins) {
  std::vector<float> y(sample.tokens * sample.hidden);
  HostCall call(layer, sample.tokens);
  std::uint32_t flags = 0;
  std::vector<std::vector<ActScales>> scales;
  for (const std::uint64_t margin : margins) {
    scales.push_back(
        call.warm_up(io_of(sample, y.data(), DType::f32, &flags), static_cast<double>(margin)));
  }
  return scales;
}

Json sweep_record(const BenchSetting& setting, const ShardPlan& plan, std::uint64_t tokens,
                  const Point& point) {
  Json problem;
  problem.set("model", setting.model).set("tokens", tokens).set("hidden", plan.hidden);
  problem.set("inter", plan.inter().original.value).set("experts", plan.experts);
  problem.set("tp", plan.tp).set("ep", plan.ep).set("format", name_of(plan.format));
  problem.set("act_format", name_of(plan.act_format)).set("seed", setting.seed);
  Json record;
  record.set("schema", "moxie.bench/1").set("ok", true).set("sweep", "act-margin");
  record.set("command", setting.command).set("build", setting.build).set("host", setting.host);
  record.set("problem", std::move(problem)).set("margin", point.margin);
  record.set("growth", point.growth).set("samples", kSamples);
  ShardPlan with_margin = plan;
  with_margin.act_margin = static_cast<double>(point.margin);
  record.set("act_scales", act_scales_json(with_margin, point.stats));
  return record.set("relative_l2", point.relative_l2()).set("findings", Json::array());
}

std::vector<std::string> row_of(const ShardPlan& plan, const Point& point) {
  return {fmt::to_string(plan.tp),
          fmt::to_string(point.margin),
          fmt::format("x{}", point.growth),
          fmt::to_string(point.stats.x.saturated),
          fmt::to_string(point.stats.x.underflowed),
          fmt::to_string(point.stats.act.saturated),
          fmt::to_string(point.stats.act.underflowed),
          fmt::format("{:.4f}", point.relative_l2())};
}

void stop_if_interrupted() {
  if (interrupted())
    throw Error(ErrorCode::interrupted, {.code = "MOXIE-U130", .message = "interrupted"});
}

}  // namespace

Probe ActMarginSweep::sample(std::uint64_t number) const {
  RunArgs args = args_;
  args.seed += number;
  return make_run_probe(args, subject_).probe;
}

void ActMarginSweep::run(const std::vector<std::uint64_t>& margins) const {
  const Probe first = sample(0);
  Table table({"tp", "margin", "growth", "x saturated", "x underflowed", "act saturated",
               "act underflowed", "relative L2"});
  for (const ShardPlan& plan : subject_.plans()) {
    ShardPlan plain = plan;
    plain.act_format = ActFormat::bf16;
    const MoeLayer exact(plain, subject_.spec(), subject_.sources(plain));
    MoeLayer layer(plan, subject_.spec(), subject_.sources(plan));
    const std::vector<std::vector<ActScales>> scales = scales_of(layer, first, margins);
    for (const int growth : kGrowths) {
      std::vector<Point> points;
      for (const std::uint64_t margin : margins)
        points.push_back({.margin = margin, .growth = growth, .stats = {}});
      for (std::uint64_t number = 1; number <= kSamples; ++number) {
        const Probe probe = grown(sample(number), growth);
        const std::vector<float> expected = result_of(exact, probe, nullptr);
        for (std::size_t i = 0; i < points.size(); ++i) {
          stop_if_interrupted();
          layer.freeze(scales[i]);
          ActStats stats;
          const std::vector<float> got = result_of(layer, probe, &stats);
          points[i].add(stats, got, expected);
        }
      }
      for (const Point& point : points) {
        console_.print_line(sweep_record(setting_, plan, first.tokens, point));
        table.add_row(row_of(plan, point));
      }
    }
  }
  const ShardPlan& plan = subject_.plans().front();
  console_.print_text(fmt::format(
      "{}: {} experts, hidden {}, inter {}, {}, activations nvfp4, scales warmup, {}\n"
      "{} tokens a sample; warm-up on seed {}, calls on {} other seeds, grown as stated.\n"
      "Blocks of 16 of all these calls; relative L2 against the same layer with bf16 "
      "activations.\n\n{}",
      setting_.model, plan.experts, plan.hidden, plan.inter().original.value, name_of(plan.format),
      plan.kernel, first.tokens, args_.seed, kSamples, table.to_markdown()));
}

}  // namespace moxie::cli

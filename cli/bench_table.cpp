// SPDX-License-Identifier: Apache-2.0
// Milliseconds and ceilings for calls, microseconds and floors for graphs.
#include "cli/bench_table.hpp"

#include <fmt/format.h>

#include <cmath>
#include <utility>
#include <vector>

#include "cli/act_scales.hpp"
#include "cli/bench_floor.hpp"

namespace moxie::cli {

namespace {

std::vector<std::string> head_of(BenchWay way, std::optional<BenchPeer> peer) {
  if (way == BenchWay::eager) {
    std::vector<std::string> head = {"tokens",       "tp",       "mode",         "ms, median [IQR]",
                                     "tokens/s",     "GB/s",     "of read test", "Tflop/s",
                                     "% of ceiling", "err/bound"};
    if (peer) {
      head.push_back(fmt::format("{} ms", name_of(*peer)));
      head.push_back(fmt::format("{} / ours, > 1: ours is faster", name_of(*peer)));
    }
    return head;
  }
  std::vector<std::string> head = {"tokens",   "tp",    "mode",     "us, median [IQR]",
                                   "floor us", "ratio", "burst us", "burst ratio",
                                   "experts",  "GB/s",  "Tflop/s",  "err/bound"};
  if (peer) {
    head.push_back(fmt::format("{} us", name_of(*peer)));
    head.push_back(fmt::format("{} / ours, > 1: ours is faster", name_of(*peer)));
  }
  return head;
}

}  // namespace

BenchTable::BenchTable(BenchWay way, std::optional<BenchPeer> peer, const Ceilings& ceilings)
    : way_(way), peer_(peer), ceilings_(ceilings), table_(head_of(way, peer)) {}

void BenchTable::add(const BenchPoint& point) {
  last_ = point.plan;
  const bool timed = !point.samples_us.empty();
  const SampleSummary summary = timed ? summarise(point.samples_us) : SampleSummary{};
  const Rates rates = rates_of(point.work, ceiling_of(ceilings_, point.plan->act_format),
                               point.tokens, summary.median_us);
  std::vector<std::string> row = {fmt::to_string(point.tokens), fmt::to_string(point.whole->tp),
                                  std::string(name_of(point.mode))};
  const auto figure = [&](std::string text) { row.push_back(timed ? std::move(text) : "-"); };
  if (way_ == BenchWay::graph) {
    const double floor_us = point.floor ? point.floor->us : 0;
    figure(fmt::format("{:.1f} [{:.1f}]", summary.median_us, summary.iqr_us));
    row.push_back(fmt::format("{:.1f}", floor_us));
    figure(fmt::format("{:.3f}", summary.median_us / floor_us));
    const double burst_us = burst_median_us(point);
    figure(fmt::format("{:.1f}", burst_us));
    figure(fmt::format("{:.3f}", burst_us / floor_us));
    row.push_back(fmt::to_string(point.work.active_experts));
  } else {
    figure(fmt::format("{:.3f} [{:.3f}]", summary.median_us * 1e-3, summary.iqr_us * 1e-3));
    figure(fmt::format("{:.1f}", rates.tokens_per_s));
  }
  figure(fmt::format("{:.2f}", rates.gbps));
  if (way_ == BenchWay::eager) {
    const bool known = point.paired && std::isfinite(point.paired->read_fraction);
    row.push_back(known ? fmt::format("{:.3f}", point.paired->read_fraction) : "-");
  }
  figure(fmt::format("{:.4f}", rates.tflops));
  if (way_ == BenchWay::eager) figure(percent_text(rates.percent));
  row.push_back(fmt::format("{:.3f}", point.check.whole.max_err_over_bound));
  if (peer_) {
    const bool ran = point.peer && !point.peer->samples_us.empty();
    const double theirs = ran ? summarise(point.peer->samples_us).median_us : 0;
    const bool graph = way_ == BenchWay::graph;
    row.push_back(!ran    ? "-"
                  : graph ? fmt::format("{:.1f}", theirs)
                          : fmt::format("{:.3f}", theirs * 1e-3));
    row.push_back(ran ? fmt::format("{:.3f}", theirs / summary.median_us) : "-");
  }
  table_.add_row(std::move(row));
}

std::string BenchTable::method(const BenchSetting& setting) const {
  if (way_ == BenchWay::eager) {
    return fmt::format(
        "Inside the timed region: one call, slots to bf16 result; outside: routing, packing, "
        "checks.\nOf read test: weight bytes a second over those of the read tests beside each "
        "call.\nCeilings measured in this process: {}.",
        ceilings_text(setting.ceilings));
  }
  std::string text =
      "Replays of a graph of independent routing sets, divided by their number; a call is timed "
      "from ids to bf16 result.\nBurst: replays of the first 60 ms behind a rest of 0.3 s; the "
      "others go on until a card at its power limit has lowered its clock.\nRatio: median / floor, "
      "1 is the best. Floor: reading the weights "
      "of the experts in use, by the curve measured in this process";
  if (const std::optional<double> rate = stated_tflops(*last_))
    text += fmt::format(", or their products at {} Tflop/s as stated for an H200", *rate);
  text += ".\nRead curve:";
  for (const ReadPoint& at : setting.curve.points) {
    text += fmt::format(" {:.1f} MB {:.1f} us{}", static_cast<double>(at.bytes) * 1e-6, at.us,
                        &at == &setting.curve.points.back() ? "." : ",");
  }
  if (peer_) text += "\nThe peer's sorting of slots by expert is outside of its time.";
  return text;
}

std::string BenchTable::text(const BenchSetting& setting) const {
  if (last_ == nullptr) return {};
  const ShardPlan& plan = *last_;
  const std::string rank = setting.rank
                               ? fmt::format(", rank {} alone with {} experts", *setting.rank,
                                             plan.ranks.front().experts.count())
                               : "";
  return fmt::format("{}: {} experts, hidden {}, inter {}{}, {}, activations {}, {}\n{}\n\n{}",
                     setting.model, plan.experts, plan.hidden, plan.inter().original.value, rank,
                     name_of(plan.format), acts_text(plan), plan.kernel, method(setting),
                     table_.to_markdown());
}

}  // namespace moxie::cli

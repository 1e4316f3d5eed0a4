// SPDX-License-Identifier: Apache-2.0
// Calls, replays, and passes of samples.
#include "cli/bench_timing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <span>
#include <thread>
#include <utility>

#include "cli/layer_call.hpp"

namespace moxie::cli {

namespace {

// A pass ends after so many seconds even with samples missing; the record says how many there were.
constexpr double kPassSeconds = 10;
constexpr std::uint64_t kLeastSamples = 3;
constexpr int kMostTries = 3;  // of a point whose two passes differ

// The host's data of every set. y is never touched: results stay on the device until they are asked
// for.
std::vector<LayerIo> ios_of(const BenchSets& sets, std::uint16_t& any, std::uint32_t& flags) {
  std::vector<LayerIo> ios;
  for (const Probe& probe : sets.probes) ios.push_back(io_of(probe, &any, DType::bf16, &flags));
  return ios;
}

DeviceReplay replay_of(const MoeLayer& layer, const BenchSets& sets) {
  std::uint16_t any = 0;
  std::uint32_t flags = 0;
  const std::vector<LayerIo> ios = ios_of(sets, any, flags);
  return {layer, ios};
}

}  // namespace

bool is_rounded(const std::vector<std::uint16_t>& bf16, const std::vector<float>& exact) {
  if (bf16.size() != exact.size()) return false;
  for (std::size_t i = 0; i < bf16.size(); ++i) {
    const auto got = std::bit_cast<float>(static_cast<std::uint32_t>(bf16[i]) << 16);
    if (!(std::abs(got - exact[i]) <= std::ldexp(std::abs(exact[i]), -8))) return false;
  }
  return true;
}

double TimedLayer::call(std::size_t set) {
  LayerIo io = io_of(sets_.probes[set], y_.data(), DType::bf16, &flags_);
  io.trace = &trace_;
  return call_layer(call_, io);
}

ReplayedLayer::ReplayedLayer(const MoeLayer& layer, const BenchSets& sets)
    : elements_(sets.probes.front().tokens * sets.probes.front().hidden),
      replay_(replay_of(layer, sets)) {}

std::vector<ReplayedLayer::Result> ReplayedLayer::results() const {
  std::vector<Result> results(replay_.sets());
  for (std::size_t set = 0; set < results.size(); ++set) {
    results[set].y.resize(elements_);
    results[set].flags =
        replay_.copy_result(set, std::as_writable_bytes(std::span(results[set].y)));
  }
  return results;
}

std::vector<Finding> ReplayedLayer::compare() {
  replay_.clear_results();
  (void)replay_.call_us();
  eager_ = results();
  replay_.clear_results();
  (void)replay_.replay_us();
  const std::vector<Result> replayed = results();
  std::vector<Finding> findings;
  for (std::size_t set = 0; set < replayed.size(); ++set) {
    if (replayed[set] == eager_[set]) continue;
    std::uint64_t differ = 0;
    for (std::size_t i = 0; i < elements_; ++i)
      differ += replayed[set].y[i] == eager_[set].y[i] ? 0 : 1;
    findings.push_back({.code = "MOXIE-R021",
                        .message = fmt::format("set {} is replayed with another result", set),
                        .expected = "the bits and flags of the eager call",
                        .got = fmt::format("{} of {} elements differ, flags {} and {}", differ,
                                           elements_, eager_[set].flags, replayed[set].flags)});
  }
  return findings;
}

double ReplayedLayer::host_us() {
  std::vector<double> times;
  while (times.size() < kHostPasses)
    times.push_back(replay_.host_us() / static_cast<double>(replay_.sets()));
  return summarise(std::move(times)).median_us;
}

std::vector<double> ReplayedLayer::burst_us() {
  std::this_thread::sleep_for(std::chrono::duration<double>(kRestSeconds));
  std::vector<double> times;
  const Stopwatch watch;
  while (times.size() < kBurstSamples || watch.seconds() < kBurstSeconds)
    times.push_back(replay_us());
  return times;
}

void ReplayedLayer::warm() {
  const Stopwatch watch;
  do {
    (void)replay_.replay_us();
  } while (watch.seconds() < kWarmSeconds);
}

void measure_passes(std::uint64_t samples, const std::function<double()>& sample,
                    BenchPoint& point) {
  const auto pass = [&] {
    std::vector<double> times;
    const Stopwatch watch;
    for (std::uint64_t i = 0; i < std::max((samples + 1) / 2, kLeastSamples); ++i) {
      if (i >= kLeastSamples && watch.seconds() > kPassSeconds) break;
      if (interrupted())
        throw Error(ErrorCode::interrupted, {.code = "MOXIE-U130", .message = "interrupted"});
      times.push_back(sample());
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

}  // namespace moxie::cli

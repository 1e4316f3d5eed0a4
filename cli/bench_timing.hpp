// SPDX-License-Identifier: Apache-2.0
// A layer as bench times it: call after call, or replayed as a graph of several sets.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "cli/bench_record.hpp"
#include "cli/bench_sets.hpp"
#include "moxie/layer.hpp"
#include "moxie/measure.hpp"

namespace moxie::cli {

// Every arm replays for so long before a pass, until clocks are up.
inline constexpr double kWarmSeconds = 0.1;
inline constexpr double kRestSeconds = 0.3;
inline constexpr double kBurstSeconds = 0.06;
inline constexpr std::size_t kBurstSamples = 6;
inline constexpr std::size_t kHostPasses = 21;

// Whether these bf16 numbers are within half a unit in the last place of the exact ones.
bool is_rounded(const std::vector<std::uint16_t>& bf16, const std::vector<float>& exact);

// One call after another into a bf16 result, as an engine would make them.
class TimedLayer {
 public:
  TimedLayer(const MoeLayer& layer, const BenchSets& sets)
      : call_(layer, sets.probes.front().tokens),
        sets_(sets),
        y_(sets.probes.front().tokens * sets.probes.front().hidden) {}

  // Microseconds of one call on a set.
  double call(std::size_t set);
  void evict() { call_.evict(); }
  [[nodiscard]] const Trace& trace() const { return trace_; }
  [[nodiscard]] const std::vector<std::uint16_t>& y() const { return y_; }  // of the last call

 private:
  HostCall call_;
  const BenchSets& sets_;
  std::vector<std::uint16_t> y_;  // [tokens, hidden] bf16
  Trace trace_;
  std::uint32_t flags_ = 0;
};

// The sets of one point as a graph, into bf16 results.
class ReplayedLayer {
 public:
  ReplayedLayer(const MoeLayer& layer, const BenchSets& sets);

  // Calls every set eagerly, then replays, from poisoned memory each time. One finding MOXIE-R021
  // for each set whose replay has other bits or flags.
  std::vector<Finding> compare();
  // A set's eager result; after compare().
  [[nodiscard]] const std::vector<std::uint16_t>& y(std::size_t set) const { return eager_[set].y; }

  // Microseconds of one replay or one eager pass, divided by the number of sets.
  double replay_us() { return replay_.replay_us() / static_cast<double>(replay_.sets()); }
  // Of the host, with a call; the median of kHostPasses.
  double host_us();
  double eager_us() { return replay_.call_us() / static_cast<double>(replay_.sets()); }
  // Of the replays in the first kBurstSeconds behind kRestSeconds without any, at least
  // kBurstSamples: a card that is held at its power limit has not lowered its clock yet.
  std::vector<double> burst_us();
  // For kWarmSeconds.
  void warm();

 private:
  struct Result {
    std::vector<std::uint16_t> y;  // [tokens, hidden] bf16
    std::uint32_t flags = 0;

    friend bool operator==(const Result&, const Result&) = default;
  };
  [[nodiscard]] std::vector<Result> results() const;

  std::uint64_t elements_;
  DeviceReplay replay_;
  std::vector<Result> eager_;
};

// Two passes of half the samples each, repeated while their medians differ.
void measure_passes(std::uint64_t samples, const std::function<double()>& sample,
                    BenchPoint& point);

}  // namespace moxie::cli

// SPDX-License-Identifier: Apache-2.0
// One measured point and its record, moxie.bench/1.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/figures.hpp"
#include "cli/verbs.hpp"

namespace moxie::cli {

// Cold: the caches were overwritten before every call. Warm: calls back to back. Graph: replays on
// a GPU of several routing sets, whose time is divided by their number.
enum class BenchMode : std::uint8_t { cold, warm, graph };
std::string_view name_of(BenchMode mode);

// A word as a shell reads it back.
std::string shell_word(const std::string& word);

// What all points of one command share.
struct BenchSetting {
  std::string command;  // as typed
  std::string model;    // the problem's name
  std::uint64_t seed = 0;
  std::optional<std::uint64_t> kernel_align;  // as given
  bool batch_invariant = false;
  std::string placement{};  // as typed; empty: not given
  unsigned threads = 0;     // as given; 0: all
  unsigned threads_used = 1;
  BenchWay way = BenchWay::eager;
  BenchWeights weights = BenchWeights::synth;
  bool makes_weights = false;    // no checkpoint or packed set of the user's holds them
  std::optional<unsigned> rank;  // alone
  std::optional<BenchPeer> peer;
  std::optional<std::uint64_t> experts;  // as given
  std::optional<std::uint64_t> hidden;
  std::optional<std::uint64_t> inter;
  Json device;           // null on the CPU
  ReadCurve curve;       // of a GPU; empty where no graph is timed
  double launch_us = 0;  // the host's time for a launch, where graphs are timed
  Ceilings ceilings;
  Json build;
  Json host;
};

// What each routing set of a graph asks for.
struct BenchSetWork {
  std::uint64_t seed = 0;
  RunWork work;
};

// What a call of a graph needs at least; of its routing sets the mean.
struct BenchFloor {
  double us = 0;        // the larger one of each set
  double read_us = 0;   // of the weights that are touched, by the measured curve
  double flops_us = 0;  // of the products; 0 without a rate
  std::optional<double> stated_tflops;
};

// The other arm of a point.
struct PeerFigures {
  std::string arm;  // "humming fp8 per token"
  Json versions;    // of its packages
  double relative =
      1e300;         // Frobenius distance of its results from ours, over ours; of the worst set
  double limit = 0;  // beyond which it is not timed
  std::vector<double> samples_us;
  double passes_differ_pct = 0;
  Json arms;  // [{arm, relative, median_us}] of those it chose from, or null
  std::uint64_t rejected_samples = 0;  // on the CPU: whose threads waited for a core
  bool quiet = true;                   // on the CPU: enough did not

  [[nodiscard]] bool agrees() const { return relative <= limit; }
};

// What read tests beside each call and the waits of threads say of a point on the CPU; medians of
// the samples that count.
struct PairedFigures {
  double read_fraction = 0;  // rate of weight bytes over that of the read tests beside
  double read_gbps = 0;      // of these tests
  std::uint64_t rejected_samples = 0;
  bool quiet = true;  // false: the quietest samples count, for too few were quiet enough
};

struct BenchPoint {
  const ShardPlan* plan = nullptr;   // of what is held
  const ShardPlan* whole = nullptr;  // of all ranks
  std::uint64_t tokens = 0;
  std::uint64_t top_k = 0;
  std::string routing;
  std::vector<std::uint64_t> rank_slots;
  RunWork work;
  CheckFigures check;
  std::vector<Finding> findings;  // of the check
  BenchMode mode = BenchMode::cold;
  std::vector<double> samples_us;       // empty when the check failed
  double passes_differ_pct = 0;         // medians of the two halves of the samples
  std::vector<BenchSetWork> sets;       // empty for calls on one set; else `work` is their mean
  double eager_us = 0;                  // of a graph: one of its calls, eagerly
  double host_us = 0;                   // of a graph: the host's time for such a call
  std::vector<double> burst_us;         // of a graph: replays behind a rest
  std::optional<BenchFloor> floor;      // of a graph
  std::optional<PairedFigures> paired;  // of calls on the CPU
  std::optional<PeerFigures> peer;      // of a graph, and of cold calls on the CPU
  std::vector<Trace> traces;
};

// Above this the machine was not quiet and the point says little.
inline constexpr double kMostPassesDiffer = 5.0;

// {name, cc, sms, mem_bytes, driver, runtime} of the GPU in use; null when there is none.
Json device_json();

// Rounded to whole numbers.
RunWork mean_work(const std::vector<BenchSetWork>& sets);

// Of burst_us; NaN where there are none.
double burst_median_us(const BenchPoint& point);

Json record_of(const BenchSetting& setting, const BenchPoint& point);

// What makes two records comparable: problem, kernel, width, threads and mode, as one text.
std::string identity_of(const Json& record);
double median_us_of(const Json& record);

}  // namespace moxie::cli

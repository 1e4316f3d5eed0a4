// SPDX-License-Identifier: Apache-2.0
// Calls on the CPU, each between two read tests, and only those count whose threads had their
// cores.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "cli/bench_record.hpp"
#include "moxie/execution.hpp"
#include "moxie/measure.hpp"

namespace moxie::cli {

struct PairedSample {
  double us = 0;
  double read_gbps = 0;      // mean of the read tests right before and right behind
  double read_fraction = 0;  // weight bytes per second of the call, of that
  double core_wait = 0;      // largest share of the three that threads waited for a core
  Trace trace;

  [[nodiscard]] bool counts() const { return core_wait < kMostCoreWait; }
};

// A call to be timed: microseconds, and what it touches.
struct PairedCall {
  std::function<double()> call;
  std::uint64_t bytes_weights = 0;
  const Trace* trace = nullptr;  // of the last call
};

// Read test, call, read test, call, …: a test serves both calls beside it.
class PairedSampler {
 public:
  explicit PairedSampler(ReadTest& test) : test_(test) {}

  PairedSample take(const PairedCall& call);
  // Something else ran meanwhile: the next call gets a test of its own before it.
  void restart() { tested_ = false; }

 private:
  void run_test();

  ReadTest& test_;
  bool tested_ = false;
  double gbps_ = 0;
  double core_wait_ = 0;
};

// The samples of a pass that count: all quiet ones, or the `least` quietest where too few are.
struct QuietSamples {
  std::vector<PairedSample> samples;
  std::uint64_t rejected = 0;
  bool enough = true;
};
QuietSamples quiet_samples(std::vector<PairedSample> taken, std::uint64_t least);

// How far apart two passes are, in percent: of times or of read fractions, whichever differ less.
// Memory has fast and slow phases; a kernel that follows them was measured well.
double differ_pct(const std::vector<PairedSample>& first, const std::vector<PairedSample>& second);

struct PairedPasses {
  std::uint64_t samples = 0;         // wanted
  std::function<PairedCall()> next;  // the next sample's call
  // Takes its turn behind every kTurn samples; may be empty. `pass` is 0 or 1.
  std::function<void(int pass)> turn;
  // Before and behind every attempt at both passes; `agrees` says whether another arm's do.
  std::function<void()> begin;
  std::function<bool()> agrees;
};
inline constexpr std::uint64_t kTurn = 2;

// Two passes of half the samples each, at least three, repeated while they differ. A pass goes on
// for rejected samples: up to four times as many, and to ten seconds. Fills samples_us, traces,
// passes_differ_pct and paired.
void measure_paired(const PairedPasses& passes, ReadTest& test, BenchPoint& point);

}  // namespace moxie::cli

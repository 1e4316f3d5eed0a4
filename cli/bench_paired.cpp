// SPDX-License-Identifier: Apache-2.0
// Passes of paired samples, and what is left of them.
#include "cli/bench_paired.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "cli/console.hpp"

namespace moxie::cli {

namespace {

constexpr double kPassSeconds = 10;
constexpr std::uint64_t kLeastSamples = 3;
constexpr std::uint64_t kMostTaken = 4;  // times the samples that are wanted
constexpr int kMostTries = 3;            // of a point whose two passes differ

double median(const std::vector<PairedSample>& samples, double PairedSample::* value) {
  std::vector<double> values;
  for (const PairedSample& sample : samples) values.push_back(sample.*value);
  return summarise(std::move(values)).median_us;
}

QuietSamples run_pass(const PairedPasses& passes, int number, PairedSampler& sampler) {
  const std::uint64_t wanted = std::max((passes.samples + 1) / 2, kLeastSamples);
  std::vector<PairedSample> taken;
  std::uint64_t quiet = 0;
  const Stopwatch watch;
  while (quiet < wanted && taken.size() < kMostTaken * wanted) {
    if (taken.size() >= kLeastSamples && watch.seconds() > kPassSeconds) break;
    if (interrupted())
      throw Error(ErrorCode::interrupted, {.code = "MOXIE-U130", .message = "interrupted"});
    taken.push_back(sampler.take(passes.next()));
    quiet += taken.back().counts() ? 1 : 0;
    if (!passes.turn || taken.size() % kTurn != 0) continue;
    passes.turn(number);
    sampler.restart();
  }
  return quiet_samples(std::move(taken), kLeastSamples);
}

}  // namespace

void PairedSampler::run_test() {
  const CoreWait wait;
  gbps_ = test_.gbps();
  core_wait_ = wait.share();
  tested_ = true;
}

PairedSample PairedSampler::take(const PairedCall& call) {
  if (!tested_) run_test();
  PairedSample sample{.read_gbps = gbps_ / 2, .core_wait = core_wait_, .trace = {}};
  const CoreWait wait;
  sample.us = call.call();
  sample.core_wait = std::max(sample.core_wait, wait.share());
  if (call.trace != nullptr) sample.trace = *call.trace;
  run_test();
  sample.read_gbps += gbps_ / 2;
  sample.core_wait = std::max(sample.core_wait, core_wait_);
  sample.read_fraction =
      static_cast<double>(call.bytes_weights) * 1e-3 / sample.us / sample.read_gbps;
  return sample;
}

QuietSamples quiet_samples(std::vector<PairedSample> taken, std::uint64_t least) {
  QuietSamples quiet{.samples = {}};
  const auto counts = [](const PairedSample& sample) { return sample.counts(); };
  quiet.rejected = taken.size() - static_cast<std::uint64_t>(std::ranges::count_if(taken, counts));
  quiet.enough = taken.size() - quiet.rejected >= least;
  if (quiet.enough) {
    std::ranges::copy_if(taken, std::back_inserter(quiet.samples), counts);
    return quiet;
  }
  std::ranges::stable_sort(taken, {}, &PairedSample::core_wait);
  taken.resize(std::min<std::size_t>(taken.size(), least));
  quiet.samples = std::move(taken);
  return quiet;
}

double differ_pct(const std::vector<PairedSample>& first, const std::vector<PairedSample>& second) {
  const auto differ = [&](double PairedSample::* value) {
    const double a = median(first, value);
    const double b = median(second, value);
    return 100 * (std::max(a, b) / std::min(a, b) - 1);
  };
  const double times = differ(&PairedSample::us);
  const double fractions = differ(&PairedSample::read_fraction);
  return fractions < times ? fractions : times;  // no fraction is a number without weights
}

void measure_paired(const PairedPasses& passes, ReadTest& test, BenchPoint& point) {
  PairedSampler sampler(test);
  for (int attempt = 0; attempt < kMostTries; ++attempt) {
    if (passes.begin) passes.begin();
    sampler.restart();
    QuietSamples first = run_pass(passes, 0, sampler);
    const QuietSamples second = run_pass(passes, 1, sampler);
    point.passes_differ_pct = differ_pct(first.samples, second.samples);
    std::vector<PairedSample>& all = first.samples;
    all.insert(all.end(), second.samples.begin(), second.samples.end());
    point.samples_us.clear();
    point.traces.clear();
    for (const PairedSample& sample : all) {
      point.samples_us.push_back(sample.us);
      point.traces.push_back(sample.trace);
    }
    point.paired = {.read_fraction = median(all, &PairedSample::read_fraction),
                    .read_gbps = median(all, &PairedSample::read_gbps),
                    .rejected_samples = first.rejected + second.rejected,
                    .quiet = first.enough && second.enough};
    const bool others_agree = !passes.agrees || passes.agrees();
    if (others_agree && point.passes_differ_pct <= kMostPassesDiffer) return;
  }
}

}  // namespace moxie::cli

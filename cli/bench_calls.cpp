// SPDX-License-Identifier: Apache-2.0
// What a cold and what a warm call is, and two arms in turn.
#include "cli/bench_calls.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "cli/figures.hpp"

namespace moxie::cli {

namespace {

// The peer's side of a point: calls by pass.
class PeerTurns {
 public:
  explicit PeerTurns(Peer& peer) : peer_(peer) {}

  void begin() { passes_ = {}; }
  void turn(int pass) {
    for (const PeerCall& call : peer_.call(kTurn)) {
      passes_[static_cast<std::size_t>(pass)].push_back(
          {.us = call.us, .core_wait = call.core_wait, .trace = {}});
    }
  }
  // Leaves what counts in the figures; true when both passes agree.
  bool finish(PeerFigures& figures) {
    constexpr std::uint64_t kLeast = 2;
    const QuietSamples first = quiet_samples(passes_[0], kLeast);
    const QuietSamples second = quiet_samples(passes_[1], kLeast);
    figures.samples_us.clear();
    for (const QuietSamples* pass : {&first, &second}) {
      for (const PairedSample& sample : pass->samples) figures.samples_us.push_back(sample.us);
    }
    figures.rejected_samples = first.rejected + second.rejected;
    figures.quiet = first.enough && second.enough;
    figures.passes_differ_pct = differ_pct(first.samples, second.samples);
    return figures.passes_differ_pct <= kMostPassesDiffer;
  }

 private:
  Peer& peer_;
  std::array<std::vector<PairedSample>, 2> passes_;
};

}  // namespace

PairedCalls::PairedCalls(const MoeLayer& layer, const BenchSets& sets, ReadTest& test)
    : timed_(layer, sets), test_(test) {
  for (std::size_t set = 0; set < sets.probes.size(); ++set) {
    timed_.call(set);
    y_.push_back(timed_.y());
    bytes_.push_back(count_work(layer.plan(), sets.probes[set], DType::bf16).bytes_weights);
  }
}

PairedCall PairedCalls::next(BenchMode mode) {
  const std::size_t set = set_++ % bytes_.size();
  return {.call =
              [this, set, mode] {
                if (mode == BenchMode::warm) timed_.call(set);
                return timed_.call(set);
              },
          .bytes_weights = bytes_[set],
          .trace = &timed_.trace()};
}

void PairedCalls::measure(std::uint64_t samples, Peer* peer, BenchPoint& point) {
  set_ = 0;
  PairedPasses passes{.samples = samples,
                      .next = [&] { return next(point.mode); },
                      .turn = {},
                      .begin = {},
                      .agrees = {}};
  if (peer == nullptr) return measure_paired(passes, test_, point);
  PeerTurns turns(*peer);
  passes.begin = [&] { turns.begin(); };
  passes.turn = [&](int pass) { turns.turn(pass); };
  passes.agrees = [&] { return turns.finish(*point.peer); };
  measure_paired(passes, test_, point);
}

}  // namespace moxie::cli

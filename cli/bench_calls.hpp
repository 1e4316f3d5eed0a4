// SPDX-License-Identifier: Apache-2.0
// Points on the CPU: calls on routing sets in turn, cold and warm, and a peer's between them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cli/bench_paired.hpp"
#include "cli/bench_peer.hpp"
#include "cli/bench_timing.hpp"

namespace moxie::cli {

class PairedCalls {
 public:
  // Calls every set once.
  PairedCalls(const MoeLayer& layer, const BenchSets& sets, ReadTest& test);

  // A set's result.
  [[nodiscard]] const std::vector<std::uint16_t>& y(std::size_t set) const { return y_[set]; }

  // As measure_paired(), every sample on the next set. Cold: behind a read test, which leaves
  // nothing in the caches. Warm: behind a call on the same set. A peer takes as many calls in its
  // turns; its passes have to agree, too.
  void measure(std::uint64_t samples, Peer* peer, BenchPoint& point);

 private:
  PairedCall next(BenchMode mode);

  TimedLayer timed_;
  ReadTest& test_;
  std::vector<std::uint64_t> bytes_;  // of weights, by set
  std::vector<std::vector<std::uint16_t>> y_;
  std::size_t set_ = 0;
};

}  // namespace moxie::cli

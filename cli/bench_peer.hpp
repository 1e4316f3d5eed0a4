// SPDX-License-Identifier: Apache-2.0
// Another implementation on the same weights and routing sets, in a process of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cli/bench_record.hpp"
#include "cli/bench_sets.hpp"
#include "cli/bench_timing.hpp"
#include "cli/peer_process.hpp"
#include "cli/temporary_folder.hpp"
#include "moxie/pack.hpp"

namespace moxie::cli {

// Refuses what the peer does not run: Error(usage) MOXIE-B005 for several ranks, an activation
// format or a layout of weights that is not its own.
void require_peer_runs(BenchPeer peer, const ShardPlan& plan);

// One of a peer's calls on the CPU.
struct PeerCall {
  double us = 0;
  double core_wait = 0;  // share of it that the peer's threads waited for a core
};

// Our bf16 result of a set.
using PeerResults = std::function<const std::vector<std::uint16_t>&(std::size_t set)>;

class Peer {
 public:
  // Writes the only rank's experts to a temporary folder and starts the peer, which loads them;
  // `threads` are for those on the CPU. Errors: as PeerProcess; Error(environment) MOXIE-E001 when
  // the disk does not take them.
  Peer(BenchPeer peer, const std::string& python, const ShardPlan& plan, const LayerSpec& spec,
       const BlobSource& experts, unsigned threads);

  // Hands over the sets of a point and our bf16 result of each. What comes back says how near the
  // peer's are.
  PeerFigures prepare(const BenchSets& sets, const PeerResults& ours);
  // Times of the prepared point, of one call each, after kWarmSeconds.
  std::vector<double> replay(std::uint64_t replays);
  // Calls on the CPU, the sets in turn, after one that is not counted.
  std::vector<PeerCall> call(std::uint64_t calls);

 private:
  [[nodiscard]] Json go(std::uint64_t replays, double warm_s);
  [[nodiscard]] std::vector<double> times_of(const Json& answer, std::uint64_t count) const;

  TemporaryFolder folder_;
  PeerProcess process_;
  double limit_ = 0;
  Json versions_;
};

// Ours, theirs, theirs, ours, half the samples each; repeated while an arm's two passes differ.
void measure_alternately(std::uint64_t samples, ReplayedLayer& ours, Peer& theirs,
                         BenchPoint& point);

}  // namespace moxie::cli

// SPDX-License-Identifier: Apache-2.0
// Another implementation on the same weights and routing sets, in a process of its own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/bench_record.hpp"
#include "cli/bench_sets.hpp"
#include "cli/bench_timing.hpp"
#include "cli/peer_process.hpp"
#include "cli/temporary_folder.hpp"
#include "moxie/pack.hpp"

namespace moxie::cli {

// Refuses what no peer runs: Error(usage) MOXIE-B005 for several ranks, an activation format or a
// layout of weights that is not theirs.
void require_peer_runs(const ShardPlan& plan);

class Peer {
 public:
  // Writes the only rank's experts to a temporary folder and starts the peer, which loads them.
  // Errors: as PeerProcess; Error(environment) MOXIE-E001 when the disk does not take them.
  Peer(BenchPeer peer, const std::string& python, const ShardPlan& plan, const LayerSpec& spec,
       const PackedExperts& experts);

  // Hands over the sets of a point and our results. What comes back says how near the peer's are.
  PeerFigures prepare(const BenchSets& sets, const ReplayedLayer& ours);
  // Times of the prepared point, of one call each, after kWarmSeconds.
  std::vector<double> replay(std::uint64_t replays);

 private:
  [[nodiscard]] static std::filesystem::path write_all(const std::filesystem::path& folder,
                                                       const ShardPlan& plan, const LayerSpec& spec,
                                                       const PackedExperts& experts);

  TemporaryFolder folder_;
  PeerProcess process_;
  double limit_ = 0;
  Json versions_;
};

// Ours, theirs, theirs, ours, half the samples each; repeated while an arm's two passes differ.
void measure_alternately(std::uint64_t samples, ReplayedLayer& ours, Peer& theirs,
                         BenchPoint& point);

}  // namespace moxie::cli

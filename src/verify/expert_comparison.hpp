// SPDX-License-Identifier: Apache-2.0
// The byte proof of one expert.
#pragma once

#include <cstdint>
#include <vector>

#include "moxie/model.hpp"
#include "moxie/status.hpp"
#include "pack/packed_set.hpp"

namespace moxie {

// What comparing one expert found.
struct ExpertTally {
  std::uint64_t tensors = 0;
  std::uint64_t real_bytes = 0;
  std::uint64_t tail_bytes = 0;
  std::vector<Finding> findings;
};

// Joins the real parts of each group's ranks of every tensor in rank order and holds them against
// the source. Where a part belongs follows from the counts before it, not from the plan's own
// source offsets: an offset that is wrong in the plan is found. Error(input) MOXIE-K003 for a bad
// scale in the source.
ExpertTally compare_expert(const PackedSet& set, const MoeModel& source, const LayerExperts& layer,
                           std::uint64_t expert);

// Tensors that a rank's file of this layer holds.
std::uint64_t expected_tensors(const PackedSet& set, const RankPlan& rank, const MoeModel& source,
                               const LayerExperts& layer);

}  // namespace moxie

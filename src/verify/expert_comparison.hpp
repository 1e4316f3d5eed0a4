// SPDX-License-Identifier: Apache-2.0
// The byte proof of one expert.
#pragma once

#include <cstdint>

#include "moxie/model.hpp"
#include "moxie/plan.hpp"
#include "pack/packed_set.hpp"
#include "verify/tally.hpp"

namespace moxie {

// Joins the real parts of each group's ranks of every tensor in rank order and holds them against
// the source. Where a part belongs follows from the counts before it, not from the plan's own
// source offsets: an offset that is wrong in the plan is found. `plan` is the set's as the layer
// follows it. Error(input) MOXIE-K003 for a bad scale in the source.
Tally compare_expert(const PackedSet& set, const ShardPlan& plan, const MoeModel& source,
                     const LayerExperts& layer, std::uint64_t expert);

// Tensors of experts that a rank's file of this layer holds.
std::uint64_t expected_tensors(const PackedSet& set, const ShardPlan& plan, const RankPlan& rank,
                               const MoeModel& source, const LayerExperts& layer);

}  // namespace moxie

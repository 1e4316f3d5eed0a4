// SPDX-License-Identifier: Apache-2.0
// A set's plan and configs against the source: whether they are of the same model.
#pragma once

#include <vector>

#include "moxie/model.hpp"
#include "moxie/plan.hpp"
#include "moxie/status.hpp"
#include "pack/packed_set.hpp"

namespace moxie {

// The plan is a claim: its text must be the one that was hashed, the configs the source's, and its
// widths those of the source. Error(verdict) MOXIE-V007 when they are another model's.
std::vector<Finding> check_plan(const PackedSet& set, const MoeModel& source);

// The plan as this layer of the source follows it. Error(verdict) MOXIE-V007 when it does not fit.
ShardPlan planned_layer(const PackedSet& set, const MoeModel& source, const LayerExperts& layer);

}  // namespace moxie

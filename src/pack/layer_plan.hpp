// SPDX-License-Identifier: Apache-2.0
// A plan as one layer follows it.
#pragma once

#include "moxie/model.hpp"
#include "moxie/pack.hpp"
#include "moxie/plan.hpp"

namespace moxie {

// The plan itself, but for draft blocks: theirs may have a number of experts of its own, and in
// logical files a format of its own, whose groups then cut the plan's widths. Errors:
// Error(unsupported) MOXIE-M009 for a layer that does not fit the plan.
ShardPlan plan_of_layer(const MoeModel& model, const ShardPlan& plan, const LayerExperts& layer,
                        FileLayout layout);

}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// A plan as one layer follows it.
#pragma once

#include <cstdint>

#include "moxie/model.hpp"
#include "moxie/pack.hpp"
#include "moxie/plan.hpp"

namespace moxie {

// What of a layer decides its plan.
struct LayerFacts {
  int number = 0;
  bool draft = false;
  std::uint64_t experts = 0;
  BlockFormat format = BlockFormat::mxfp4;
  bool recast = false;
};

// The plan itself, but for draft blocks: theirs may have a number of experts of its own, and in
// logical files a format of its own, whose groups then cut the plan's widths. Errors:
// Error(unsupported) MOXIE-M009 for a layer that does not fit the plan.
ShardPlan plan_of_layer(const MoeModel& model, const ShardPlan& plan, const LayerExperts& layer,
                        FileLayout layout);
// The same for a layer that has the experts it is due.
ShardPlan plan_of_layer(const ShardPlan& plan, const LayerFacts& layer, FileLayout layout);

// Error(unsupported) MOXIE-M009 where `own`, the plan as a layer follows it, has another format.
void require_plans_format(const ShardPlan& plan, const ShardPlan& own, int layer);
// Error(unsupported) MOXIE-M009 for a layer that can not be packed under the plan as it is.
void require_planned(const ShardPlan& plan, const LayerExperts& layer);

}  // namespace moxie

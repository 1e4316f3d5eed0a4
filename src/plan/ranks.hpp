// SPDX-License-Identifier: Apache-2.0
// What follows from topology and axes: layout, ranks, bytes.
#pragma once

#include "moxie/plan.hpp"

namespace moxie {

// Fills identity, layout and ranks from the sizes, the topology and the axes. Errors:
// Error(unsupported) MOXIE-P009 when a size exceeds 64 bits.
void derive_ranks(ShardPlan& plan);

}  // namespace moxie

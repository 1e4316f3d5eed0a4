// SPDX-License-Identifier: Apache-2.0
// What follows from topology and axes: layout, ranks, bytes.
#pragma once

#include "moxie/plan.hpp"

namespace moxie {

// Fills identity, layout and ranks from the sizes, the topology and the axes. Errors:
// Error(unsupported) MOXIE-P009 when a size exceeds 64 bits.
void derive_ranks(ShardPlan& plan);

// The problem with what the placement asks of a kernel; contiguous and interleaved ranks hold the
// same numbers of experts.
KernelProblem with_placement(KernelProblem problem, const Placement& placement,
                             std::uint64_t experts, unsigned ep);

}  // namespace moxie

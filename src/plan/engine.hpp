// SPDX-License-Identifier: Apache-2.0
// Whether an engine's backends may run a plan.
#pragma once

#include <cstdint>
#include <vector>

#include "moxie/engines.hpp"
#include "moxie/plan.hpp"

namespace moxie {

EngineProblem engine_problem(const ShardPlan& plan);

// The alignment that the vetted tuple of this problem asks for; 1 where none is vetted.
std::uint64_t engine_align(const EngineProblem& problem);

// Refuses what must not run: Error(unsupported) MOXIE-P017 for a padded plan that no tuple vets,
// one finding for each element in which the nearest tuple differs, and MOXIE-P018 for a MoE backend
// that hands out experts itself. The axes must be known.
void require_vetted(const ShardPlan& plan);

// Every tuple with what it differs in, as kernels answer.
std::vector<KernelAnswer> engine_answers(const EngineProblem& problem);

}  // namespace moxie

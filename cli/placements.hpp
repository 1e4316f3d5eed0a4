// SPDX-License-Identifier: Apache-2.0
// Placements as the verbs use them: read, held against a packed set, and shown.
#pragma once

#include <string>

#include "cli/verbs.hpp"
#include "moxie/placement.hpp"

namespace moxie::cli {

// What the option says, with its file read; contiguous without one. Errors: Error(input) MOXIE-C003
// for a file that is no JSON, MOXIE-P023 for one that can not be read or is no placement.
Placement read_placement(const std::optional<GivenPlacement>& given);

// The option's value again.
std::string word_of(const GivenPlacement& given);

// Whether the ranks of the plan hold what the placement gives them, slot by slot.
bool is_placed(const ShardPlan& plan, const Placement& placement);

// "[0, 4)", "1..7 step 2", or "0, 3..5, 1"; the first ids of long lists.
std::string experts_text(const RankExperts& experts);

}  // namespace moxie::cli

// SPDX-License-Identifier: Apache-2.0
// Global scales of nvfp4 activations as the verbs use them: measured, reported, warned about.
#pragma once

#include <string>
#include <vector>

#include "moxie/json.hpp"
#include "moxie/layer.hpp"
#include "moxie/probe.hpp"
#include "moxie/status.hpp"

namespace moxie::cli {

// Whether the plan's activations have global scales at all.
bool has_act_scales(const ShardPlan& plan);
// "nvfp4, scales warmup, margin 8"; the format alone where there are none.
std::string acts_text(const ShardPlan& plan);

// Measures on this probe and freezes what was measured, where the plan's policy asks for it. A
// warning for each rank that has nothing to measure.
std::vector<Finding> warm_up(MoeLayer& layer, const Probe& probe);

// {"policy", "margin", "stages": [{"name", "least", "most", counts}]}.
Json act_scales_json(const ShardPlan& plan, const ActStats& stats);
// The cells of a table's row: stage, scales, counts.
std::vector<std::string> act_stage_head();
std::vector<std::string> act_stage_row(std::string_view name, const ActStage& stage);

// Warnings about what was clipped, and about values that are no numbers.
std::vector<Finding> act_findings(const ShardPlan& plan, const ActStats& stats, int layer);

}  // namespace moxie::cli

// SPDX-License-Identifier: Apache-2.0
// One warm-up call; counts as text and as JSON.
#include "cli/act_scales.hpp"

#include <fmt/format.h>

#include <utility>

#include "cli/layer_call.hpp"

namespace moxie::cli {

namespace {

Json stage_json(std::string_view name, const ActStage& stage) {
  Json json;
  json.set("name", name).set("least", static_cast<double>(stage.least_scale));
  json.set("most", static_cast<double>(stage.most_scale)).set("blocks", stage.blocks);
  json.set("saturated", stage.saturated).set("underflowed", stage.underflowed);
  return json.set("not_numbers", stage.not_numbers).set("guarded", stage.guarded);
}

}  // namespace

bool has_act_scales(const ShardPlan& plan) { return plan.act_format == ActFormat::nvfp4; }

std::string acts_text(const ShardPlan& plan) {
  std::string text(name_of(plan.act_format));
  if (!has_act_scales(plan)) return text;
  text += fmt::format(", scales {}", name_of(plan.act_scale));
  if (plan.act_scale == ActScale::warmup) text += fmt::format(", margin {}", plan.act_margin);
  return text;
}

std::vector<Finding> warm_up(MoeLayer& layer, const Probe& probe) {
  const ShardPlan& plan = layer.plan();
  if (!has_act_scales(plan) || plan.act_scale != ActScale::warmup) return {};
  std::vector<float> y(probe.tokens * probe.hidden);
  HostCall call(layer, probe.tokens);
  std::uint32_t flags = 0;
  const std::vector<ActScales> scales =
      call.warm_up(io_of(probe, y.data(), DType::f32, &flags), plan.act_margin);
  layer.freeze(scales);
  std::vector<Finding> findings;
  for (std::size_t i = 0; i < scales.size(); ++i) {
    const bool unseen = scales[i].slots == 0;
    if (!unseen && !scales[i].guarded) continue;
    findings.push_back(
        {.code = "MOXIE-R018",
         .severity = Severity::warning,
         .message = unseen ? "the warm-up saw no valid slot; the activation scales stay at their "
                             "fallback"
                           : "the warm-up measured no usable scale; 1/2688 stands for it",
         .where = {.rank = plan.ranks[i].rank},
         .expected = unseen ? "at least one token for an expert of the rank"
                            : "values that are not all 0 and not at the end of fp32",
         .got =
             unseen ? "0 valid slots" : fmt::format("x {:g}, act {:g}", scales[i].x, scales[i].act),
         .hint = unseen ? "warm up with more tokens" : "warm up with typical tokens"});
  }
  return findings;
}

Json act_scales_json(const ShardPlan& plan, const ActStats& stats) {
  Json json;
  json.set("policy", name_of(plan.act_scale));
  if (plan.act_scale == ActScale::warmup) json.set("margin", plan.act_margin);
  Json stages = Json::array();
  stages.push_back(stage_json("x", stats.x));
  stages.push_back(stage_json("act", stats.act));
  return json.set("stages", std::move(stages));
}

std::vector<std::string> act_stage_head() {
  return {"activations", "global scale", "blocks",      "saturated",
          "underflowed", "holding NaN",  "rows guarded"};
}

std::vector<std::string> act_stage_row(std::string_view name, const ActStage& stage) {
  const std::string scale =
      stage.least_scale == stage.most_scale
          ? fmt::format("{:.4g}", stage.most_scale)
          : fmt::format("{:.4g} to {:.4g}", stage.least_scale, stage.most_scale);
  return {std::string(name),
          scale,
          fmt::to_string(stage.blocks),
          fmt::to_string(stage.saturated),
          fmt::to_string(stage.underflowed),
          fmt::to_string(stage.not_numbers),
          fmt::to_string(stage.guarded)};
}

std::vector<Finding> act_findings(const ShardPlan& plan, const ActStats& stats, int layer) {
  std::vector<Finding> findings;
  if (!has_act_scales(plan)) return findings;
  const auto warn = [&](std::string_view name, std::uint64_t count, const ActStage& stage,
                        std::string_view what, std::string hint) {
    if (count == 0) return;
    findings.push_back(
        {.code = "MOXIE-R019",
         .severity = Severity::warning,
         .message = fmt::format("{} of {} blocks of {} {}", count, stage.blocks, name, what),
         .where = {.layer = layer},
         .hint = std::move(hint)});
  };
  for (const auto& [name, stage] :
       {std::pair{"x", &stats.x}, {"the values before down", &stats.act}}) {
    warn(name, stage->saturated, *stage, "are clipped: the global scale is too small for them",
         "use another --act-scale, or a larger --act-margin");
    warn(name, stage->not_numbers, *stage, "hold NaN", "look at the input");
  }
  return findings;
}

}  // namespace moxie::cli

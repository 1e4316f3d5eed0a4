// SPDX-License-Identifier: Apache-2.0
// Widths stay the plan's: ranks of a draft block and of the main layers are the same ranks.
#include "pack/layer_plan.hpp"

#include <string>
#include <utility>

#include "formats/block_format.hpp"
#include "plan/ranks.hpp"

namespace moxie {

namespace {

constexpr std::string_view kLeaveOut = "leave draft blocks out: --layers main";

[[noreturn]] void refuse(int layer, std::string what, std::string planned, std::string found,
                         std::string hint = {}) {
  throw Error(ErrorCode::unsupported,
              {.code = "MOXIE-M009",
               .message = "the layer's " + std::move(what) + " is not the plan's",
               .where = {.layer = layer},
               .expected = std::move(planned),
               .got = std::move(found),
               .hint = std::move(hint)});
}

std::uint64_t experts_due(const MoeModel& model, const ShardPlan& plan, const LayerExperts& layer) {
  return layer.mtp && model.config.v4 ? model.config.v4->draft_experts : plan.experts;
}

std::string format_text(BlockFormat format, bool globals) {
  return std::string(name_of(format)) + (globals ? " with globals" : "");
}

void require_format(const ShardPlan& plan, int layer, BlockFormat format, bool recast) {
  if (format == plan.format && recast == plan.recast) return;
  refuse(layer, "format", format_text(plan.format, plan.recast), format_text(format, recast));
}

// Another format cuts the same widths only where they are whole groups of it too.
void require_own_groups(const ShardPlan& plan, const LayerFacts& layer, FileLayout layout) {
  const std::string planned = format_text(plan.format, plan.recast);
  const std::string found = format_text(layer.format, layer.recast);
  if (!layer.draft || layout == FileLayout::kernel) {
    refuse(layer.number, "format", planned, found, layer.draft ? std::string(kLeaveOut) : "");
  }
  const std::uint64_t group = scale_group(layer.format);
  const AxisPlan& axis = plan.inter();
  for (const std::uint64_t width :
       {axis.local.value, axis.kernel.value, axis.original.value, plan.hidden}) {
    if (width % group == 0) continue;
    refuse(layer.number, "format",
           planned + " or widths that are multiples of " + std::to_string(group),
           found + ", whose groups of " + std::to_string(group) + " do not divide the width " +
               std::to_string(width),
           std::string(kLeaveOut));
  }
}

LayerFacts facts_of(const LayerExperts& layer) {
  return {.number = layer.layer,
          .draft = layer.mtp,
          .experts = layer.experts.size(),
          .format = layer.format,
          .recast = layer.recast};
}

}  // namespace

ShardPlan plan_of_layer(const MoeModel& model, const ShardPlan& plan, const LayerExperts& layer,
                        FileLayout layout) {
  const std::uint64_t experts = layer.experts.size();
  if (const std::uint64_t due = experts_due(model, plan, layer); experts != due)
    refuse(layer.layer, "number of experts", std::to_string(due), std::to_string(experts));
  return plan_of_layer(plan, facts_of(layer), layout);
}

ShardPlan plan_of_layer(const ShardPlan& plan, const LayerFacts& layer, FileLayout layout) {
  if (layer.experts != plan.experts && plan.placement.kind == PlacementKind::file) {
    refuse(layer.number, "number of experts", std::to_string(plan.experts) + ", as the placement's",
           std::to_string(layer.experts), std::string(kLeaveOut));
  }
  const bool same_format = layer.format == plan.format && layer.recast == plan.recast;
  if (!same_format) require_own_groups(plan, layer, layout);
  if (same_format && layer.experts == plan.experts) return plan;
  ShardPlan own = plan;
  own.experts = layer.experts;
  own.format = layer.format;
  own.recast = layer.recast;
  own.axes.front().unit = Elems{scale_group(layer.format)};
  derive_ranks(own);
  return own;
}

ShardPlan plan_to_run(const MoeModel& model, const ShardPlan& plan, int layer) {
  const LayerExperts& experts = model.require_layer(layer);
  require_format(plan, layer, experts.format, experts.recast);
  return plan_of_layer(model, plan, experts, FileLayout::logical);
}

void require_plans_format(const ShardPlan& plan, const ShardPlan& own, int layer) {
  require_format(plan, layer, own.format, own.recast);
}

void require_planned(const ShardPlan& plan, const LayerExperts& layer) {
  require_format(plan, layer.layer, layer.format, layer.recast);
  if (layer.experts.size() == plan.experts) return;
  refuse(layer.layer, "number of experts", std::to_string(plan.experts),
         std::to_string(layer.experts.size()));
}

}  // namespace moxie

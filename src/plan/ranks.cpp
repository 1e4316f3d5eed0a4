// SPDX-License-Identifier: Apache-2.0
// Rank = ep_rank * tp + tp_rank; ranks of one expert-parallel group hold the same experts.
#include "plan/ranks.hpp"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "base/checked.hpp"
#include "formats/block_format.hpp"
#include "moxie/catalog.hpp"
#include "plan/layout.hpp"

namespace moxie {

namespace {

std::uint64_t require_product(std::uint64_t a, std::uint64_t b) {
  const auto product = checked_multiply(a, b);
  if (!product)
    throw Error(ErrorCode::unsupported,
                {.code = "MOXIE-P009", .message = "the packed size exceeds 64 bits"});
  return *product;
}

std::vector<RankPlan> plan_ranks(const ShardPlan& plan) {
  std::vector<RankPlan> ranks;
  for (unsigned ep_rank = 0; ep_rank < plan.ep; ++ep_rank) {
    const RankExperts experts = experts_of(plan.placement, plan.experts, plan.ep, ep_rank);
    for (unsigned tp_rank = 0; tp_rank < plan.tp; ++tp_rank) {
      RankPlan rank{.rank = ep_rank * plan.tp + tp_rank,
                    .tp_rank = tp_rank,
                    .ep_rank = ep_rank,
                    .experts = experts,
                    .slice = slice_inter(plan.inter(), tp_rank, plan.format)};
      rank.bytes_layer = require_product(plan.layout.expert_bytes, rank.experts.count());
      rank.bytes_total = require_product(rank.bytes_layer, plan.layers);
      ranks.push_back(rank);
    }
  }
  return ranks;
}

// Engines read what their own loaders make of logical files.
LayoutKind layout_kind_of(std::string_view kernel) {
  const auto entries = kernel_catalog();
  const auto entry = std::ranges::find(entries, kernel, &KernelEntry::name);
  return entry == entries.end() ? LayoutKind::linear : entry->layout;
}

}  // namespace

void derive_ranks(ShardPlan& plan) {
  plan.identity = std::ranges::all_of(
      plan.axes, [](const AxisPlan& axis) { return axis.virtual_global == axis.original; });
  plan.layout = linear_layout(plan.hidden, plan.inter().kernel, plan.format,
                              {.gated = plan.gated,
                               .biases = plan.biases,
                               .globals = plan.recast || block_spec(plan.format).has_global});
  plan.layout.kind = layout_kind_of(plan.kernel);
  plan.ranks = plan_ranks(plan);
}

ExpertOwners owners_of(const ShardPlan& plan) {
  std::vector<RankExperts> of_ep_ranks;
  for (const RankPlan& rank : plan.ranks) {
    if (rank.tp_rank == 0) of_ep_ranks.push_back(rank.experts);
  }
  return {plan.experts, of_ep_ranks};
}

bool has_redundant_experts(const ShardPlan& plan) {
  std::uint64_t held = 0;
  for (const RankPlan& rank : plan.ranks) held += rank.tp_rank == 0 ? rank.experts.count() : 0;
  return held > plan.experts;
}

KernelProblem with_placement(KernelProblem problem, const Placement& placement,
                             std::uint64_t experts, unsigned ep) {
  std::uint64_t held = 0;
  for (unsigned ep_rank = 0; ep_rank < ep; ++ep_rank) {
    const std::uint64_t count = placement.kind == PlacementKind::file
                                    ? placement.map[ep_rank].size()
                                    : experts_of(experts, ep, ep_rank).count();
    problem.local_experts = std::max(problem.local_experts, count);
    held += count;
  }
  problem.redundant_experts = held > experts;
  return problem;
}

ShardPlan plan_of_rank(const ShardPlan& plan, unsigned rank) {
  const auto refuse = [&](std::string message, std::string expected) {
    throw Error(ErrorCode::usage, {.code = "MOXIE-P001",
                                   .message = std::move(message),
                                   .expected = std::move(expected),
                                   .got = std::to_string(rank)});
  };
  if (rank >= plan.ranks.size()) {
    refuse("the rank is not in the plan",
           "a rank from 0 to " + std::to_string(plan.ranks.size() - 1));
  }
  if (has_redundant_experts(plan)) {
    throw Error(ErrorCode::unsupported,
                {.code = "MOXIE-P024",
                 .message = "a rank alone does not compute all choices of experts that lie on "
                            "several ranks",
                 .where = {.rank = rank},
                 .expected = "a placement with every expert on one rank"});
  }
  RankPlan alone = plan.ranks[rank];
  const Elems real = alone.slice.rows.count;
  if (real == Elems{0}) refuse("the rank owns no real part of the axis", "another rank");
  alone.rank = alone.tp_rank = alone.ep_rank = 0;
  alone.slice.rows.src = Elems{0};
  alone.slice.bytes.src = PackedBytes{0};
  alone.slice.groups.src = ScaleGroups{0};
  ShardPlan local = plan;
  local.axes.resize(1);
  local.widths.reset();
  local.tp = local.ep = 1;
  local.ranks = {alone};
  AxisPlan& axis = local.axes.front();
  axis.original = axis.virtual_global = axis.local = real;
  axis.overhead_pct = 0;
  axis.kernel_overhead_pct =
      100 * (static_cast<double>(axis.kernel.value) / static_cast<double>(real.value) - 1);
  local.identity = true;
  return local;
}

}  // namespace moxie

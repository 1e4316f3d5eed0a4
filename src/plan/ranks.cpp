// SPDX-License-Identifier: Apache-2.0
// Rank = ep_rank * tp + tp_rank; ranks of one expert-parallel group hold the same experts.
#include "plan/ranks.hpp"

#include "base/checked.hpp"
#include "formats/block_format.hpp"
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
    for (unsigned tp_rank = 0; tp_rank < plan.tp; ++tp_rank) {
      RankPlan rank{.rank = ep_rank * plan.tp + tp_rank,
                    .tp_rank = tp_rank,
                    .ep_rank = ep_rank,
                    .experts = experts_of(plan.experts, plan.ep, ep_rank),
                    .slice = slice_inter(plan.inter(), tp_rank, plan.format)};
      rank.bytes_layer = require_product(plan.layout.expert_bytes, rank.experts.count());
      rank.bytes_total = require_product(rank.bytes_layer, plan.layers);
      ranks.push_back(rank);
    }
  }
  return ranks;
}

}  // namespace

void derive_ranks(ShardPlan& plan) {
  plan.identity = plan.inter().virtual_global == plan.inter().original;
  plan.layout = linear_layout(plan.hidden, plan.inter().kernel, plan.format,
                              {.gated = plan.gated,
                               .biases = plan.biases,
                               .globals = plan.recast || block_spec(plan.format).has_global});
  plan.ranks = plan_ranks(plan);
}

}  // namespace moxie

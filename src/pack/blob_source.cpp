// SPDX-License-Identifier: Apache-2.0
// Experts of a checkpoint one at a time, and all experts of a source into memory.
#include <memory>

#include "base/checked.hpp"
#include "base/parallel.hpp"
#include "moxie/pack.hpp"
#include "pack/layer_plan.hpp"
#include "pack/page_budget.hpp"

namespace moxie {

namespace {

void release(const Checkpoint& checkpoint) {
  for (std::uint32_t file = 0; file < checkpoint.files().size(); ++file) checkpoint.release(file);
}

}  // namespace

BlobSource blob_source(const MoeModel& model, const ShardPlan& plan, unsigned rank, int layer) {
  MOXIE_CHECK(rank < plan.ranks.size(), "a rank lies inside the plan");
  const LayerExperts& from = model.require_layer(layer);
  require_planned(plan, from);
  const auto pages = std::make_shared<PageBudget>();
  return {.rank = rank,
          .layout = plan.layout,
          .experts = plan.ranks[rank].experts,
          .pack_expert =
              [&model, &plan, &from, rank, pages](std::uint64_t expert, std::span<std::byte> blob) {
                pack_expert(model, plan, plan.ranks[rank], from, expert, blob);
                if (pages->spend(blob.size())) release(model.checkpoint);
              },
          .finish = [&model] { release(model.checkpoint); }};
}

PackedExperts pack(const BlobSource& source) {
  PackedExperts packed{
      .rank = source.rank, .layout = source.layout, .experts = source.experts, .blobs = {}};
  const std::uint64_t stride = source.layout.stride;
  packed.blobs.resize(source.experts.count() * stride);
  parallel_for(source.experts.count(), [&](std::uint64_t i) {
    source.pack_expert(source.experts.id(i), std::span(packed.blobs).subspan(i * stride, stride));
  });
  if (source.finish) source.finish();
  return packed;
}

PackedExperts pack(const MoeModel& model, const ShardPlan& plan, unsigned rank, int layer) {
  return pack(blob_source(model, plan, rank, layer));
}

}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// Experts of a checkpoint one at a time, and all experts of a source into memory.
#include <memory>
#include <utility>
#include <vector>

#include "base/checked.hpp"
#include "base/parallel.hpp"
#include "moxie/pack.hpp"
#include "pack/expert_parts.hpp"
#include "pack/layer_plan.hpp"
#include "pack/page_budget.hpp"

namespace moxie {

namespace {

void release(const Checkpoint& checkpoint) {
  for (std::uint32_t file = 0; file < checkpoint.files().size(); ++file) checkpoint.release(file);
}

}  // namespace

BlobSource blob_source(const MoeModel& model, const ShardPlan& plan, unsigned rank, int layer) {
  return blob_source_in_parts(model, plan, rank, layer, kPartBytes);
}

BlobSource blob_source_in_parts(const MoeModel& model, const ShardPlan& plan, unsigned rank,
                                int layer, std::uint64_t part_bytes) {
  MOXIE_CHECK(rank < plan.ranks.size(), "a rank lies inside the plan");
  const LayerExperts& from = model.require_layer(layer);
  require_planned(plan, from);
  const auto pages = std::make_shared<PageBudget>();
  const auto pack = [&model, &plan, &from, rank, pages](std::uint64_t expert, BlobPart part,
                                                        std::span<std::byte> blob) {
    pack_expert_part(model, plan, plan.ranks[rank], from, expert, part,
                     SourceBytes(model.checkpoint), blob);
    if (pages->spend(part.bytes())) release(model.checkpoint);
  };
  std::vector<BlobPart> parts = parts_of(plan.layout, part_bytes);
  const auto count = static_cast<unsigned>(parts.size());
  return {
      .rank = rank,
      .layout = plan.layout,
      .experts = plan.ranks[rank].experts,
      .pack_expert = [pack](std::uint64_t expert,
                            std::span<std::byte> blob) { pack(expert, {0, blob.size()}, blob); },
      .finish = [&model] { release(model.checkpoint); },
      .parts = count,
      .pack_part = [pack, parts = std::move(parts)](
                       std::uint64_t expert, unsigned part,
                       std::span<std::byte> blob) { pack(expert, parts.at(part), blob); }};
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

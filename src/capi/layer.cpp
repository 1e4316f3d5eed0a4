// SPDX-License-Identifier: Apache-2.0
// Loads and binds the experts of a layer, and replaces one of them.
#include "moxie/layer.hpp"

#include <mutex>

#include "capi/handles.hpp"
#include "capi/refusal.hpp"
#include "capi/versioned.hpp"
#include "moxie/device.hpp"

namespace moxie::capi {

namespace {

Reduction reduction_of(const moxie_prepare_options& options) {
  switch (options.reduction) {
    case MOXIE_REDUCTION_LAYER:
      if (options.rank == 0) return Reduction::layer;
      refuse("MOXIE-A003", "a layer that sums holds every rank", "rank 0",
             std::to_string(options.rank), "or say MOXIE_REDUCTION_CALLER");
    case MOXIE_REDUCTION_CALLER:
      return Reduction::caller;
    default:
      refuse("MOXIE-A003", "reduction does not say who sums the ranks",
             "MOXIE_REDUCTION_LAYER (1) or MOXIE_REDUCTION_CALLER (2)",
             std::to_string(options.reduction));
  }
}

LayerSpec spec_from(const ModelConfig& config, const moxie_prepare_options& options) {
  LayerSpec spec = spec_of(config);
  if (options.top_k > 0) spec.top_k = options.top_k;
  if (spec.top_k > config.experts) {
    refuse("MOXIE-R007", "top_k is larger than the number of experts",
           "at most " + std::to_string(config.experts), std::to_string(spec.top_k));
  }
  spec.reduction = reduction_of(options);
  spec.threads = options.threads;
  spec.max_sms = options.max_sms;
  return spec;
}

BlobSource source_of(const moxie_plan& plan, unsigned rank, int layer) {
  const Source& source = *plan.source;
  return source.folder ? blob_source(*source.folder, rank, layer)
                       : blob_source(*source.model, plan.plan, rank, layer);
}

MoeLayer bind(const moxie_plan& plan, const moxie_prepare_options& options) {
  const ShardPlan& made = plan.plan;
  const LayerSpec spec = spec_from(plan.source->config(), options);
  // What can be refused without the weights is refused before they are read.
  (void)require_rank(made, options.rank);
  require_device(made.target);
  (void)workspace_size(made, spec, 1);
  std::vector<BlobSource> sources;
  if (spec.reduction == Reduction::caller) {
    sources.push_back(source_of(plan, options.rank, options.layer));
  } else {
    for (const RankPlan& rank : made.ranks)
      sources.push_back(source_of(plan, rank.rank, options.layer));
  }
  // One layer at a time uses the plan's staging; another one that is loaded meanwhile has its own.
  const std::unique_lock lock(plan.staging->in_use, std::try_to_lock);
  return {made, spec, sources, lock ? &plan.staging->memory : nullptr};
}

void require_owned(const RankPlan& rank, std::uint64_t expert) {
  if (rank.experts.holds(expert)) return;
  const ExpertRange held = contiguous_experts(rank);
  throw Error(ErrorCode::usage, {.code = "MOXIE-R009",
                                 .message = "the rank does not own this expert",
                                 .where = {.expert = expert, .rank = rank.rank},
                                 .expected = "an expert from " + std::to_string(held.first) +
                                             " to below " + std::to_string(held.end),
                                 .got = std::to_string(expert)});
}

void require_blob_bytes(const ShardPlan& plan, std::uint64_t bytes) {
  if (bytes == plan.layout.stride) return;
  refuse("MOXIE-A004", "an expert's blob has another size under this plan",
         std::to_string(plan.layout.stride) + " bytes", std::to_string(bytes));
}

}  // namespace

}  // namespace moxie::capi

using namespace moxie::capi;  // NOLINT(google-build-using-namespace): of the C functions below

extern "C" {

int moxie_prepare(const moxie_plan* plan, const moxie_prepare_options* options,
                  moxie_layer** layer) noexcept {
  return guarded([&] {
    require_pointer(layer, "layer");
    *layer = nullptr;
    require_pointer(plan, "plan");
    const moxie_prepare_options given = read_struct(options);
    const bool warmup = plan->plan.act_format == moxie::ActFormat::nvfp4 &&
                        plan->plan.act_scale == moxie::ActScale::warmup;
    *layer = std::make_unique<moxie_layer>(moxie_layer{bind(*plan, given), warmup}).release();
  });
}

void moxie_layer_destroy(moxie_layer* layer) noexcept {
  const std::unique_ptr<moxie_layer> owned(layer);
}

int moxie_pack_expert(const moxie_plan* plan, uint32_t rank, int32_t layer, uint64_t expert,
                      void* blob, uint64_t bytes) noexcept {
  return guarded([&] {
    require_pointer(plan, "plan");
    require_pointer(blob, "blob");
    const moxie::ShardPlan& made = plan->plan;
    const moxie::RankPlan& part = require_rank(made, rank);
    require_owned(part, expert);
    require_blob_bytes(made, bytes);
    const std::span to(static_cast<std::byte*>(blob), bytes);
    const moxie::BlobSource from = source_of(*plan, rank, layer);
    from.pack_expert(expert, to);
    from.finish();
  });
}

int moxie_reload(moxie_layer* layer, uint32_t rank, uint64_t expert, const void* blob,
                 uint64_t bytes) noexcept {
  return guarded([&] {
    require_pointer(layer, "layer");
    require_pointer(blob, "blob");
    require_blob_bytes(layer->layer.plan(), bytes);
    layer->layer.reload(rank, expert, {static_cast<const std::byte*>(blob), bytes});
  });
}

}  // extern "C"

// SPDX-License-Identifier: Apache-2.0
// What stands behind the opaque handles of moxie.h.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "moxie/layer.hpp"
#include "moxie/model.hpp"
#include "moxie/moxie.h"
#include "moxie/pack.hpp"
#include "moxie/plan.hpp"

namespace moxie::capi {

// Where experts come from: one of the two.
struct Source {
  std::optional<MoeModel> model;
  std::optional<PackedFolder> folder;
  std::vector<Finding> findings;  // of opening
  std::vector<int> layers;        // that can be prepared, ascending

  [[nodiscard]] const ModelConfig& config() const {
    return folder ? folder->config : model->config;
  }
};

// What layers of a plan pass through on their way to a GPU: locking the memory takes as long as
// loading a layer. Kept until the plan is destroyed.
struct PlanStaging {
  std::mutex in_use;
  LoadStaging memory;
};

// Error(usage) MOXIE-K004.
const RankPlan& require_rank(const ShardPlan& plan, std::uint32_t rank);
// All plans here are contiguous.
ExpertRange contiguous_experts(const RankPlan& rank);

}  // namespace moxie::capi

// NOLINTBEGIN(readability-identifier-naming): names of the C header
struct moxie_model {
  std::shared_ptr<const moxie::capi::Source> source;
};

struct moxie_plan {
  std::shared_ptr<const moxie::capi::Source> source;
  moxie::ShardPlan plan;
  std::string json;
  std::unique_ptr<moxie::capi::PlanStaging> staging = std::make_unique<moxie::capi::PlanStaging>();
};

struct moxie_layer {
  moxie::MoeLayer layer;
  bool scales_missing;  // of policy warmup, before moxie_warm_up()
};
// NOLINTEND(readability-identifier-naming)

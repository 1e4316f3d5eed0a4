// SPDX-License-Identifier: Apache-2.0
// Everything that decides the plan is compared; what follows from it is sized again by opening.
#include "verify/plan_check.hpp"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/mapped_file.hpp"
#include "pack/layer_plan.hpp"
#include "pack/packed_names.hpp"
#include "pack/source_config.hpp"

namespace moxie {

namespace fs = std::filesystem;

namespace {

[[noreturn]] void refuse_model(const PackedSet& set, std::string what, std::string expected,
                               std::string got) {
  throw Error(ErrorCode::verdict,
              {.code = "MOXIE-V007",
               .message = "the packed set was made from another model: " + std::move(what),
               .where = {.file = (set.folder / kPlanFile).string()},
               .expected = std::move(expected),
               .got = std::move(got)});
}

class PlanCheck {
 public:
  PlanCheck(const PackedSet& set, const MoeModel& source) : set_(set), source_(source) {}

  std::vector<Finding> check() {
    if (set_.actual_plan_hash != set_.plan_hash) {
      findings_.push_back({.code = "MOXIE-V005",
                           .message = "plan does not match its hash",
                           .where = {.file = (set_.folder / kPlanFile).string()},
                           .expected = set_.plan_hash,
                           .got = set_.actual_plan_hash});
    }
    for (const std::string_view name : kConfigFiles) check_config(name);
    check_experts();
    check_axes();
    return std::move(findings_);
  }

 private:
  void require_same(std::string_view what, const std::string& expected,
                    const std::string& got) const {
    if (expected != got) refuse_model(set_, std::string(what) + " differs", expected, got);
  }
  void require_same(std::string_view what, std::uint64_t expected, std::uint64_t got) const {
    require_same(what, std::to_string(expected), std::to_string(got));
  }

  // What runs the set takes limits and sizes from its config: it is part of the proof.
  void check_config(std::string_view name) {
    const fs::path copy = set_.folder / name;
    const auto text = source_config(source_.checkpoint, name);
    if (!text || source_.checkpoint.config_path() == set_.folder / kConfigFiles[0]) return;
    if (!fs::is_regular_file(copy)) {
      findings_.push_back(
          {.code = "MOXIE-V004", .message = "config is absent", .where = {.file = copy.string()}});
    } else if (read_text_file(copy) != *text) {
      findings_.push_back(
          {.code = "MOXIE-V002",
           .message = "config differs from the source's",
           .where = {.file = copy.string()},
           .expected = "the " + std::string(name) + " of " + source_.checkpoint.path().string()});
    }
  }

  void check_experts() const {
    const ModelConfig& config = source_.config;
    const ShardPlan& plan = set_.plan;
    require_same("model", config.model_type, plan.model);
    require_same("hidden", config.hidden, plan.hidden);
    require_same("the intermediate size", config.inter, plan.inter().original.value);
    require_same("gating", config.gated ? "gated" : "not gated",
                 plan.gated ? "gated" : "not gated");
    require_same("the number of experts", config.experts, plan.experts);
    const bool held = std::ranges::any_of(source_.layers, [&](const LayerExperts& layer) {
      return layer.format == plan.format;  // a checkpoint may hold layers of both formats
    });
    if (source_.format && !held)
      require_same("format", std::string(name_of(*source_.format)),
                   std::string(name_of(plan.format)));
  }

  // Sets that were planned without the other axes hold routed experts only.
  void check_axes() const {
    const ShardPlan& plan = set_.plan;
    if (!plan.widths) return;
    const std::optional<V4Config>& config = source_.config.v4;
    require_same("what is known of the model", config ? "all of its sizes" : "its experts' sizes",
                 "all of its sizes");
    const auto size_of = [&](Axis axis) { return plan.find(axis)->original.value; };
    require_same("the number of heads", config->heads, size_of(Axis::heads));
    require_same("the number of output groups", config->output_groups,
                 size_of(Axis::output_groups));
    require_same("the shared experts' width", config->shared_inter, size_of(Axis::shared_inter));
    require_same("the vocabulary", config->vocab, size_of(Axis::vocab));
    require_same("the width of a head", config->head_dim, plan.widths->head_dim);
    require_same("the width of an output group", config->o_rank, plan.widths->o_rank);
    require_same("the tile of FP8 scales", config->tile, plan.widths->tile);
  }

  const PackedSet& set_;
  const MoeModel& source_;
  std::vector<Finding> findings_{};
};

}  // namespace

std::vector<Finding> check_plan(const PackedSet& set, const MoeModel& source) {
  return PlanCheck(set, source).check();
}

ShardPlan planned_layer(const PackedSet& set, const MoeModel& source, const LayerExperts& layer) {
  try {
    return plan_of_layer(source, set.plan, layer, set.layout);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unsupported) throw;
    const Finding& why = error.findings().front();
    refuse_model(set, why.message + " (layer " + std::to_string(layer.layer) + ")", why.got,
                 why.expected);
  }
}

}  // namespace moxie

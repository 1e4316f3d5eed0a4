// SPDX-License-Identifier: Apache-2.0
// A whole model must not be cut down to its experts silently.
#include "pack/experts_alone.hpp"

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "model/v4_config.hpp"
#include "pack/whole_model.hpp"

namespace moxie {

namespace {

// What the published converter leaves: its config has other keys.
constexpr std::string_view kConverted = "deepseek_v4_inference";

// Whether a tensor around the experts is named as the model's are.
bool has_own_name(const TensorInfo* tensor) {
  constexpr std::array<std::string_view, 3> kTop = {"embed.weight", "head.weight", "norm.weight"};
  const std::string_view name = tensor->name;
  return name.starts_with("layers.") || name.starts_with("mtp.") || name.starts_with("hc_head_") ||
         std::ranges::find(kTop, name) != kTop.end();
}

// Tensors that are neither of routed experts nor of a router.
std::vector<const TensorInfo*> tensors_around(const MoeModel& model) {
  std::set<const TensorInfo*> known;
  for (const LayerExperts& layer : model.layers) {
    const RouterTensors& router = layer.router;
    known.insert(
        {router.weight, router.bias, router.token_table, router.input_scale, router.expert_scale});
    for (const ExpertTensors& expert : layer.experts) known.merge(tensors_of(expert));
  }
  std::vector<const TensorInfo*> around;
  for (const TensorInfo& tensor : model.checkpoint.tensors()) {
    const auto speaks_of = [&](std::string_view word) {
      return tensor.name.find(word) != std::string::npos;
    };
    if (known.contains(&tensor) || speaks_of(".experts.") || speaks_of(".gate.")) continue;
    around.push_back(&tensor);
  }
  return around;
}

}  // namespace

std::vector<Finding> experts_alone(const MoeModel& model, bool asked) {
  const ModelConfig& config = model.config;
  if (!config.model_type.starts_with("deepseek_v4")) return {};
  const std::vector<const TensorInfo*> around = tensors_around(model);
  if (around.empty()) return {};
  Finding finding{.code = "MOXIE-K015",
                  .severity = Severity::warning,
                  .message = "the experts are packed alone: " + std::to_string(around.size()) +
                             " tensors around them have names that are not the model's",
                  .where = {.file = model.checkpoint.path().string()},
                  .expected = "names such as layers.0.attn_norm.weight",
                  .got = around.front()->name};
  if (config.v4 || std::ranges::none_of(around, has_own_name)) return {finding};
  if (config.model_type == kConverted) {
    finding.message =
        "the experts are packed alone: a config of the published converter does not "
        "size the " +
        std::to_string(around.size()) + " tensors around them";
    finding.expected = "the config.json that the model was published with";
    return {finding};
  }
  std::vector<Finding> findings;
  for (LackingKey& lack : lacking_v4_keys(model.checkpoint.config(), config)) {
    findings.push_back(
        {.code = "MOXIE-K015",
         .severity = asked ? Severity::warning : Severity::error,
         .message = "the config does not size the " + std::to_string(around.size()) +
                    " tensors around the experts: " + std::string(lack.key),
         .where = {.file = model.checkpoint.config_path().string()},
         .expected = std::move(lack.expected),
         .got = std::move(lack.got),
         .hint = asked ? "the experts are packed alone"
                       : "correct the key, or pack the experts alone with --layers 0.." +
                             std::to_string(config.num_layers - 1)});
  }
  return findings;
}

}  // namespace moxie

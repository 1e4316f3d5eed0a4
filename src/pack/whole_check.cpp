// SPDX-License-Identifier: Apache-2.0
// A source is looked at without a plan: which tensors belong to it does not depend on one.
#include "pack/whole_check.hpp"

#include <algorithm>
#include <iterator>
#include <set>
#include <string>
#include <utility>

#include "base/parallel.hpp"
#include "moxie/pack.hpp"
#include "pack/around_values.hpp"
#include "pack/experts_alone.hpp"
#include "pack/whole_model.hpp"

namespace moxie {

namespace {

ShardPlan plan_of_widths(const MoeModel& model) {
  ShardPlan plan;
  if (model.config.v4) plan.widths = model.config.v4->cut_widths();
  return plan;
}

// Of an absent shard the first tensor says it for the others.
void append_problems(std::vector<Finding>& findings, FileTensors file) {
  std::set<std::string> shards;
  std::erase_if(file.problems, [&](const Finding& problem) {
    return problem.code == "MOXIE-C010" && !shards.insert(problem.where.file).second;
  });
  std::ranges::move(file.problems, std::back_inserter(findings));
}

std::vector<Finding> check_values(const MoeModel& model, const FileTensors& file,
                                  const LayerExperts* layer) {
  std::vector<std::vector<Finding>> found(file.tensors.size());
  parallel_for(found.size(), [&](std::uint64_t i) {
    const TensorInfo& tensor = *file.tensors[i].source;
    found[i] = check_around_values(tensor, place_around(model, tensor, layer),
                                   model.checkpoint.bytes(tensor));
  });
  for (std::uint32_t i = 0; i < model.checkpoint.files().size(); ++i) model.checkpoint.release(i);
  std::vector<Finding> findings;
  for (std::vector<Finding>& of_tensor : found)
    std::ranges::move(of_tensor, std::back_inserter(findings));
  return findings;
}

}  // namespace

std::vector<Finding> check_whole_model(const MoeModel& model, const std::vector<int>& layers) {
  const ShardPlan plan = plan_of_widths(model);
  const WholeModel whole(model, plan);
  if (!whole.any()) return experts_alone(model, !layers.empty());
  std::vector<int> held = layers;
  if (held.empty())
    std::ranges::transform(model.layers, std::back_inserter(held), &LayerExperts::layer);
  std::vector<Finding> findings = whole.uncounted(held);
  const int last = static_cast<int>(model.config.v4->layers + model.config.v4->drafts);
  for (int layer = 0; layer < last; ++layer) {
    if (layers.empty() || std::ranges::find(layers, layer) != layers.end())
      append_problems(findings, whole.of_layer(layer));
  }
  if (!layers.empty()) return findings;
  append_problems(findings, whole.of_top());
  for (Finding& finding : whole.layers_without_experts(true)) {
    const bool dense = std::ranges::find(model.dense, finding.where.layer, [](const auto& experts) {
                         return std::optional(experts.layer);
                       }) != model.dense.end();
    if (!dense) findings.push_back(std::move(finding));
  }
  return findings;
}

std::vector<Finding> check_around(const MoeModel& model, const LayerExperts& layer) {
  const ShardPlan plan = plan_of_widths(model);
  const WholeModel whole(model, plan);
  if (whole.holds(layer.layer)) return check_values(model, whole.of_layer(layer.layer), &layer);
  FileTensors router;  // of DeepSeek-V4 experts alone
  for (const TensorInfo* tensor :
       {layer.router.weight, layer.router.bias, layer.router.token_table}) {
    if (tensor != nullptr && is_router_tensor(tensor->name)) router.tensors.push_back({{}, tensor});
  }
  return check_values(model, router, &layer);
}

std::vector<Finding> check_stored_top(const MoeModel& model) {
  const ShardPlan plan = plan_of_widths(model);
  return check_values(model, WholeModel(model, plan).of_top(), nullptr);
}

}  // namespace moxie

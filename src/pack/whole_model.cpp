// SPDX-License-Identifier: Apache-2.0
// Lists of the model against the directory of the checkpoint.
#include "pack/whole_model.hpp"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>
#include <utility>

namespace moxie {

namespace {

// The number in "PREFIX.7.…".
std::optional<int> number_after(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return std::nullopt;
  name.remove_prefix(prefix.size());
  int number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (error != std::errc() || number < 0 || end == name.data() + name.size() || *end != '.')
    return std::nullopt;
  return number;
}

std::string text_of(DType dtype, const Shape& shape) {
  return std::string(name_of(dtype)) + " " + to_string(shape);
}

bool is_router(std::string_view name) { return name.find(".ffn.gate.") != std::string_view::npos; }

std::optional<int> layer_field(int layer) {
  return layer < 0 ? std::nullopt : std::optional(layer);
}

}  // namespace

std::set<const TensorInfo*> tensors_of(const ExpertTensors& expert) {
  std::set<const TensorInfo*> tensors;
  for (const Projection* projection : {&expert.gate, &expert.up, &expert.down}) {
    tensors.insert({projection->codes.tensor, projection->block_scales.tensor,
                    projection->dequant_mul.tensor, projection->act_dequant_mul.tensor,
                    projection->bias.tensor});
  }
  return tensors;
}

WholeModel::WholeModel(const MoeModel& model, const ShardPlan& plan) : model_(model) {
  if (!plan.widths || !model.config.v4) return;
  config_ = &*model.config.v4;
  sort_by_layer();
  const auto is_there = [&](const ModelTensor& tensor) {
    return model_.checkpoint.find(tensor.name) != nullptr ||
           !model_.checkpoint.absent_shard_of(tensor.name).empty();
  };
  for (std::uint64_t layer = 0; layer < config_->layers + config_->drafts; ++layer) {
    const bool whole = std::ranges::any_of(layer_tensors(*config_, layer), [&](const auto& tensor) {
      return !is_router(tensor.name) && is_there(tensor);
    });
    if (whole) whole_layers_.insert(static_cast<int>(layer));
  }
  holds_top_ = std::ranges::any_of(top_tensors(*config_), is_there);
}

void WholeModel::sort_by_layer() {
  for (const TensorInfo& tensor : model_.checkpoint.tensors())
    by_layer_[layer_of(tensor.name)].push_back(&tensor);
}

// Numbers beyond the model's are no layer's: such tensors go where those without a number go.
int WholeModel::layer_of(std::string_view name) const {
  const auto layers = static_cast<int>(config_->layers);
  const auto drafts = static_cast<int>(config_->drafts);
  if (const auto layer = number_after(name, "layers."); layer && *layer < layers) return *layer;
  if (const auto draft = number_after(name, "mtp."); draft && *draft < drafts)
    return layers + *draft;
  return kTop;
}

FileTensors WholeModel::of_layer(int layer) const {
  FileTensors file;
  if (!holds(layer)) return file;
  for (const ModelTensor& listed : layer_tensors(*config_, static_cast<std::uint64_t>(layer)))
    require(listed, layer, file);
  std::set<const TensorInfo*> of_experts;
  const auto experts = std::ranges::find(model_.layers, layer, &LayerExperts::layer);
  if (experts != model_.layers.end()) {
    for (const ExpertTensors& expert : experts->experts) of_experts.merge(tensors_of(expert));
  }
  add_unlisted(layer, of_experts, file);
  return file;
}

FileTensors WholeModel::of_top() const {
  FileTensors file;
  if (!any()) return file;
  for (const ModelTensor& listed : top_tensors(*config_)) require(listed, kTop, file);
  add_unlisted(kTop, {}, file);
  return file;
}

void WholeModel::require(const ModelTensor& listed, int layer, FileTensors& file) const {
  const TensorInfo* tensor = model_.checkpoint.find(listed.name);
  if (tensor != nullptr && tensor->dtype == listed.dtype && tensor->shape == listed.shape) {
    file.tensors.push_back({listed, tensor});
    return;
  }
  const std::string_view shard = model_.checkpoint.absent_shard_of(listed.name);
  Finding finding{.code = "MOXIE-K013",
                  .message = "the tensor is absent",
                  .where = {.file = model_.checkpoint.path().string(),
                            .tensor = listed.name,
                            .layer = layer_field(layer)},
                  .expected = text_of(listed.dtype, listed.shape),
                  .got = "none"};
  if (tensor != nullptr) {
    finding.message = "the tensor has another type or shape than the model's";
    finding.where.file = model_.checkpoint.files()[tensor->file].path.string();
    finding.got = text_of(tensor->dtype, tensor->shape);
  } else if (!shard.empty()) {
    finding.code = "MOXIE-C010";
    finding.message = "the tensor's shard is not on disk";
    finding.where.file = (model_.checkpoint.path() / shard).string();
    finding.hint = "download the shard";
  }
  file.problems.push_back(std::move(finding));
}

void WholeModel::add_unlisted(int layer, const std::set<const TensorInfo*>& known,
                              FileTensors& file) const {
  const auto held = by_layer_.find(layer);
  if (held == by_layer_.end()) return;
  std::set<std::string_view> listed;
  for (const SourceTensor& tensor : file.tensors) listed.insert(tensor.tensor.name);
  for (const Finding& problem : file.problems) listed.insert(problem.where.tensor);
  std::vector<SourceTensor> unlisted;
  for (const TensorInfo* tensor : held->second) {
    if (known.contains(tensor) || listed.contains(tensor->name)) continue;
    unlisted.push_back(
        {{.name = tensor->name, .dtype = tensor->dtype, .shape = tensor->shape, .cut = {}},
         tensor});
    file.unlisted.push_back(
        {.code = "MOXIE-K014",
         .severity = Severity::warning,
         .message = "the tensor is not one of the model's; it is packed whole on every rank",
         .where = {.file = model_.checkpoint.files()[tensor->file].path.string(),
                   .tensor = tensor->name,
                   .layer = layer_field(layer)}});
  }
  std::ranges::move(unlisted, std::back_inserter(file.tensors));
}

std::vector<Finding> WholeModel::layers_without_experts() const {
  std::vector<Finding> findings;
  for (const int layer : whole_layers_) {
    if (std::ranges::find(model_.layers, layer, &LayerExperts::layer) != model_.layers.end())
      continue;
    findings.push_back({.code = "MOXIE-K013",
                        .message = "the layer has no routed experts",
                        .where = {.file = model_.checkpoint.path().string(), .layer = layer}});
  }
  return findings;
}

}  // namespace moxie

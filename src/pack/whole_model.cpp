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
  for (int layer = 0; layer < end(); ++layer) {
    const auto listed = layer_tensors(*config_, static_cast<std::uint64_t>(layer));
    if (std::ranges::any_of(listed, [&](const ModelTensor& tensor) {
          return !is_router(tensor.name) && is_there(tensor);
        }))
      begun_.insert(layer);
  }
  whole_ = !begun_.empty() || std::ranges::any_of(top_tensors(*config_), [&](const auto& tensor) {
    return is_there(tensor);
  });
  for (const LayerExperts& layer : model_.layers) {
    for (const ExpertTensors& expert : layer.experts) of_experts_.merge(tensors_of(expert));
  }
}

bool WholeModel::is_there(const ModelTensor& tensor) const {
  return model_.checkpoint.find(tensor.name) != nullptr ||
         !model_.checkpoint.absent_shard_of(tensor.name).empty();
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
  add_unlisted(layer, file);
  return file;
}

FileTensors WholeModel::of_top() const {
  FileTensors file;
  if (!any()) return file;
  for (const ModelTensor& listed : top_tensors(*config_)) require(listed, kTop, file);
  add_unlisted(kTop, file);
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

void WholeModel::add_unlisted(int layer, FileTensors& file) const {
  const auto held = by_layer_.find(layer);
  if (held == by_layer_.end()) return;
  std::set<std::string_view> listed;
  for (const SourceTensor& tensor : file.tensors) listed.insert(tensor.tensor.name);
  for (const Finding& problem : file.problems) listed.insert(problem.where.tensor);
  std::vector<SourceTensor> unlisted;
  for (const TensorInfo* tensor : held->second) {
    if (of_experts_.contains(tensor) || listed.contains(tensor->name)) continue;
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

std::vector<Finding> WholeModel::layers_without_experts(bool drafts) const {
  std::vector<Finding> findings;
  const int due = drafts ? end() : static_cast<int>(config_->layers);
  for (int layer = 0; layer < due; ++layer) {
    if (std::ranges::find(model_.layers, layer, &LayerExperts::layer) != model_.layers.end())
      continue;
    Finding finding{.code = "MOXIE-K013",
                    .message = "the layer has no routed experts",
                    .where = {.file = model_.checkpoint.path().string(), .layer = layer}};
    const auto number = static_cast<std::uint64_t>(layer);
    const auto listed =
        routed_tensors(*config_, number, model_.format.value_or(BlockFormat::mxfp4));
    const auto absent = std::ranges::find_if(listed, [&](const ModelTensor& tensor) {
      return !model_.checkpoint.absent_shard_of(tensor.name).empty();
    });
    if (absent != listed.end()) {
      const std::string_view shard = model_.checkpoint.absent_shard_of(absent->name);
      finding.code = "MOXIE-C010";
      finding.message = "the shard of the layer's routed experts is not on disk";
      finding.where.file = (model_.checkpoint.path() / shard).string();
      finding.where.tensor = absent->name;
      finding.hint = "download the shard";
    } else if (number >= config_->layers && !begun_.contains(layer)) {
      finding.code = "MOXIE-K017";
      finding.severity = Severity::warning;
      finding.message = "the config counts a draft block that the checkpoint does not hold";
    }
    findings.push_back(std::move(finding));
  }
  return findings;
}

std::vector<Finding> WholeModel::uncounted(const std::vector<int>& layers) const {
  std::vector<Finding> findings;
  for (const int layer : layers) {
    const bool held =
        std::ranges::find(model_.layers, layer, &LayerExperts::layer) != model_.layers.end();
    if (layer < end() || !held) continue;
    findings.push_back(
        {.code = "MOXIE-K016",
         .message = "the checkpoint holds a draft block that the config does not count",
         .where = {.file = model_.checkpoint.config_path().string(), .layer = layer},
         .expected = "compress_ratios of " + std::to_string(layer + 1) + " layers and drafts",
         .got = std::to_string(end()),
         .hint = "correct the config, or leave draft blocks out: --layers main"});
  }
  return findings;
}

}  // namespace moxie

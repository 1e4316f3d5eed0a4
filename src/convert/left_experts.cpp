// SPDX-License-Identifier: Apache-2.0
// Experts are found by their names, whatever format they are in.
#include "convert/left_experts.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "model/declared_format.hpp"
#include "model/dialects/choice.hpp"
#include "model/expert_names.hpp"

namespace moxie::convert {

namespace {

constexpr std::size_t kListed = 4;

// "model.layers.3.mlp.experts" of a tensor below it.
std::optional<std::string_view> experts_prefix(std::string_view name) {
  constexpr std::string_view kExperts = ".experts.";
  const std::size_t at = name.find(kExperts);
  if (at == std::string_view::npos || name.find("shared_expert") != std::string_view::npos)
    return std::nullopt;
  return name.substr(0, at + kExperts.size() - 1);
}

// Layers that the config counts after the last one.
std::uint64_t counted_blocks(const Json& config) {
  const Json* text = config.find("text_config");
  for (const Json* place : {&config, text}) {
    const Json* count = place != nullptr ? place->find("num_nextn_predict_layers") : nullptr;
    if (count != nullptr) return count->as_unsigned();
  }
  return 0;
}

std::string listed(const std::vector<std::string>& prefixes) {
  std::string text;
  for (std::size_t i = 0; i < std::min(prefixes.size(), kListed); ++i)
    text += (text.empty() ? "" : ", ") + prefixes[i];
  return prefixes.size() > kListed ? text + ", …" : text;
}

}  // namespace

std::vector<LeftExperts> find_left_experts(const Source& source) {
  const ModelConfig& config = source.model->config;
  const std::uint64_t blocks = counted_blocks(source.model->checkpoint.config());
  std::map<std::string, LeftExperts, std::less<>> found;
  for (const TensorInfo& tensor : source.model->checkpoint.tensors()) {
    if (source.replaced.contains(&tensor)) continue;
    const auto prefix = experts_prefix(tensor.name);
    if (!prefix || found.contains(*prefix)) continue;
    const auto block = block_of(*prefix);
    if (!block) continue;
    const bool is_converted =
        std::ranges::find(source.layers, block->number, &SourceLayer::layer) != source.layers.end();
    if (!block->mtp && is_converted) continue;
    const auto number = static_cast<std::uint64_t>(block->number);
    const bool follows = !block->mtp && number >= config.num_layers;
    found.emplace(
        *prefix,
        LeftExperts{.prefix = std::string(*prefix),
                    .tensor = &tensor,
                    .predicts = block->mtp || follows,
                    .is_counted = block->mtp || (follows && number - config.num_layers < blocks)});
  }
  std::vector<LeftExperts> left;
  for (auto& [prefix, experts] : found) left.push_back(std::move(experts));
  return left;
}

void require_words_for(const std::vector<LeftExperts>& left, const Source& source,
                       const Documents& documents) {
  if (left.empty()) return;
  const Checkpoint& checkpoint = source.model->checkpoint;
  const DeclaredFormat declared = declared_format(documents.config, documents.sidecar);
  const DeclaredLayers layers(documents.config, documents.sidecar);
  const ExpertNames names = find_expert_names(checkpoint);
  for (const LeftExperts& experts : left) {
    const auto group = names.groups.find(experts.prefix);
    if (group == names.groups.end() || !group->second.mtp) continue;
    const auto reads = [&](DeclaredDialect declaration) {
      return choose_dialect(experts.prefix, group->second, declaration).dialect != nullptr;
    };
    const bool is_fp4 = reads({});
    const bool is_left_out = !layers.format_of(experts.prefix, declared.format);
    if (is_fp4 || is_left_out ||
        !reads({.format = declared.format, .quantization = declared.quantization}))
      continue;
    throw Error(ErrorCode::unsupported,
                {.code = "MOXIE-Q005",
                 .message = "experts of a multi-token-prediction block stay as they are, and the "
                            "new config would call them FP4",
                 .where = {.file = checkpoint.files()[experts.tensor->file].path.string(),
                           .tensor = experts.tensor->name},
                 .expected = "experts of such blocks in FP4, or none",
                 .got = std::string(name_of(experts.tensor->dtype)),
                 .hint = experts.prefix.ends_with("ffn.experts")
                             ? "leave the block's tensors out of the input"
                             : "use --format mxfp4 --dialect compressed-tensors"});
  }
}

std::vector<Finding> notes_on(const std::vector<LeftExperts>& left,
                              const std::vector<Finding>& known) {
  std::vector<std::string> predicting;
  std::vector<std::string> unnamed;
  for (const LeftExperts& experts : left) {
    if (experts.predicts) predicting.push_back(experts.prefix);
    const bool is_known = std::ranges::any_of(known, [&](const Finding& finding) {
      return finding.code == "MOXIE-M015" && finding.got.find(experts.prefix) != std::string::npos;
    });
    if (!experts.is_counted && !is_known) unnamed.push_back(experts.prefix);
  }
  std::vector<Finding> notes;
  if (!unnamed.empty()) {
    notes.push_back({.code = "MOXIE-M015",
                     .severity = Severity::warning,
                     .message = "experts of layers that the config does not name are not converted",
                     .got = listed(unnamed),
                     .hint = "check num_hidden_layers"});
  }
  if (!predicting.empty()) {
    notes.push_back({.code = "MOXIE-Q011",
                     .severity = Severity::note,
                     .message = "experts of multi-token-prediction blocks stay as they are",
                     .got = listed(predicting)});
  }
  return notes;
}

void refuse_other_format(const Source& source, int layer) {
  const MoeModel& model = *source.model;
  std::string expected;
  if (!source.layers.empty()) {
    expected = source.name + ", as layer " + std::to_string(source.layers.front().layer);
  } else if (!model.layers.empty()) {
    expected =
        std::string(name_of(model.layers.front().format)) + ", as " + model.layers.front().prefix;
  } else {
    return;
  }
  for (const TensorInfo& tensor : model.checkpoint.tensors()) {
    const auto prefix = experts_prefix(tensor.name);
    const auto block = prefix ? block_of(*prefix) : std::nullopt;
    const bool is_matrix =
        tensor.shape.size() > 1 && tensor.name.find("scale") == std::string::npos;
    if (!block || block->mtp || block->number != layer || !is_matrix) continue;
    throw Error(ErrorCode::unsupported,
                {.code = "MOXIE-M009",
                 .message = "experts are in different formats, and only those in one are converted",
                 .where = {.file = model.checkpoint.files()[tensor.file].path.string(),
                           .tensor = tensor.name,
                           .layer = layer},
                 .expected = std::move(expected),
                 .got = std::string(name_of(tensor.dtype)),
                 .hint = "convert the checkpoint that this one was made of, whose experts are all "
                         "in one format"});
  }
}

}  // namespace moxie::convert

// SPDX-License-Identifier: Apache-2.0
// Joins config and tensors: chooses a dialect per layer, believes the tensors where both disagree.
#include "moxie/model.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/checked.hpp"
#include "base/parallel.hpp"
#include "formats/block_format.hpp"
#include "model/declared_format.hpp"
#include "model/dense_experts.hpp"
#include "model/dialects/choice.hpp"
#include "model/expert_names.hpp"
#include "model/layer_reader.hpp"

namespace moxie {

namespace {

std::string with_layer(std::string prefix, int layer) {
  if (const auto at = prefix.find("{}"); at != std::string::npos)
    prefix.replace(at, 2, std::to_string(layer));
  return prefix;
}

std::string sample(const std::map<std::string, DType, std::less<>>& leaves) {
  std::string text;
  std::size_t listed = 0;
  for (const auto& [leaf, dtype] : leaves) {
    if (++listed > 4) return text + ", …";
    text += (text.empty() ? "" : ", ") + leaf + " " + std::string(name_of(dtype));
  }
  return text;
}

std::string joined(const std::vector<std::string_view>& names) {
  std::string text;
  for (const std::string_view name : names) text += (text.empty() ? "" : ", ") + std::string(name);
  return text;
}

// read_config, naming the file that was read.
ModelConfig config_of(const Checkpoint& checkpoint) {
  try {
    return read_config(checkpoint.config(), checkpoint.quant_config());
  } catch (const Error& error) {
    Finding finding = error.findings().front();
    const auto& path = checkpoint.config_path();
    finding.where.file = path.empty() ? checkpoint.path().string() : path.string();
    throw Error(error.code(), std::move(finding));
  }
}

class ModelReader {
 public:
  explicit ModelReader(const Checkpoint& checkpoint)
      : model_{.checkpoint = checkpoint,
               .config = config_of(checkpoint),
               .format = {},
               .dialect = {},
               .layers = {},
               .dense = {},
               .findings = {}},
        names_(find_expert_names(checkpoint)),
        declared_layers_(checkpoint.config(), checkpoint.quant_config()) {}

  MoeModel read() {
    model_.format = model_.config.format;
    if (model_.checkpoint.files().empty() && model_.checkpoint.findings().empty()) {
      if (config_leaves_all_out()) model_.format.reset();
      count_fp4_layers();
      return std::move(model_);
    }
    const ModelConfig& config = model_.config;
    assume_main_dialect();
    std::vector<LayerRequest> requests;
    std::vector<int> without_tensors;
    for (const int layer : config.moe_layers) {
      if (auto request = request_for(layer)) {
        requests.push_back(std::move(*request));
      } else if (names_.groups.contains(with_layer(main_prefix(), layer))) {
        unquantised_.push_back(layer);
      } else {
        without_tensors.push_back(layer);
      }
    }
    for (const auto& [prefix, group] : names_.groups) {
      if (auto request = group.mtp ? request_for_mtp(prefix, group) : std::nullopt)
        requests.push_back(std::move(*request));
    }
    if (requests.empty()) return refuse_or_note();
    model_.layers.resize(requests.size());
    parallel_for(requests.size(), [&](std::uint64_t i) {
      model_.layers[i] = read_layer(model_.checkpoint, config, requests[i], names_);
    });
    std::ranges::sort(model_.layers, {}, &LayerExperts::layer);
    find_input_scales();
    note_absent_layers(without_tensors);
    note_unquantised_layers();
    compare_layers_with_lists();
    note_unnamed_layers();
    compare_with_config();
    count_fp4_layers();
    return std::move(model_);
  }

 private:
  [[nodiscard]] DeclaredDialect declared() const {
    return {.format = model_.config.format, .quantization = model_.config.quantization};
  }

  // Layers of which nothing is on disk are named as the first one that is.
  void assume_main_dialect() {
    for (const auto& [prefix, group] : names_.groups) {
      if (group.mtp || main_choice_.dialect != nullptr) continue;
      main_choice_ = choose_dialect(prefix, group, declared());
    }
  }

  // What to read for a main layer; nullopt when no tensor of it is on disk or in the index.
  std::optional<LayerRequest> request_for(int layer) {
    const std::string prefix = with_layer(main_prefix(), layer);
    LayerRequest request{
        .layer = layer, .mtp = false, .prefix = prefix, .experts = model_.config.experts};
    const auto found = names_.groups.find(prefix);
    DialectChoice choice;
    if (found != names_.groups.end()) {
      // What the config leaves out is read only where the tensors themselves are FP4.
      const bool left_out = model_.config.format && !declared_of(prefix);
      choice = choose_dialect(prefix, found->second, left_out ? DeclaredDialect{} : declared());
      if (choice.dialect == nullptr) {
        foreign_leaves_ = sample(found->second.leaves);
        return std::nullopt;
      }
      request.group = &found->second;
      request.problems = problems_of(found->second, layer, model_.config.experts);
    } else {
      choice = main_choice_.dialect != nullptr ? main_choice_ : assume_dialect(prefix, declared());
      if (choice.dialect == nullptr) return std::nullopt;
      const std::string weight = choice.weight_name(prefix, ProjectionKind::down);
      if (model_.checkpoint.absent_shard_of(weight).empty()) return std::nullopt;
    }
    request.dialect = choice.dialect;
    request.names = choice.names;
    return request;
  }

  std::optional<LayerRequest> request_for_mtp(const std::string& prefix, const ExpertGroup& group) {
    // As for main layers: what the config leaves out is read only where it is FP4.
    const bool left_out = model_.config.format && !declared_of(prefix);
    const DialectChoice choice =
        choose_dialect(prefix, group, left_out ? DeclaredDialect{} : declared());
    if (choice.dialect == nullptr) return std::nullopt;
    const int layer = static_cast<int>(model_.config.num_layers) + group.number;
    // No more experts than tensors: a single large id must not make room for all below it.
    const std::uint64_t experts = std::min(group.expert_end, group.tensors);
    return LayerRequest{.layer = layer,
                        .mtp = true,
                        .prefix = prefix,
                        .experts = experts,
                        .dialect = choice.dialect,
                        .names = choice.names,
                        .group = &group,
                        .problems = problems_of(group, layer, experts)};
  }

  // What is wrong with a group whatever its tensors are.
  [[nodiscard]] std::vector<Finding> problems_of(const ExpertGroup& group, int layer,
                                                 std::uint64_t experts) const {
    std::vector<Finding> problems;
    const auto add = [&](std::string code, std::string message, std::string expected,
                         std::string got) {
      problems.push_back({.code = std::move(code),
                          .message = std::move(message),
                          .where = {.file = model_.checkpoint.path().string(), .layer = layer},
                          .expected = std::move(expected),
                          .got = std::move(got)});
    };
    if (group.expert_end > experts) {
      add("MOXIE-M003", "the layer holds an expert beyond the number of experts",
          std::to_string(experts) + " experts", "expert " + std::to_string(group.expert_end - 1));
    }
    std::string prefixes;
    std::size_t claims = 0;
    for (const auto& [prefix, other] : names_.groups) {
      if (other.mtp != group.mtp || other.number != group.number) continue;
      prefixes += (++claims > 1 ? ", " : "") + prefix;
    }
    if (claims > 1) add("MOXIE-M014", "several groups of experts claim the layer", "one", prefixes);
    return problems;
  }

  [[nodiscard]] std::string main_prefix() const {
    if (!names_.main_prefix.empty()) return names_.main_prefix;
    const bool native = model_.config.model_type.starts_with("deepseek_v4");
    return std::string(native ? kDeepseekV4.default_prefix : kModelopt.default_prefix);
  }

  // No layer can be read. With a declared FP4 format that is an error; without one the experts are
  // in another format.
  MoeModel refuse_or_note() {
    const ModelConfig& config = model_.config;
    std::string unmatched = foreign_leaves_;
    for (const std::string_view name : names_.unmatched)
      unmatched += (unmatched.empty() ? "" : ", ") + std::string(name);
    if (config.format && !config.moe_layers.empty()) {
      const std::string prefix = with_layer(main_prefix(), config.moe_layers.front());
      const DialectChoice assumed = assume_dialect(prefix, declared());
      const std::uint64_t expected = config.experts * projections_of(config).size();
      const std::string first =
          assumed.dialect == nullptr ? prefix : assumed.weight_name(prefix, ProjectionKind::up);
      throw Error(ErrorCode::input,
                  {.code = assumed.dialect == nullptr || !foreign_leaves_.empty() ? "MOXIE-M002"
                                                                                  : "MOXIE-M004",
                   .message = "no dialect matches the expert tensors: 0 of " +
                              std::to_string(expected) + " expected weights of layer " +
                              std::to_string(config.moe_layers.front()) + " found",
                   .where = {.file = model_.checkpoint.path().string()},
                   .expected = first + ", … (" + std::string(name_of(*config.format)) +
                               " as the config declares)",
                   .got = unmatched.empty() ? "no expert tensor" : unmatched,
                   .hint = "known dialects: " + joined(dialect_names())});
    }
    model_.dense = find_dense_experts(model_.checkpoint, config, names_);
    if (!model_.dense.empty()) {
      if (model_.dense.size() < config.moe_layers.size()) note_absent_dense();
      return std::move(model_);
    }
    model_.findings.push_back({.code = "MOXIE-M010",
                               .severity = Severity::warning,
                               .message = "the experts are in no known FP4 format",
                               .where = {.file = model_.checkpoint.path().string()},
                               .got = unmatched});
    return std::move(model_);
  }

  void note_absent_dense() {
    std::vector<int> absent;
    for (const int layer : model_.config.moe_layers) {
      if (std::ranges::find(model_.dense, layer, &DenseExperts::layer) == model_.dense.end())
        absent.push_back(layer);
    }
    note_absent_layers(absent);
  }

  // A GGUF file has no words for the scales that it may hold.
  void find_input_scales() {
    const auto holds_scales = [](const LayerExperts& layer) {
      return layer.dialect == kGgufNvfp4.name && !layer.mtp && !layer.experts.empty() &&
             layer.experts.front().up.act_dequant_mul.present();
    };
    if (std::ranges::any_of(model_.layers, holds_scales)) model_.config.input_scales = true;
  }

  void note_absent_layers(const std::vector<int>& layers) {
    if (layers.empty()) return;
    model_.findings.push_back(
        {.code = "MOXIE-M012",
         .severity = Severity::warning,
         .message = std::to_string(layers.size()) + " layers with experts have no tensors here",
         .where = {.file = model_.checkpoint.path().string(), .layer = layers.front()},
         .expected = std::to_string(model_.config.moe_layers.size()) + " layers",
         .got = std::to_string(model_.config.moe_layers.size() - layers.size())});
  }

  [[nodiscard]] std::optional<BlockFormat> declared_of(std::string_view prefix) const {
    return declared_layers_.format_of(prefix, model_.config.format);
  }

  // Layers that are read count, and of the others those that the config declares in FP4.
  void count_fp4_layers() {
    if (!model_.config.format) return;
    std::uint64_t count = 0;
    for (const int layer : model_.config.moe_layers) {
      const bool is_read = std::ranges::any_of(model_.layers, [&](const LayerExperts& read) {
        return !read.mtp && read.layer == layer;
      });
      const std::string prefix = with_layer(main_prefix(), layer);
      const bool is_dense = names_.groups.contains(prefix) && !is_read;
      count += is_read || (!is_dense && declared_of(prefix)) ? 1 : 0;
    }
    if (count != model_.config.moe_layers.size() && count > 0) model_.fp4_layers = count;
  }

  [[nodiscard]] bool config_leaves_all_out() const {
    return std::ranges::none_of(model_.config.moe_layers, [&](int layer) {
      return declared_of(with_layer(main_prefix(), layer)).has_value();
    });
  }

  // Experts in no FP4 format beside layers that are. A list of the config may say so.
  void note_unquantised_layers() {
    if (unquantised_.empty()) return;
    const auto declared = [&](int layer) {
      return declared_of(with_layer(main_prefix(), layer)).has_value();
    };
    const auto count = static_cast<std::size_t>(std::ranges::count_if(unquantised_, declared));
    const auto first = std::ranges::find_if(unquantised_, declared);
    const bool agrees = count == 0;
    model_.findings.push_back(
        {.code = agrees ? "MOXIE-M010" : "MOXIE-M003",
         .severity = agrees ? Severity::note : Severity::warning,
         .message = agrees ? "experts of " + std::to_string(unquantised_.size()) +
                                 " layers are in no FP4 format, as the config says"
                           : "config and tensors disagree on the format of " +
                                 std::to_string(count) + " layers; the tensors are believed",
         .where = {.file = model_.checkpoint.path().string(),
                   .layer = agrees ? unquantised_.front() : *first},
         .expected = agrees ? std::string() : std::string("experts in FP4"),
         .got = foreign_leaves_});
  }

  // Layers whose tensors are not what a list or a table of the config says of them alone.
  void compare_layers_with_lists() {
    const std::optional<BlockFormat> overall = model_.config.format;
    const LayerExperts* first = nullptr;
    std::size_t count = 0;
    for (const LayerExperts& layer : model_.layers) {
      const auto declared = declared_of(layer.prefix);
      if (layer.mtp || declared == overall || declared == layer.format) continue;
      if (++count == 1) first = &layer;
    }
    if (first == nullptr) return;
    const auto declared = declared_of(first->prefix);
    model_.findings.push_back(
        {.code = "MOXIE-M003",
         .severity = Severity::warning,
         .message = "a list of the config and the tensors disagree on the format of " +
                    std::to_string(count) + " layers; the tensors are believed",
         .where = {.layer = first->layer},
         .expected =
             declared ? std::string(name_of(*declared)) : "experts left out of quantisation",
         .got = std::string(name_of(first->format))});
  }

  // Layers on disk that the config does not name: not read, so not lost silently.
  void note_unnamed_layers() {
    std::string unnamed;
    for (const auto& [prefix, group] : names_.groups) {
      const auto& known = model_.config.moe_layers;
      if (group.mtp || std::ranges::find(known, group.number) != known.end()) continue;
      // Prediction blocks after the last layer are usually left in another format.
      if (choose_dialect(prefix, group, {}).dialect == nullptr) continue;
      unnamed += (unnamed.empty() ? "" : ", ") + prefix;
    }
    if (unnamed.empty()) return;
    model_.findings.push_back(
        {.code = "MOXIE-M015",
         .severity = Severity::warning,
         .message = "experts of layers that the config does not name are not read",
         .where = {.file = model_.checkpoint.path().string()},
         .got = unnamed});
  }

  void compare_with_config() {
    for (const LayerExperts& layer : model_.layers) {
      if (layer.mtp) continue;
      if (model_.dialect.empty()) {
        model_.dialect = layer.dialect;
        // What a list says of the layer alone has been compared.
        const auto declared = declared_of(layer.prefix);
        if (declared && declared == model_.config.format && *declared != layer.format) {
          model_.findings.push_back(
              {.code = "MOXIE-M003",
               .severity = Severity::warning,
               .message = "config and tensors disagree on the format; the tensors are believed",
               .where = {.layer = layer.layer},
               .expected =
                   std::string(name_of(*declared)) + " (" + model_.config.quantization + ")",
               .got = std::string(name_of(layer.format))});
        } else if (!may_declare(model_.config.quantization, layer.dialect)) {
          model_.findings.push_back(
              {.code = "MOXIE-M003",
               .severity = Severity::warning,
               .message = "config and tensors disagree on the dialect; the tensors are believed",
               .where = {.layer = layer.layer},
               .expected = "a dialect of " + model_.config.quantization,
               .got = std::string(layer.dialect)});
        }
        model_.format = layer.format;
      } else if (layer.format != *model_.format) {
        model_.findings.push_back({.code = "MOXIE-M009",
                                   .severity = Severity::warning,
                                   .message = "layers are in different formats",
                                   .where = {.layer = layer.layer},
                                   .expected = std::string(name_of(*model_.format)),
                                   .got = std::string(name_of(layer.format))});
        return;
      }
    }
  }

  MoeModel model_;
  ExpertNames names_;
  DeclaredLayers declared_layers_;
  std::vector<int> unquantised_;
  DialectChoice main_choice_;
  std::string foreign_leaves_;
};

}  // namespace

std::string_view name_of(ProjectionKind kind) {
  return kind == ProjectionKind::gate ? "gate" : kind == ProjectionKind::up ? "up" : "down";
}

std::vector<ProjectionKind> projections_of(const ModelConfig& config) {
  if (!config.gated) return {ProjectionKind::up, ProjectionKind::down};
  return {ProjectionKind::gate, ProjectionKind::up, ProjectionKind::down};
}

std::uint64_t expert_bytes(const ModelConfig& config, BlockFormat format) {
  const std::uint64_t elems = config.hidden * config.inter;
  const std::uint64_t scalars =
      block_spec(format).has_global ? (config.input_scales ? 2 : 1) * sizeof(float) : 0;
  const std::uint64_t outputs = (projections_of(config).size() - 1) * config.inter + config.hidden;
  const std::uint64_t biases = config.biases ? outputs * sizeof(std::uint16_t) : 0;
  return projections_of(config).size() * (elems / 2 + elems / scale_group(format) + scalars) +
         biases;
}

MoeModel read_model(const Checkpoint& checkpoint) { return ModelReader(checkpoint).read(); }

const LayerExperts& MoeModel::require_layer(int layer) const {
  const auto found = std::ranges::find(layers, layer, &LayerExperts::layer);
  if (found == layers.end()) {
    throw Error(ErrorCode::input, {.code = "MOXIE-M011",
                                   .message = "no expert tensors of this layer are here",
                                   .where = {.file = checkpoint.path().string(), .layer = layer}});
  }
  if (!found->problems.empty()) throw Error::of(ErrorCode::input, found->problems);
  return *found;
}

float read_scalar(const Checkpoint& checkpoint, const ScalarRef& scalar) {
  if (!scalar.present()) {
    throw Error(ErrorCode::input, {.code = "MOXIE-M006",
                                   .message = "the scale is absent",
                                   .where = {.file = checkpoint.path().string()}});
  }
  const float stored = stored_scalar(checkpoint, scalar);
  const float value = scalar.multiplier(stored);
  const auto usable = [](float number) { return std::isfinite(number) && number > 0; };
  if (usable(stored) && usable(value)) return value;
  const TensorInfo& tensor = *scalar.tensor;  // where 1 is meant, it is usable
  const bool overflows = usable(stored);
  throw Error(ErrorCode::input, {.code = "MOXIE-M007",
                                 .message = overflows ? "the scale's reciprocal is not finite"
                                                      : "scale is not finite and greater than zero",
                                 .where = {.file = checkpoint.files()[tensor.file].path.string(),
                                           .tensor = tensor.name},
                                 .got = overflows ? "a subnormal number" : std::to_string(stored)});
}

}  // namespace moxie

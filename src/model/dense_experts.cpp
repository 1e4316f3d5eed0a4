// SPDX-License-Identifier: Apache-2.0
// Expected names, types and shapes of dense experts against what the checkpoint holds.
#include "model/dense_experts.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "base/checked.hpp"

namespace moxie {

namespace {

constexpr std::size_t kMaxProblems = 8;  // per layer

using Names = std::array<std::string_view, 3>;  // by ProjectionKind
constexpr Names kProj = {"gate_proj", "up_proj", "down_proj"};
constexpr Names kNumbered = {"w1", "w3", "w2"};

// How a family stacks its experts: gate_up_proj and down_proj hold all of a layer.
struct StackedLayout {
  std::string_view model_type;
  bool input_major = false;  // [E, H, 2I] and [E, I, H]; else [E, 2I, H] and [E, H, I]
  bool interleaved = false;  // gate 0, up 0, gate 1, …; else all gates first
};
constexpr std::array kStackedLayouts = {
    StackedLayout{.model_type = "gpt_oss", .input_major = true, .interleaved = true},
    StackedLayout{.model_type = "qwen3_5_moe"},
    StackedLayout{.model_type = "qwen3_5_moe_text"},
};

std::optional<DenseFormat> format_of(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return DenseFormat::bf16;
    case DType::f16:
      return DenseFormat::f16;
    case DType::f32:
      return DenseFormat::f32;
    case DType::f8_e4m3:
      return DenseFormat::fp8_block;
    default:
      return std::nullopt;
  }
}

// `weight_block_size` of the config's FP8 record; 128 x 128 where it is silent.
std::array<std::uint64_t, 2> tile_of(const Json& config) {
  std::array<std::uint64_t, 2> tile = {128, 128};
  const Json* text = config.find("text_config");
  for (const Json* place : {&config, text}) {
    const Json* quantization = place != nullptr ? place->find("quantization_config") : nullptr;
    const Json* size = quantization != nullptr ? quantization->find("weight_block_size") : nullptr;
    if (size == nullptr || size->elements().size() != 2) continue;
    for (std::size_t axis = 0; axis < 2; ++axis)
      tile[axis] = std::max<std::uint64_t>(size->elements()[axis].as_unsigned(), 1);
  }
  return tile;
}

class DenseReader {
 public:
  DenseReader(const Checkpoint& checkpoint, const ModelConfig& config, int layer,
              std::string prefix)
      : checkpoint_(checkpoint), config_(config) {
    layer_.layer = layer;
    layer_.prefix = std::move(prefix);
    layer_.experts.resize(config.experts);
  }

  // nullopt when the group's tensors are of none of the types.
  std::optional<DenseExperts> read_each(const ExpertGroup& group) {
    const auto naming = std::ranges::find_if(kNamings, [&](const Names& names) {
      return group.leaves.contains(std::string(names[2]) + ".weight");
    });
    if (naming == kNamings.end()) return std::nullopt;
    const auto format = format_of(group.leaves.at(std::string((*naming)[2]) + ".weight"));
    if (!format) return std::nullopt;
    layer_.format = *format;
    layer_.projections = *naming;
    std::string_view scale_part;
    if (*format == DenseFormat::fp8_block) {
      for (const std::string_view part : {".weight_scale_inv", ".scale"}) {
        if (group.leaves.contains(std::string((*naming)[2]) + std::string(part))) scale_part = part;
      }
      if (scale_part.empty()) return std::nullopt;
    }
    report_unknown(group, *naming, scale_part);
    if (group.expert_end > config_.experts) {
      problem({.code = "MOXIE-M003",
               .message = "the layer holds an expert beyond the number of experts",
               .expected = std::to_string(config_.experts) + " experts",
               .got = "expert " + std::to_string(group.expert_end - 1)});
    }
    for (expert_ = 0; expert_ < config_.experts; ++expert_) {
      for (const ProjectionKind kind : projections_of(config_)) read_one(kind, scale_part);
    }
    report_missing();
    return std::move(layer_);
  }

  std::optional<DenseExperts> read_stacked(const StackedLayout& layout) {
    const std::string gate_up_name = layer_.prefix + ".gate_up_proj";
    const std::string down_name = layer_.prefix + ".down_proj";
    layer_.stacked = true;
    layer_.projections = kProj;
    const std::uint64_t experts = config_.experts;
    const std::uint64_t hidden = config_.hidden;
    const std::uint64_t inter = config_.inter;
    const bool by_input = layout.input_major;
    const Shape gate_up_shape =
        by_input ? Shape{experts, hidden, 2 * inter} : Shape{experts, 2 * inter, hidden};
    const Shape down_shape =
        by_input ? Shape{experts, inter, hidden} : Shape{experts, hidden, inter};
    const TensorInfo* gate_up = stacked_tensor(gate_up_name, gate_up_shape);
    const TensorInfo* down = stacked_tensor(down_name, down_shape);
    if (gate_up != nullptr && down != nullptr && gate_up->dtype != down->dtype)
      wrong(*down, std::string(name_of(gate_up->dtype)) + " as gate_up_proj");
    report_missing();
    if (gate_up == nullptr || down == nullptr || !layer_.problems.empty()) return std::move(layer_);
    const auto format = format_of(gate_up->dtype);
    layer_.format = *format;
    // Neighbouring rows of one half, and what lies between the halves, in units of one row.
    const std::uint64_t step = layout.interleaved ? 2 : 1;
    const std::uint64_t half = layout.interleaved ? 1 : inter;
    const std::uint64_t row = by_input ? 1 : hidden;
    const std::uint64_t col = by_input ? 2 * inter : 1;
    for (std::uint64_t expert = 0; expert < experts; ++expert) {
      const std::uint64_t first = expert * 2 * inter * hidden;
      auto& [gate, up, down_matrix] = layer_.experts[expert];
      gate = {.weight = gate_up,
              .rows = inter,
              .cols = hidden,
              .first = first,
              .row_step = step * row,
              .col_step = col};
      up = gate;
      up.first += half * row;
      down_matrix = {.weight = down,
                     .rows = hidden,
                     .cols = inter,
                     .first = expert * hidden * inter,
                     .row_step = by_input ? 1 : inter,
                     .col_step = by_input ? hidden : 1};
    }
    return std::move(layer_);
  }

 private:
  static constexpr std::array<Names, 2> kNamings = {kProj, kNumbered};

  void problem(Finding finding) {
    if (layer_.problems.size() >= kMaxProblems) return;
    if (finding.where.file.empty()) finding.where.file = checkpoint_.path().string();
    finding.where.layer = layer_.layer;
    layer_.problems.push_back(std::move(finding));
  }

  void wrong(const TensorInfo& tensor, std::string expected) {
    problem({.code = "MOXIE-M005",
             .message = "expert tensor has another type or shape than its format needs",
             .where = {.file = checkpoint_.files()[tensor.file].path.string(),
                       .tensor = tensor.name,
                       .expert = layer_.stacked ? std::nullopt : std::optional(expert_)},
             .expected = std::move(expected),
             .got = std::string(name_of(tensor.dtype)) + " " + to_string(tensor.shape)});
  }

  const TensorInfo* require(const std::string& name) {
    ++expected_;
    const TensorInfo* tensor = checkpoint_.find(name);
    if (tensor != nullptr) {
      ++found_;
      return tensor;
    }
    const std::string_view shard = checkpoint_.absent_shard_of(name);
    if (!shard.empty()) {
      ++absent_[std::string(shard)];
    } else if (first_missing_.empty()) {
      first_missing_ = name;
      first_missing_expert_ = expert_;
    }
    return nullptr;
  }

  void read_one(ProjectionKind kind, std::string_view scale_part) {
    const auto index = static_cast<std::size_t>(kind);
    const bool down = kind == ProjectionKind::down;
    const std::string stem = layer_.prefix + "." + std::to_string(expert_) + "." +
                             std::string(layer_.projections[index]);
    DenseMatrix& matrix = layer_.experts[expert_][index];
    matrix.rows = down ? config_.hidden : config_.inter;
    matrix.cols = down ? config_.inter : config_.hidden;
    matrix.row_step = matrix.cols;
    matrix.weight = require(stem + ".weight");
    const Shape shape{matrix.rows, matrix.cols};
    if (matrix.weight != nullptr &&
        (format_of(matrix.weight->dtype) != layer_.format || matrix.weight->shape != shape))
      wrong(*matrix.weight, expected_type() + " " + to_string(shape));
    if (scale_part.empty()) return;
    const auto tile = tile_of(checkpoint_.config());
    matrix.tile_rows = tile[0];
    matrix.tile_cols = tile[1];
    matrix.scales = require(stem + std::string(scale_part));
    const Shape tiles{divide_up(matrix.rows, tile[0]), divide_up(matrix.cols, tile[1])};
    if (matrix.scales == nullptr) return;
    const DType dtype = matrix.scales->dtype;
    const bool known = dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f8_e8m0;
    if (!known || matrix.scales->shape != tiles) {
      wrong(*matrix.scales, "F32, BF16 or F8_E8M0 " + to_string(tiles) + ", one scale for " +
                                std::to_string(tile[0]) + " x " + std::to_string(tile[1]) +
                                " elements");
    }
  }

  [[nodiscard]] std::string expected_type() const {
    switch (layer_.format) {
      case DenseFormat::bf16:
        return "BF16";
      case DenseFormat::f16:
        return "F16";
      case DenseFormat::f32:
        return "F32";
      case DenseFormat::fp8_block:
        break;
    }
    return "F8_E4M3";
  }

  const TensorInfo* stacked_tensor(const std::string& name, const Shape& shape) {
    const TensorInfo* tensor = require(name);
    if (tensor == nullptr) return nullptr;
    const auto format = format_of(tensor->dtype);
    if (format && *format != DenseFormat::fp8_block && tensor->shape == shape) return tensor;
    wrong(*tensor, "BF16, F16 or F32 " + to_string(shape) + " as " + config_.model_type +
                       " stacks its experts");
    return tensor;
  }

  // A tensor that is not understood may change what the others mean.
  void report_unknown(const ExpertGroup& group, const Names& names, std::string_view scale_part) {
    std::string unknown;
    for (const auto& [leaf, dtype] : group.leaves) {
      const bool known = std::ranges::any_of(names, [&](std::string_view name) {
        if (!leaf.starts_with(name)) return false;
        const std::string_view part = std::string_view(leaf).substr(name.size());
        return part == ".weight" || (!scale_part.empty() && part == scale_part);
      });
      if (!known) unknown += (unknown.empty() ? "" : ", ") + leaf;
    }
    if (unknown.empty()) return;
    problem({.code = "MOXIE-M013",
             .message = "experts have tensors beside their " + expected_type() +
                        " weights that are not known",
             .got = unknown});
  }

  void report_missing() {
    for (const auto& [shard, count] : absent_) {
      problem({.code = "MOXIE-C010",
               .message = "shard is not on disk; " + std::to_string(count) +
                          " tensors of the layer depend on it",
               .where = {.file = (checkpoint_.path() / shard).string()},
               .hint = "download the shard"});
    }
    if (first_missing_.empty()) return;
    problem({.code = "MOXIE-M004",
             .message = std::to_string(found_) + " of " + std::to_string(expected_) +
                        " expected expert tensors found; first missing: " + first_missing_,
             .where = {.expert =
                           layer_.stacked ? std::nullopt : std::optional(first_missing_expert_)}});
  }

  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  DenseExperts layer_;
  std::uint64_t expert_ = 0;
  std::uint64_t expected_ = 0;
  std::uint64_t found_ = 0;
  std::string first_missing_;
  std::uint64_t first_missing_expert_ = 0;
  std::map<std::string, std::uint64_t> absent_;
};

bool is_moe_layer(const ModelConfig& config, int layer) {
  return std::ranges::find(config.moe_layers, layer) != config.moe_layers.end();
}

}  // namespace

std::string_view name_of(DenseFormat format) {
  switch (format) {
    case DenseFormat::bf16:
      return "bf16";
    case DenseFormat::f16:
      return "f16";
    case DenseFormat::f32:
      return "f32";
    case DenseFormat::fp8_block:
      return "fp8-block";
  }
  return "unknown";
}

std::vector<DenseExperts> find_dense_experts(const Checkpoint& checkpoint,
                                             const ModelConfig& config, const ExpertNames& names) {
  std::vector<DenseExperts> layers;
  const auto keep = [&](std::optional<DenseExperts> layer) {
    if (layer) layers.push_back(std::move(*layer));
  };
  for (const auto& [prefix, group] : names.groups) {
    if (group.mtp || !is_moe_layer(config, group.number)) continue;
    keep(DenseReader(checkpoint, config, group.number, prefix).read_each(group));
  }
  const auto layout =
      std::ranges::find(kStackedLayouts, config.model_type, &StackedLayout::model_type);
  if (layers.empty() && layout != kStackedLayouts.end()) {
    constexpr std::string_view kDown = ".experts.down_proj";
    for (const TensorInfo& tensor : checkpoint.tensors()) {
      const std::string_view name = tensor.name;
      if (!name.ends_with(kDown)) continue;
      std::string prefix(name.substr(0, name.rfind('.')));
      const auto block = block_of(prefix);
      if (!block || block->mtp || !is_moe_layer(config, block->number)) continue;
      keep(DenseReader(checkpoint, config, block->number, std::move(prefix)).read_stacked(*layout));
    }
  }
  std::ranges::stable_sort(layers, {}, &DenseExperts::layer);
  for (std::size_t i = 1; i < layers.size(); ++i) {
    if (layers[i].layer != layers[i - 1].layer) continue;
    layers[i].problems.push_back(
        {.code = "MOXIE-M014",
         .message = "several groups of experts claim the layer",
         .where = {.file = checkpoint.path().string(), .layer = layers[i].layer},
         .expected = "one",
         .got = layers[i - 1].prefix + ", " + layers[i].prefix});
  }
  return layers;
}

}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// What can be converted into what, and what is refused before any work.
#include "convert/target.hpp"

#include <algorithm>
#include <utility>

#include "base/checked.hpp"
#include "convert/left_experts.hpp"
#include "formats/block_format.hpp"
#include "model/dialects/written_tensors.hpp"
#include "model/expert_names.hpp"
#include "model/layer_reader.hpp"

namespace moxie {

std::string_view name_of(ConvertFormat format) {
  switch (format) {
    case ConvertFormat::nvfp4:
      return "nvfp4";
    case ConvertFormat::mxfp4:
      return "mxfp4";
    case ConvertFormat::fp8:
      return "fp8";
  }
  return "unknown";
}

std::string_view name_of(ConvertRecipe recipe) {
  switch (recipe) {
    case ConvertRecipe::amax:
      return "amax";
    case ConvertRecipe::mse:
      return "mse";
    case ConvertRecipe::four_over_six:
      return "46";
    case ConvertRecipe::ceil:
      return "ceil";
    case ConvertRecipe::floor:
      return "floor";
    case ConvertRecipe::fp8_closed:
      return "fp8-closed";
  }
  return "unknown";
}

}  // namespace moxie

namespace moxie::convert {

namespace {

constexpr std::size_t kLeafParts = 3;

[[noreturn]] void refuse(std::string code, std::string message, std::string expected,
                         std::string got, std::string hint = {}) {
  throw Error(ErrorCode::unsupported, {.code = std::move(code),
                                       .message = std::move(message),
                                       .expected = std::move(expected),
                                       .got = std::move(got),
                                       .hint = std::move(hint)});
}

// "w1" of "layers.3.ffn.experts.0.w1.weight".
std::string leaf_of(const TensorInfo& tensor, const std::string& prefix) {
  const std::string rest = tensor.name.substr(prefix.size() + 1);
  const std::size_t begin = rest.find('.') + 1;
  return rest.substr(begin, rest.find('.', begin) - begin);
}

std::array<std::string, kLeafParts> leaves_of(const LayerExperts& layer,
                                              const std::vector<ProjectionKind>& kinds) {
  std::array<std::string, kLeafParts> leaves = {"gate_proj", "up_proj", "down_proj"};
  for (const ProjectionKind kind : kinds) {
    const TensorInfo& tensor = *layer.experts.front()[kind].codes.tensor;
    const std::string own = layer.prefix + ".0.";
    if (tensor.name.starts_with(own))
      leaves[static_cast<std::size_t>(kind)] = leaf_of(tensor, layer.prefix);
  }
  return leaves;
}

void add_replaced(Source& source, const SourceLayer& layer) {
  const auto add = [&](const TensorInfo* tensor) {
    if (tensor != nullptr) source.replaced.insert(tensor);
  };
  for (std::uint64_t expert = 0; expert < layer.experts; ++expert) {
    for (const ProjectionKind kind : source.kinds) {
      if (layer.fp4 != nullptr) {
        const Projection& projection = layer.fp4->experts[expert][kind];
        add(projection.codes.tensor);
        add(projection.block_scales.tensor);
        add(projection.dequant_mul.tensor);
        add(projection.act_dequant_mul.tensor);
      } else {
        const DenseMatrix& matrix = layer.dense->experts[expert][static_cast<std::size_t>(kind)];
        add(matrix.weight);
        add(matrix.scales);
      }
    }
  }
}

[[noreturn]] void refuse_missing(const MoeModel& model, std::uint64_t found, std::uint64_t expected,
                                 int layer) {
  throw Error(ErrorCode::input,
              {.code = "MOXIE-Q008",
               .message = std::to_string(found) + " of " + std::to_string(expected) +
                          " projections are here to convert",
               .where = {.file = model.checkpoint.path().string(), .layer = layer},
               .expected = "experts in BF16, F16, F32, block-scaled FP8, MXFP4 or NVFP4",
               .hint = "moxie inspect says what the checkpoint holds"});
}

// A bias of one projection, which stays where it is.
bool is_own_bias(const Source& source, const SourceLayer& layer, const TensorInfo& tensor) {
  if (layer.fp4 == nullptr || layer.fp4->stacked) return false;
  return std::ranges::any_of(layer.fp4->experts, [&](const ExpertTensors& expert) {
    return std::ranges::any_of(
        source.kinds, [&](ProjectionKind kind) { return expert[kind].bias.tensor == &tensor; });
  });
}

// What lies beside the experts and limits which dialects can describe the whole.
void look_beside(Source& source) {
  for (const TensorInfo& tensor : source.model->checkpoint.tensors()) {
    if (source.replaced.contains(&tensor)) continue;
    const std::string_view name = tensor.name;
    if (tensor.dtype == DType::f8_e4m3 && name.ends_with(".weight") && !source.other_fp8)
      source.other_fp8 = tensor.name;
    const bool is_weight =
        name.ends_with(".weight") || name.ends_with(".weight_packed") || name.ends_with("_blocks");
    if (is_weight && is_code_type(tensor.dtype) && tensor.shape.size() > 1) {
      const auto block = block_of(name);
      const bool is_mtp = block && block->mtp;
      if (!source.other_fp4 || (source.other_is_mtp && !is_mtp)) {
        source.other_fp4 = tensor.name;
        source.other_is_mtp = is_mtp;
      }
    }
    for (const SourceLayer& layer : source.layers) {
      if (name.size() <= layer.prefix.size() || !name.starts_with(layer.prefix) ||
          name[layer.prefix.size()] != '.')
        continue;
      const std::string_view rest = name.substr(layer.prefix.size());
      if (rest == kGateUpBias || rest == kDownBias) {
        source.has_biases = true;
      } else if (is_own_bias(source, layer, tensor)) {
        source.keeps_biases = true;
      } else {
        throw Error(ErrorCode::input, {.code = "MOXIE-M013",
                                       .message = "a tensor among the experts that is not known",
                                       .where = {.tensor = tensor.name, .layer = layer.layer}});
      }
    }
  }
}

bool is_native(const Source& source) {
  const SourceLayer& layer = source.layers.front();
  return layer.prefix.ends_with("ffn.experts") && layer.projections[2] == "w2";
}

DialectKind default_dialect(const Source& source, ConvertFormat format) {
  const bool is_mxfp4 = format == ConvertFormat::mxfp4;
  const std::string& type = source.model->config.model_type;
  if (is_native(source)) return DialectKind::deepseek;
  if (is_mxfp4) return type == "gpt_oss" ? DialectKind::gpt_oss : DialectKind::compressed_tensors;
  if (source.model->dialect == "compressed-tensors") return DialectKind::compressed_tensors;
  return source.other_fp8 ? DialectKind::deepseek : DialectKind::modelopt;
}

void check_dialect(const Source& source, const Target& target) {
  const std::string name(name_of(target.dialect));
  const bool is_mxfp4 = target.format == ConvertFormat::mxfp4;
  const auto refuse_dialect = [&](std::string expected, std::string got, std::string hint = {}) {
    refuse("MOXIE-Q005", "the " + name + " dialect can not be written", std::move(expected),
           std::move(got), std::move(hint));
  };
  switch (target.dialect) {
    case DialectKind::modelopt:
      if (is_mxfp4) refuse_dialect("nvfp4", "mxfp4", "use --dialect compressed-tensors");
      break;
    case DialectKind::gpt_oss:
      if (!is_mxfp4) refuse_dialect("mxfp4", "nvfp4", "use --dialect modelopt");
      if (source.model->config.model_type != "gpt_oss") {
        refuse("MOXIE-Q005", "the gpt-oss dialect belongs to another model family",
               "model_type gpt_oss", source.model->config.model_type,
               "use --dialect compressed-tensors");
      }
      break;
    case DialectKind::quark:
      if (!is_mxfp4) refuse_dialect("mxfp4", "nvfp4");
      break;
    case DialectKind::deepseek:
      if (is_mxfp4 && !is_native(source))
        refuse_dialect("experts named ffn.experts.E.w1", source.layers.front().prefix,
                       "use --dialect compressed-tensors");
      if (!is_mxfp4 && !is_native(source) && !has_fp8_record(*source.model))
        refuse_dialect(
            "a config that declares fp8 for the other tensors",
            source.model->config.quantization.empty() ? "none" : source.model->config.quantization,
            "use --dialect modelopt");
      break;
    case DialectKind::compressed_tensors:
      break;
    case DialectKind::gguf:
      refuse_dialect("a dialect of safetensors", "gguf, which is only read");
  }
  if (source.other_fp8 && target.dialect != DialectKind::deepseek) {
    refuse_dialect("no block-scaled FP8 beside the experts, for which its config has no words",
                   *source.other_fp8,
                   is_mxfp4 ? "" : "use --dialect deepseek, which keeps the config's fp8 record");
  }
  if (source.other_fp4 && !(source.other_is_mtp && target.dialect == DialectKind::deepseek)) {
    refuse_dialect("nothing else in packed FP4, which its config would call unquantised",
                   *source.other_fp4);
  }
  if (source.has_biases && target.dialect != DialectKind::gpt_oss && !splits_biases(source, target))
    refuse_dialect("experts without biases", "biases stacked beside the experts",
                   "use --format mxfp4 --dialect gpt-oss");
  if (source.keeps_biases && is_stacked(target.dialect))
    refuse_dialect("experts without biases of their own", "a bias beside each projection");
}

void choose_recipe(Target& target, const std::optional<ConvertRecipe>& given) {
  const auto refuse_recipe = [&](std::string expected) {
    refuse("MOXIE-Q004", "the recipe does not go with the format",
           std::move(expected) + " for " + std::string(name_of(target.format)),
           std::string(name_of(*given)));
  };
  if (target.is_fp8()) {
    if (given) refuse_recipe("none");
    return;
  }
  if (target.format == ConvertFormat::mxfp4) {
    switch (given.value_or(ConvertRecipe::ceil)) {
      case ConvertRecipe::ceil:
        target.mxfp4_recipe = Mxfp4Recipe::ceil;
        break;
      case ConvertRecipe::floor:
        target.mxfp4_recipe = Mxfp4Recipe::floor;
        break;
      case ConvertRecipe::mse:
        target.mxfp4_recipe = Mxfp4Recipe::mse;
        break;
      default:
        refuse_recipe("ceil, floor or mse");
    }
    target.recipe = name_of(target.mxfp4_recipe);
    return;
  }
  switch (given.value_or(ConvertRecipe::amax)) {
    case ConvertRecipe::amax:
      target.nvfp4_recipe = Nvfp4Recipe::amax;
      break;
    case ConvertRecipe::mse:
      target.nvfp4_recipe = Nvfp4Recipe::mse;
      break;
    case ConvertRecipe::four_over_six:
      target.nvfp4_recipe = Nvfp4Recipe::four_over_six;
      break;
    case ConvertRecipe::fp8_closed:
      target.nvfp4_recipe = Nvfp4Recipe::fp8_closed;
      break;
    default:
      refuse_recipe("amax, mse, 46 or fp8-closed");
  }
  target.recipe = name_of(target.nvfp4_recipe);
}

}  // namespace

bool has_fp8_record(const MoeModel& model) { return model.config.quantization.starts_with("fp8"); }

bool splits_biases(const Source& source, const Target& target) {
  return source.has_biases && source.fp4 && !target.is_fp8() && !is_stacked(target.dialect) &&
         target.dialect != DialectKind::deepseek;
}

Source find_source(const MoeModel& model) {
  Source source{.model = &model, .kinds = projections_of(model.config)};
  for (const LayerExperts& layer : model.layers) {
    if (!layer.prefix.starts_with("blk.") && !layer.prefix.starts_with("block.")) continue;
    refuse("MOXIE-Q012", "checkpoints with these names are only read",
           "experts named as for transformers",
           layer.prefix + " (" + std::string(layer.dialect) + ")",
           "quantise the safetensors that are published for transformers");
  }
  for (const Finding& finding : model.checkpoint.findings()) {
    if (finding.code != "MOXIE-C010") continue;
    Finding refusal = finding;
    refusal.severity = Severity::error;
    throw Error(ErrorCode::input, std::move(refusal));
  }
  std::vector<Finding> problems;
  const auto add = [&](SourceLayer layer, const std::vector<Finding>& own) {
    problems.insert(problems.end(), own.begin(), own.end());
    if (own.empty()) source.layers.push_back(std::move(layer));
  };
  const LayerExperts* first = nullptr;
  for (const LayerExperts& layer : model.layers) {
    if (layer.mtp) continue;
    if (first == nullptr) first = &layer;
    source.fp4 = first->format;
    source.name = name_of(first->format);
    if (layer.format != first->format) {
      refuse("MOXIE-M009", "layers are in different formats",
             source.name + ", as layer " + std::to_string(first->layer),
             std::string(name_of(layer.format)) + " in layer " + std::to_string(layer.layer),
             "convert the checkpoint that this one was made of, whose experts are all in one "
             "format");
    }
    add({.layer = layer.layer,
         .prefix = layer.prefix,
         .projections = layer.problems.empty() ? leaves_of(layer, source.kinds)
                                               : std::array<std::string, kLeafParts>{},
         .fp4 = &layer,
         .experts = layer.experts.size()},
        layer.problems);
  }
  for (const DenseExperts& layer : model.dense) {
    source.name = name_of(layer.format);
    std::array<std::string, kLeafParts> names;
    std::ranges::transform(layer.projections, names.begin(),
                           [](std::string_view name) { return std::string(name); });
    add({.layer = layer.layer,
         .prefix = layer.prefix,
         .projections = std::move(names),
         .dense = &layer,
         .experts = layer.experts.size()},
        layer.problems);
  }
  if (!problems.empty()) throw Error::of(ErrorCode::input, std::move(problems));
  const std::uint64_t per_layer = model.config.experts * source.kinds.size();
  const std::uint64_t expected = per_layer * model.config.moe_layers.size();
  std::uint64_t found = 0;
  for (const SourceLayer& layer : source.layers) found += layer.experts * source.kinds.size();
  for (const int number : model.config.moe_layers) {
    if (std::ranges::find(source.layers, number, &SourceLayer::layer) != source.layers.end())
      continue;
    refuse_other_format(source, number);
    refuse_missing(model, found, expected, number);
  }
  for (const SourceLayer& layer : source.layers) add_replaced(source, layer);
  look_beside(source);
  return source;
}

Target choose_target(const Source& source, const QuantizeOptions& options) {
  Target target{.format = options.format};
  choose_recipe(target, options.recipe);
  if (target.is_fp8()) {
    if (options.dialect) {
      refuse("MOXIE-Q005", "FP8 has no dialects", "no --dialect",
             std::string(name_of(*options.dialect)));
    }
    if (source.fp4 != BlockFormat::mxfp4) {
      refuse("MOXIE-Q006", "only MXFP4 becomes FP8 without loss", "mxfp4", source.name,
             "use --format nvfp4 or --format mxfp4");
    }
    if (source.other_fp8 && !has_fp8_record(*source.model)) {
      refuse("MOXIE-Q005", "the config can not describe the other tensors", "an fp8 record",
             *source.other_fp8);
    }
    if (source.other_fp4) {
      refuse("MOXIE-Q005", "the config can not describe the other tensors", "none in packed FP4",
             *source.other_fp4);
    }
    if (source.has_biases) refuse("MOXIE-Q005", "biases have no place", "none", "stacked biases");
    return target;
  }
  target.dialect = options.dialect.value_or(default_dialect(source, target.format));
  check_dialect(source, target);
  for (const ProjectionKind kind : source.kinds) {
    const std::uint64_t cols = extent_of(source.model->config, kind).cols;
    if (is_whole_groups(Elems{cols}, target.block_format())) continue;
    refuse(
        "MOXIE-Q001",
        "the columns of " + std::string(name_of(kind)) + " are not a whole number of scale groups",
        "a multiple of " + std::to_string(scale_group(target.block_format())),
        std::to_string(cols));
  }
  return target;
}

std::string stem_of(const SourceLayer& layer, std::uint64_t expert, ProjectionKind kind) {
  return layer.prefix + "." + std::to_string(expert) + "." +
         layer.projections[static_cast<std::size_t>(kind)];
}

Extent extent_of(const ModelConfig& config, ProjectionKind kind) {
  if (kind == ProjectionKind::down) return {config.hidden, config.inter};
  return {config.inter, config.hidden};
}

std::vector<TensorEntry> entries_of_expert(const Source& source, const Target& target,
                                           const SourceLayer& layer, std::uint64_t expert,
                                           const std::array<bool, 3>& input_scales) {
  std::vector<TensorEntry> entries;
  for (const ProjectionKind kind : source.kinds) {
    const auto [rows, cols] = extent_of(source.model->config, kind);
    const std::string stem = stem_of(layer, expert, kind);
    if (target.is_fp8()) {
      entries.push_back({stem + ".weight", DType::f8_e4m3, {rows, cols}});
      entries.push_back({stem + ".weight_scale_inv",
                         DType::f32,
                         {divide_up(rows, kFp8Tile), divide_up(cols, kFp8Tile)}});
      continue;
    }
    for (WrittenTensor& tensor :
         written_projection(target.dialect, target.block_format(), stem, rows, cols,
                            input_scales[static_cast<std::size_t>(kind)]))
      entries.push_back(std::move(tensor.entry));
    if (splits_biases(source, target)) {
      const TensorInfo& stacked = *layer.fp4->experts[expert][kind].bias.tensor;
      entries.push_back({stem + ".bias", stacked.dtype, {rows}});
    }
  }
  return entries;
}

std::vector<TensorEntry> entries_of_stack(const Source& source, const SourceLayer& layer) {
  const ModelConfig& config = source.model->config;
  const std::uint64_t group = scale_group(BlockFormat::mxfp4);
  const std::uint64_t experts = layer.experts;
  std::vector<TensorEntry> entries;
  const auto add = [&](std::string_view blocks, std::string_view scales, std::string_view bias,
                       std::uint64_t rows, std::uint64_t cols) {
    const std::uint64_t groups = cols / group;
    entries.push_back({layer.prefix + std::string(blocks), DType::u8, {experts, rows, groups, 16}});
    entries.push_back({layer.prefix + std::string(scales), DType::u8, {experts, rows, groups}});
    const std::string bias_name = layer.prefix + std::string(bias);
    if (source.model->checkpoint.find(bias_name) == nullptr)
      entries.push_back({bias_name, DType::bf16, {experts, rows}});
  };
  add(kGateUpBlocks, kGateUpScales, kGateUpBias, 2 * config.inter, config.hidden);
  add(kDownBlocks, kDownScales, kDownBias, config.hidden, config.inter);
  return entries;
}

}  // namespace moxie::convert

// SPDX-License-Identifier: Apache-2.0
// Options and config to a recipe, with every refusal that needs no disk.
#include "synth/recipe.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "formats/block_format.hpp"
#include "formats/gguf_block.hpp"
#include "model/config_keys.hpp"
#include "model/declared_format.hpp"
#include "model/dialects/written_tensors.hpp"
#include "model/gguf_config.hpp"
#include "model/limits.hpp"
#include "synth/whole_config.hpp"

namespace moxie::synth {

namespace {

// An expert has at most 12 tensors of at most 200 header bytes, and a safetensors header may have
// 100,000,000 bytes.
constexpr std::uint64_t kMaxWrittenExperts = std::uint64_t{1} << 15;
static_assert(kMaxWrittenExperts <= kMaxExperts, "what is written is readable");

[[noreturn]] void refuse_config(std::string message, std::string expected, std::string got,
                                std::string hint = {}) {
  throw Error(ErrorCode::unsupported, {.code = "MOXIE-P010",
                                       .message = std::move(message),
                                       .expected = std::move(expected),
                                       .got = std::move(got),
                                       .hint = std::move(hint)});
}

[[noreturn]] void refuse_size(std::string_view axis, std::string expected, std::uint64_t got) {
  throw Error(ErrorCode::usage, {.code = "MOXIE-U003",
                                 .message = "the size of " + std::string(axis) + " is out of range",
                                 .where = {.axis = std::string(axis)},
                                 .expected = std::move(expected),
                                 .got = std::to_string(got)});
}

std::string text_at(const Json& object, std::string_view key) {
  const Json* value = object.find(key);
  return value != nullptr ? value->as_string() : std::string();
}

std::uint64_t number_at(const Json& object, std::string_view key) {
  const Json* value = object.find(key);
  return value != nullptr ? value->as_unsigned() : 0;
}

constexpr std::string_view kGptOss = "gpt_oss";

void require_dense(const SynthOptions& options, std::string_view model_type) {
  const bool known = options.dense == DenseFormat::bf16 || options.dense == DenseFormat::fp8_block;
  if (!known) {
    refuse_config("the format can not be synthesised", "bf16 or fp8",
                  std::string(name_of(*options.dense)));
  }
  if (model_type == kGptOss) {
    refuse_config("the model's experts are stacked, which is written in MXFP4 alone", "mxfp4",
                  std::string(name_of(*options.dense)));
  }
  if (options.dialect) {
    refuse_config("only FP4 experts have dialects", "no --dialect",
                  std::string(name_of(*options.dialect)));
  }
}

std::uint64_t experts_of(const Json& text, std::string_view model_type) {
  if (model_type == kGptOss) return number_at(text, "num_local_experts");
  return std::max(number_at(text, "n_routed_experts"), number_at(text, "num_experts"));
}

// What published names have before the layer number, where it is not the dialect's own.
std::string_view layers_prefix_of(DialectKind dialect, std::string_view model_type) {
  if (dialect == DialectKind::deepseek) return {};
  if (model_type == "kimi_k25") return "language_model.model.layers.";
  if (model_type == "qwen3_5_moe") return "model.language_model.layers.";
  return {};
}

DialectKind choose_dialect(const SynthOptions& options, const std::string& model_type,
                           const Json* quantization) {
  const bool is_v4 = model_type.starts_with("deepseek_v4");
  const bool is_gpt_oss = model_type == kGptOss;
  const std::string got = "model_type " + (model_type.empty() ? "absent" : model_type);
  if (options.dialect) {
    const bool of_v4 = *options.dialect == DialectKind::deepseek;
    const bool of_gpt_oss = *options.dialect == DialectKind::gpt_oss;
    if ((of_v4 && !is_v4) || (of_gpt_oss && !is_gpt_oss)) {
      refuse_config("the " + std::string(name_of(*options.dialect)) +
                        " dialect belongs to another model family",
                    of_v4 ? "model_type deepseek_v4" : "model_type gpt_oss", got,
                    is_gpt_oss ? "use --dialect gpt-oss" : "use --dialect modelopt --format nvfp4");
    }
    if (is_gpt_oss && !of_gpt_oss && *options.dialect != DialectKind::gguf) {
      refuse_config("the model's experts have biases, which gpt-oss and gguf alone write",
                    "--dialect gpt-oss", std::string(name_of(*options.dialect)));
    }
    if (*options.dialect == DialectKind::gguf && gguf_architecture(model_type).empty()) {
      refuse_config("the model has no architecture in GGUF that is read",
                    "a model_type that docs/formats.md gives an architecture", got);
    }
    return *options.dialect;
  }
  if (is_gpt_oss) return DialectKind::gpt_oss;
  if (is_v4) return DialectKind::deepseek;
  if (options.dense) return DialectKind::modelopt;  // for its names
  const std::string method =
      quantization != nullptr ? text_at(*quantization, "quant_method") : std::string();
  if (method.starts_with("modelopt")) return DialectKind::modelopt;
  if (method == "compressed-tensors") return DialectKind::compressed_tensors;
  if (method == "quark") return DialectKind::quark;
  refuse_config("the model has no dialect of its own that can be written",
                "model_type deepseek_v4 or gpt_oss, or quant_method modelopt, compressed-tensors "
                "or quark",
                got, "use --dialect modelopt --format nvfp4");
}

// The one format that a dialect has; nullopt when it has both.
std::optional<BlockFormat> only_format(DialectKind dialect) {
  if (dialect == DialectKind::modelopt) return BlockFormat::nvfp4;
  if (dialect == DialectKind::quark || dialect == DialectKind::gpt_oss) return BlockFormat::mxfp4;
  return std::nullopt;
}

BlockFormat choose_format(const SynthOptions& options, DialectKind dialect,
                          const Json* quantization) {
  const std::optional<BlockFormat> only = only_format(dialect);
  if (options.format) {
    if (only && *options.format != *only) {
      const std::string with = std::string(name_of(dialect)) + " with ";
      refuse_config("the dialect does not go with the format", with + std::string(name_of(*only)),
                    with + std::string(name_of(*options.format)),
                    "use --format " + std::string(name_of(*only)) +
                        (dialect == DialectKind::gpt_oss ? "" : ", or another --dialect"));
    }
    return *options.format;
  }
  if (only) return *only;
  if (dialect == DialectKind::compressed_tensors || dialect == DialectKind::gguf)
    return declared_format(options.config, {}).format.value_or(BlockFormat::mxfp4);
  const bool requantised =
      quantization != nullptr && text_at(*quantization, "moe_quant_algo") == "NVFP4";
  return requantised ? BlockFormat::nvfp4 : BlockFormat::mxfp4;
}

// The keys that sizes are read from; all of them must be positive numbers.
void require_keys(const Json& config, const std::string& model_type, bool needs_vocab) {
  std::string missing;
  const auto need = [&](std::string_view key, bool present) {
    if (!present) missing += (missing.empty() ? "" : ", ") + std::string(key);
  };
  for (const std::string_view key :
       {std::string_view("hidden_size"), inter_key(model_type),
        std::string_view("num_hidden_layers"), std::string_view("num_experts_per_tok")}) {
    need(key, number_at(config, key) > 0);
  }
  need(model_type == kGptOss ? "num_local_experts" : "n_routed_experts (or num_experts)",
       experts_of(config, model_type) > 0);
  need("vocab_size", !needs_vocab || number_at(config, "vocab_size") > 0);
  if (!missing.empty()) {
    refuse_config("the config lacks what a checkpoint is made from",
                  "positive whole numbers, at its top level or in text_config",
                  "none for " + missing);
  }
  if (text_at(config, "mlp_hidden_act") == "relu2") {
    refuse_config("experts without a gate projection can not be written", "gated experts",
                  "mlp_hidden_act relu2");
  }
}

std::uint64_t checked_count(std::string_view axis, std::uint64_t count, std::uint64_t most) {
  if (count == 0 || count > most) refuse_size(axis, "1 to " + std::to_string(most), count);
  return count;
}

// Rows are whole groups; in GGUF whole blocks.
std::uint64_t checked_width(std::string_view axis, std::uint64_t width, const Recipe& recipe) {
  checked_count(axis, width, kMaxWidth);
  if (recipe.dense) return width;
  const BlockFormat format = recipe.format;
  const std::uint64_t group =
      recipe.dialect == DialectKind::gguf ? gguf_block(format).elems() : scale_group(format);
  if (width % group == 0) return width;
  throw Error(ErrorCode::unsupported,
              {.code = "MOXIE-P003",
               .message = std::string(axis) + " is no multiple of the scale group",
               .where = {.axis = std::string(axis)},
               .expected = "a multiple of " + std::to_string(group) + " (" +
                           std::string(name_of(format)) + ")",
               .got = std::to_string(width)});
}

}  // namespace

const Json& text_config_of(const Json& config) {
  const Json* text = config.find("text_config");
  return text != nullptr && text->is_object() ? *text : config;
}

std::string_view inter_key(std::string_view model_type) {
  return model_type == kGptOss ? "intermediate_size" : "moe_intermediate_size";
}

std::uint64_t stated_experts(const Json& config) {
  return experts_of(text_config_of(config), text_at(config, "model_type"));
}

Recipe make_recipe(const SynthOptions& options) {
  const Json& config = text_config_of(options.config);
  const Json* quantization = options.config.find("quantization_config");
  const std::string model_type = text_at(options.config, "model_type");

  Recipe recipe;
  if (options.dense) require_dense(options, model_type);
  recipe.dense = options.dense;
  recipe.model_type = model_type;
  recipe.dialect = choose_dialect(options, model_type, quantization);
  recipe.format = choose_format(options, recipe.dialect, quantization);
  recipe.layers_prefix = layers_prefix_of(recipe.dialect, model_type);
  recipe.pattern = options.pattern;
  recipe.seed = options.seed;
  const std::uint64_t hash_layers = number_at(config, "num_hash_layers");
  require_keys(config, model_type, hash_layers > 0);

  const std::uint64_t config_experts = experts_of(config, model_type);
  recipe.layers = checked_count("layers", options.num_layers.value_or(1), kMaxLayers);
  recipe.experts = checked_count(
      "experts", options.experts.value_or(std::min<std::uint64_t>(16, config_experts)),
      kMaxWrittenExperts);
  recipe.hidden =
      checked_width("hidden", options.hidden.value_or(number_at(config, "hidden_size")), recipe);
  recipe.inter = checked_width(
      "moe_inter", options.inter.value_or(number_at(config, inter_key(model_type))), recipe);
  recipe.top_k = std::min(number_at(config, "num_experts_per_tok"), recipe.experts);
  recipe.hash_layers = std::min(hash_layers, recipe.layers);
  if (recipe.hash_layers > 0) {
    recipe.vocab = checked_count("vocab", number_at(config, "vocab_size"), std::uint64_t{1} << 32);
  }
  recipe.correction_bias =
      model_type.starts_with("deepseek_v4") || text_at(config, "topk_method") == "noaux_tc";
  if (const FamilyKeys* family = find_family(model_type);
      recipe.dialect == DialectKind::gguf && family != nullptr) {
    recipe.correction_bias |= family->router == RouterKind::sigmoid;
    recipe.biases = family->biases;
  }
  if (options.whole) make_whole(recipe, options);
  return recipe;
}

}  // namespace moxie::synth

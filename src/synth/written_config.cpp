// SPDX-License-Identifier: Apache-2.0
// Sizes first, then the keys that say which layers have experts, then the quantisation.
#include "synth/written_config.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

#include "model/dialects/written_quantization.hpp"
#include "synth/excluded_modules.hpp"
#include "synth/names.hpp"
#include "synth/whole_config.hpp"

namespace moxie::synth {

namespace {

void set_if_present(Json& config, std::string_view key, Json value) {
  if (config.find(key) != nullptr) config.set(key, std::move(value));
}

// One entry per written layer, then a 0 per draft block; a longer stack repeats the model's.
void fit_compress_ratios(Json& config, const Recipe& recipe) {
  const Json* ratios = config.find("compress_ratios");
  const Json* layers = config.find("num_hidden_layers");
  if (ratios == nullptr || !ratios->is_array()) return;
  const auto period = std::min<std::uint64_t>(layers->as_unsigned(), ratios->elements().size());
  if (period == 0) return;
  Json fitted = Json::array();
  for (std::uint64_t layer = 0; layer < recipe.layers; ++layer) {
    fitted.push_back(ratios->elements()[layer % period]);
  }
  const std::uint64_t drafts = recipe.whole ? recipe.whole->drafts : 0;
  for (std::uint64_t draft = 0; draft < drafts; ++draft) fitted.push_back(0);
  config.set("compress_ratios", std::move(fitted));
}

// One kind of attention per written layer; a longer stack repeats the model's.
void fit_layer_types(Json& config, const Recipe& recipe) {
  const Json* kinds = config.find("layer_types");
  if (kinds == nullptr || kinds->elements().empty()) return;
  Json fitted = Json::array();
  for (std::uint64_t layer = 0; layer < recipe.layers; ++layer)
    fitted.push_back(kinds->elements()[layer % kinds->elements().size()]);
  config.set("layer_types", std::move(fitted));
}

// Every written layer has experts, whatever the model's first layers are.
void mark_all_layers_sparse(Json& config) {
  set_if_present(config, "first_k_dense_replace", 0);
  set_if_present(config, "moe_layer_freq", 1);
  set_if_present(config, "decoder_sparse_step", 1);
  set_if_present(config, "mlp_only_layers", Json::array());
  config.erase("mlp_layer_types");
}

// Fewer experts may leave groups that are uneven, too small to score by their two best, or too few
// for top_k.
void fit_expert_groups(Json& config, const Recipe& recipe) {
  const Json* groups = config.find("n_group");
  const Json* kept = config.find("topk_group");
  if (groups == nullptr || kept == nullptr || groups->as_unsigned() <= 1) return;
  const std::uint64_t group_experts = recipe.experts / groups->as_unsigned();
  if (recipe.experts % groups->as_unsigned() == 0 && group_experts >= 2 &&
      group_experts * kept->as_unsigned() >= recipe.top_k) {
    return;
  }
  config.set("n_group", 1);
  config.set("topk_group", 1);
}

// As DeepSeek-V3 declares its FP8.
Json fp8_quantization() {
  Json tile = Json::array();
  tile.push_back(128);
  tile.push_back(128);
  Json quantization;
  quantization.set("activation_scheme", "dynamic")
      .set("fmt", "e4m3")
      .set("quant_method", "fp8")
      .set("weight_block_size", std::move(tile));
  return quantization;
}

WrittenQuantization quantization(const Recipe& recipe) {
  const bool is_deepseek = recipe.dialect == DialectKind::deepseek;
  WrittenQuantization written{.dialect = recipe.dialect,
                              .format = recipe.format,
                              .input_scales = true,
                              .producer = is_deepseek ? "dsv4-nvfp4-experts" : "moxie-synth",
                              .prefixes = {},
                              .ignored = {}};
  for (std::uint64_t layer = 0; layer < recipe.layers; ++layer)
    written.prefixes.push_back(experts_prefix(recipe, layer));
  if (recipe.dialect == DialectKind::modelopt) {
    const Json excluded = excluded_modules(recipe);
    for (const Json& module : excluded.elements()) written.ignored.push_back(module.as_string());
  }
  return written;
}

// What concerns the layers, in the text model's part of the config.
Json written_text_config(const Json& source, const Recipe& recipe) {
  Json config = source;
  fit_compress_ratios(config, recipe);
  fit_layer_types(config, recipe);
  mark_all_layers_sparse(config);
  fit_expert_groups(config, recipe);
  if (recipe.whole) fit_whole_model(config, recipe);
  config.set("hidden_size", recipe.hidden)
      .set(inter_key(recipe.model_type), recipe.inter)
      .set("num_hidden_layers", recipe.layers)
      .set("num_experts_per_tok", recipe.top_k);
  set_if_present(config, "n_routed_experts", recipe.experts);
  set_if_present(config, "num_experts", recipe.experts);
  set_if_present(config, "num_local_experts", recipe.experts);
  set_if_present(config, "experts_per_token", recipe.top_k);
  set_if_present(config, "num_hash_layers", recipe.hash_layers);
  if (!recipe.whole) set_if_present(config, "num_nextn_predict_layers", 0);
  return config;
}

bool declares_fp4_experts(const Json& config) {
  const Json* quantization = config.find("quantization_config");
  return quantization != nullptr && quantization->find("expert_dtype") != nullptr;
}

}  // namespace

Json written_config(const Json& source, const Recipe& recipe) {
  const Json& source_text = text_config_of(source);
  Json config = written_text_config(source_text, recipe);
  if (&source_text != &source) config = Json(source).set("text_config", std::move(config));
  if (recipe.whole && !recipe.whole->full_size) config.erase("vision_config");
  if (recipe.dense) {
    config.erase("expert_dtype");
    config.erase("quantization_config");
    if (recipe.dense == DenseFormat::fp8_block)
      config.set("quantization_config", fp8_quantization());
    return config;
  }
  if (recipe.dialect == DialectKind::deepseek && !declares_fp4_experts(source))
    config.set("expert_dtype", "fp4");
  const Json* declared = source.find("quantization_config");
  config.set("quantization_config",
             quantization_of(quantization(recipe), declared != nullptr ? *declared : Json()));
  return config;
}

Json written_quant_config(const Recipe& recipe) {
  return recipe.dense ? Json() : quant_sidecar_of(quantization(recipe));
}

}  // namespace moxie::synth

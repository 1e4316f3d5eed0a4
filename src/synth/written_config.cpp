// SPDX-License-Identifier: Apache-2.0
// Sizes first, then the keys that say which layers have experts, then the quantisation.
#include "synth/written_config.hpp"

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "formats/block_format.hpp"
#include "synth/names.hpp"

namespace moxie::synth {

namespace {

Json strings(std::initializer_list<std::string_view> texts) {
  Json array = Json::array();
  for (const std::string_view text : texts) array.push_back(text);
  return array;
}

void set_if_present(Json& config, std::string_view key, Json value) {
  if (config.find(key) != nullptr) config.set(key, std::move(value));
}

// One entry per written layer; a longer stack repeats the model's.
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
  config.set("compress_ratios", std::move(fitted));
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

Json nvfp4_config_groups() {
  Json weights;
  weights.set("dynamic", false)
      .set("num_bits", 4)
      .set("type", "float")
      .set("group_size", scale_group(BlockFormat::nvfp4));
  Json group;
  group.set("input_activations", weights)
      .set("weights", weights)
      .set("targets", strings({"Linear"}));
  return Json::object().set("group_0", std::move(group));
}

Json quantized_layers(const Recipe& recipe) {
  Json::Object layers;
  for (std::uint64_t layer = 0; layer < recipe.layers; ++layer) {
    Json how;
    how.set("quant_algo", "NVFP4").set("group_size", scale_group(BlockFormat::nvfp4));
    layers.push_back({experts_prefix(recipe, layer), std::move(how)});
  }
  return Json(std::move(layers));
}

Json producer(const Recipe& recipe) {
  const bool is_deepseek = recipe.dialect == DialectKind::deepseek;
  return Json::object()
      .set("name", "modelopt")
      .set("version", is_deepseek ? "dsv4-nvfp4-experts" : "moxie-synth");
}

// Modules that stay unquantised, as wildcards.
Json ignored_modules(const Recipe& recipe) {
  return recipe.dialect == DialectKind::deepseek
             ? strings({"*.attn.*", "*.ffn.shared_experts.*", "head", "mtp.*"})
             : strings({"lm_head", "model.embed_tokens", "model.layers.*.self_attn*",
                        "model.layers.*.mlp.gate", "model.layers.*.mlp.shared_expert*"});
}

std::string_view quant_algo(const Recipe& recipe) {
  return recipe.dialect == DialectKind::deepseek ? "MIXED_PRECISION" : "NVFP4";
}

Json modelopt_quantization(const Recipe& recipe) {
  Json quantization;
  quantization.set("config_groups", nvfp4_config_groups())
      .set("ignore", ignored_modules(recipe))
      .set("quant_algo", quant_algo(recipe))
      .set("producer", producer(recipe))
      .set("quant_method", "modelopt");
  return quantization;
}

// What a compressed-tensors group says of weights or of activations.
Json compressed_record(BlockFormat format) {
  const bool is_mxfp4 = format == BlockFormat::mxfp4;
  Json record;
  record.set("dynamic", false)
      .set("group_size", scale_group(format))
      .set("num_bits", 4)
      .set("scale_dtype", is_mxfp4 ? "torch.uint8" : "torch.float8_e4m3fn")
      .set("strategy", is_mxfp4 ? "group" : "tensor_group")
      .set("symmetric", true)
      .set("type", "float");
  return record;
}

Json compressed_tensors_quantization(const Recipe& recipe) {
  const std::string format = std::string(name_of(recipe.format)) + "-pack-quantized";
  Json activations;
  if (recipe.format == BlockFormat::nvfp4) {
    activations = compressed_record(recipe.format);
    activations.set("dynamic", "local");
  }
  Json group;
  group.set("format", format)
      .set("input_activations", std::move(activations))
      .set("output_activations", nullptr)
      .set("targets", strings({"Linear"}))
      .set("weights", compressed_record(recipe.format));
  Json quantization;
  quantization.set("config_groups", Json::object().set("group_0", std::move(group)))
      .set("format", format)
      .set("ignore",
           strings({"lm_head", "re:.*self_attn.*", "re:.*mlp.gate$", "re:.*mlp.shared_expert.*"}))
      .set("quant_method", "compressed-tensors")
      .set("quantization_status", "compressed");
  return quantization;
}

Json quark_quantization() {
  const auto record = [](bool dynamic) {
    Json tensors;
    tensors.set("dtype", "fp4")
        .set("group_size", scale_group(BlockFormat::mxfp4))
        .set("is_dynamic", dynamic)
        .set("qscheme", "per_group")
        .set("scale_format", "e8m0");
    return tensors;
  };
  Json everywhere;
  everywhere.set("input_tensors", record(true))
      .set("output_tensors", nullptr)
      .set("weight", record(false));
  Json quantization;
  quantization
      .set("exclude", strings({"lm_head", "*self_attn*", "*mlp.gate", "*mlp.shared_expert*"}))
      .set("global_quant_config", std::move(everywhere))
      .set("quant_method", "quark");
  return quantization;
}

// The FP8 record that DeepSeek-V4 declares for everything but the experts; kept from the source,
// because its tile sizes are the model's.
Json deepseek_quantization(const Json& source, const Recipe& recipe) {
  const Json* declared = source.find("quantization_config");
  Json quantization = declared != nullptr && declared->is_object() ? *declared : Json::object();
  const auto set_if_absent = [&](std::string_view key, Json value) {
    if (quantization.find(key) == nullptr) quantization.set(key, std::move(value));
  };
  for (const std::string_view key :
       {"config_groups", "group_size", "ignore", "kv_cache_quant_algo", "moe_quant_algo",
        "producer", "quant_algo", "quantized_layers"}) {
    quantization.erase(key);
  }
  Json tile = Json::array();
  tile.push_back(128);
  tile.push_back(128);
  set_if_absent("activation_scheme", "dynamic");
  set_if_absent("fmt", "e4m3");
  quantization.set("quant_method", "fp8");
  set_if_absent("scale_fmt", "ue8m0");
  set_if_absent("weight_block_size", std::move(tile));
  if (recipe.format == BlockFormat::nvfp4) {
    quantization.set("config_groups", nvfp4_config_groups())
        .set("group_size", scale_group(BlockFormat::nvfp4))
        .set("ignore", ignored_modules(recipe))
        .set("kv_cache_quant_algo", nullptr)
        .set("moe_quant_algo", "NVFP4")
        .set("producer", producer(recipe))
        .set("quant_algo", quant_algo(recipe))
        .set("quantized_layers", quantized_layers(recipe));
  }
  return quantization;
}

Json quantization_of(const Json& source, const Recipe& recipe) {
  switch (recipe.dialect) {
    case DialectKind::deepseek:
      return deepseek_quantization(source, recipe);
    case DialectKind::modelopt:
      return modelopt_quantization(recipe);
    case DialectKind::compressed_tensors:
      return compressed_tensors_quantization(recipe);
    case DialectKind::quark:
      return quark_quantization();
    case DialectKind::gguf:
      break;
  }
  return {};
}

}  // namespace

Json written_config(const Json& source, const Recipe& recipe) {
  Json config = source;
  fit_compress_ratios(config, recipe);
  mark_all_layers_sparse(config);
  fit_expert_groups(config, recipe);
  config.set("hidden_size", recipe.hidden)
      .set("moe_intermediate_size", recipe.inter)
      .set("num_hidden_layers", recipe.layers)
      .set("num_experts_per_tok", recipe.top_k);
  set_if_present(config, "n_routed_experts", recipe.experts);
  set_if_present(config, "num_experts", recipe.experts);
  set_if_present(config, "num_hash_layers", recipe.hash_layers);
  set_if_present(config, "num_nextn_predict_layers", 0);
  if (recipe.dialect == DialectKind::deepseek) config.set("expert_dtype", "fp4");
  config.set("quantization_config", quantization_of(source, recipe));
  return config;
}

Json written_quant_config(const Recipe& recipe) {
  const bool has_sidecar =
      recipe.dialect == DialectKind::deepseek || recipe.dialect == DialectKind::modelopt;
  if (recipe.format == BlockFormat::mxfp4 || !has_sidecar) return {};
  Json quantization;
  quantization.set("quant_algo", quant_algo(recipe))
      .set("kv_cache_quant_algo", nullptr)
      .set("group_size", scale_group(BlockFormat::nvfp4));
  if (recipe.dialect == DialectKind::deepseek) {
    quantization.set("quantized_layers", quantized_layers(recipe));
  }
  quantization.set("exclude_modules", ignored_modules(recipe));
  return Json::object()
      .set("producer", producer(recipe))
      .set("quantization", std::move(quantization));
}

}  // namespace moxie::synth

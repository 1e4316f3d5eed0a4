// SPDX-License-Identifier: Apache-2.0
// One function per method; what they share comes first.
#include "model/dialects/written_quantization.hpp"

#include <initializer_list>
#include <string_view>
#include <utility>

#include "formats/block_format.hpp"

namespace moxie {

namespace {

Json strings(std::initializer_list<std::string_view> texts) {
  Json array = Json::array();
  for (const std::string_view text : texts) array.push_back(text);
  return array;
}

Json nvfp4_config_groups(const WrittenQuantization& written) {
  Json weights;
  weights.set("dynamic", false)
      .set("num_bits", 4)
      .set("type", "float")
      .set("group_size", scale_group(BlockFormat::nvfp4));
  Json group;
  if (written.input_scales) group.set("input_activations", weights);
  group.set("weights", weights).set("targets", strings({"Linear"}));
  return Json::object().set("group_0", std::move(group));
}

std::string_view experts_algorithm(const WrittenQuantization& written) {
  return written.input_scales ? "NVFP4" : "W4A16_NVFP4";
}

Json quantized_layers(const WrittenQuantization& written) {
  Json::Object layers;
  for (const std::string& prefix : written.prefixes) {
    Json how;
    how.set("quant_algo", experts_algorithm(written))
        .set("group_size", scale_group(BlockFormat::nvfp4));
    layers.push_back({prefix, std::move(how)});
  }
  return Json(std::move(layers));
}

Json producer(const WrittenQuantization& written) {
  return Json::object().set("name", "modelopt").set("version", written.producer);
}

// Modules that stay unquantised, in the dialect's own kind of pattern.
Json ignored_modules(const WrittenQuantization& written) {
  if (!written.ignored.empty()) {
    Json modules = Json::array();
    for (const std::string& module : written.ignored) modules.push_back(module);
    return modules;
  }
  switch (written.dialect) {
    case DialectKind::deepseek:
      return strings({"*.attn.*", "*.ffn.shared_experts.*", "head", "mtp.*"});
    case DialectKind::modelopt:
      return strings({"lm_head", "model.embed_tokens", "model.layers.*.self_attn*",
                      "model.layers.*.mlp.gate", "model.layers.*.mlp.shared_expert*"});
    case DialectKind::compressed_tensors:
      return strings({"lm_head", "re:.*self_attn.*", "re:.*mlp.gate$", "re:.*mlp.shared_expert.*"});
    case DialectKind::quark:
      return strings({"lm_head", "*self_attn*", "*mlp.gate", "*mlp.shared_expert*"});
    case DialectKind::gpt_oss:
    case DialectKind::gguf:
      break;
  }
  return strings(
      {"model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"});
}

std::string_view quant_algo(const WrittenQuantization& written) {
  return written.dialect == DialectKind::deepseek ? "MIXED_PRECISION" : experts_algorithm(written);
}

Json modelopt_quantization(const WrittenQuantization& written) {
  Json quantization;
  quantization.set("config_groups", nvfp4_config_groups(written))
      .set("ignore", ignored_modules(written))
      .set("quant_algo", quant_algo(written))
      .set("producer", producer(written))
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

Json compressed_tensors_quantization(const WrittenQuantization& written) {
  const std::string format = std::string(name_of(written.format)) + "-pack-quantized";
  Json activations;
  if (written.format == BlockFormat::nvfp4 && written.input_scales) {
    activations = compressed_record(written.format);
    activations.set("dynamic", "local");
  }
  Json group;
  group.set("format", format)
      .set("input_activations", std::move(activations))
      .set("output_activations", nullptr)
      .set("targets", strings({"Linear"}))
      .set("weights", compressed_record(written.format));
  Json quantization;
  quantization.set("config_groups", Json::object().set("group_0", std::move(group)))
      .set("format", format)
      .set("ignore", ignored_modules(written))
      .set("quant_method", "compressed-tensors")
      .set("quantization_status", "compressed");
  return quantization;
}

Json quark_quantization(const WrittenQuantization& written) {
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
  quantization.set("exclude", ignored_modules(written))
      .set("global_quant_config", std::move(everywhere))
      .set("quant_method", "quark");
  return quantization;
}

// The FP8 record that DeepSeek-V4 declares for everything but the experts; kept from the source,
// because its tile sizes are the model's.
Json deepseek_quantization(const Json& source, const WrittenQuantization& written) {
  Json quantization = source.is_object() ? source : Json::object();
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
  if (written.format == BlockFormat::nvfp4) {
    quantization.set("config_groups", nvfp4_config_groups(written))
        .set("group_size", scale_group(BlockFormat::nvfp4))
        .set("ignore", ignored_modules(written))
        .set("kv_cache_quant_algo", nullptr)
        .set("moe_quant_algo", experts_algorithm(written))
        .set("producer", producer(written))
        .set("quant_algo", quant_algo(written))
        .set("quantized_layers", quantized_layers(written));
  }
  return quantization;
}

// As published, where the source says it.
Json gpt_oss_quantization(const Json& source, const WrittenQuantization& written) {
  const Json* method = source.find("quant_method");
  const std::string name = method != nullptr ? method->as_string() : std::string();
  const bool is_own = name == "mxfp4" || name == "gpt_oss_mxfp4";
  if (is_own && source.find("modules_to_not_convert") != nullptr) return source;
  Json quantization;
  quantization.set("modules_to_not_convert", ignored_modules(written)).set("quant_method", "mxfp4");
  return quantization;
}

}  // namespace

Json quantization_of(const WrittenQuantization& written, const Json& source) {
  switch (written.dialect) {
    case DialectKind::deepseek:
      return deepseek_quantization(source, written);
    case DialectKind::modelopt:
      return modelopt_quantization(written);
    case DialectKind::compressed_tensors:
      return compressed_tensors_quantization(written);
    case DialectKind::quark:
      return quark_quantization(written);
    case DialectKind::gpt_oss:
      return gpt_oss_quantization(source, written);
    case DialectKind::gguf:
      break;  // its types say it
  }
  return {};
}

Json quant_sidecar_of(const WrittenQuantization& written) {
  const bool has_sidecar =
      written.dialect == DialectKind::deepseek || written.dialect == DialectKind::modelopt;
  if (written.format == BlockFormat::mxfp4 || !has_sidecar) return {};
  Json quantization;
  quantization.set("quant_algo", quant_algo(written))
      .set("kv_cache_quant_algo", nullptr)
      .set("group_size", scale_group(BlockFormat::nvfp4));
  if (written.dialect == DialectKind::deepseek) {
    quantization.set("quantized_layers", quantized_layers(written));
  }
  quantization.set("exclude_modules", ignored_modules(written));
  return Json::object()
      .set("producer", producer(written))
      .set("quantization", std::move(quantization));
}

}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// Methods: "fp8" with expert_dtype fp4 (DeepSeek-V4), "fp8" with moe_quant_algo NVFP4 (its
// re-quantisation), "modelopt*", "mxfp4" (gpt-oss), "compressed-tensors", "quark". Algorithm names
// appear in either case.
#include "model/declared_format.hpp"

#include <algorithm>
#include <cctype>
#include <utility>

#include "formats/block_format.hpp"
#include "model/wildcard.hpp"

namespace moxie {

namespace {

std::string upper(std::string text) {
  std::ranges::transform(text, text.begin(),
                         [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return text;
}

std::string text_at(const Json& object, std::string_view key) {
  const Json* value = object.find(key);
  return value != nullptr ? value->as_string() : std::string();
}

const Json& child(const Json& object, std::string_view key) {
  static const Json kNull;
  const Json* value = object.find(key);
  return value != nullptr ? *value : kNull;
}

// Whether a layer pattern speaks of routed experts, e.g. "re:.*mlp.experts.*".
bool names_experts(std::string_view pattern) {
  return pattern.find("experts") != std::string_view::npos &&
         pattern.find("shared_expert") == std::string_view::npos;
}

// The group of compressed-tensors that the experts are in: one whose targets name them, else the
// one of all linear layers, else the first. Null when there is none.
const Json& experts_group(const Json& quantization) {
  const auto targeted = [&](const auto& fits) -> const Json* {
    for (const JsonMember& group : child(quantization, "config_groups").members()) {
      for (const Json& target : child(group.value, "targets").elements()) {
        if (fits(target.as_string())) return &group.value;
      }
    }
    return nullptr;
  };
  if (const Json* group = targeted(names_experts)) return *group;
  if (const Json* group = targeted([](std::string_view target) { return target == "Linear"; }))
    return *group;
  const Json& groups = child(quantization, "config_groups");
  static const Json kNull;
  return groups.is_object() && !groups.members().empty() ? groups.members().front().value : kNull;
}

// The group's own format, else the one for all. Activations that are not quantised, or scaled as
// they come, have no stored scale; "local" is one for the tensor and fresh ones for its groups.
void apply_compressed_tensors(const Json& quantization, DeclaredFormat& declared) {
  const Json& group = experts_group(quantization);
  std::string format = text_at(group, "format");
  if (format.empty()) format = text_at(quantization, "format");
  if (format.starts_with("nvfp4")) declared.format = BlockFormat::nvfp4;
  if (format.starts_with("mxfp4")) declared.format = BlockFormat::mxfp4;
  if (!format.empty()) declared.quantization += " " + format;
  const Json& activations = child(group, "input_activations");
  const bool scaled = !group.is_object() ||
                      (activations.is_object() && !child(activations, "dynamic").as_bool(false));
  declared.input_scales = format.starts_with("nvfp4") && scaled;
}

// The weight record that Quark has for the experts: of their layers, else for all.
const Json& quark_weight(const Json& quantization) {
  for (const JsonMember& layer : child(quantization, "layer_quant_config").members()) {
    if (names_experts(layer.key)) return child(layer.value, "weight");
  }
  const Json& everywhere = child(quantization, "global_quant_config");
  return child(everywhere.is_object() ? everywhere : quantization, "weight");
}

void apply_quark(const Json& quantization, DeclaredFormat& declared) {
  const Json& weight = quark_weight(quantization);
  const std::string dtype = text_at(weight, "dtype");
  const std::uint64_t group = child(weight, "group_size").as_unsigned();
  if (dtype == "fp4" && group == scale_group(BlockFormat::mxfp4))
    declared.format = BlockFormat::mxfp4;
  if (!dtype.empty()) declared.quantization += " " + dtype;
}

// The algorithm that a MIXED_PRECISION table gives the routed experts: of the first layer that has
// them in FP4, else of the first.
std::string experts_algorithm(const Json& quantization) {
  std::string first;
  for (const JsonMember& layer : child(quantization, "quantized_layers").members()) {
    if (!names_experts(layer.key)) continue;
    std::string algorithm = upper(text_at(layer.value, "quant_algo"));
    if (algorithm.find("NVFP4") != std::string::npos) return algorithm;
    if (first.empty()) first = std::move(algorithm);
  }
  return first;
}

// What a ModelOpt algorithm name says: NVFP4, W4A16_NVFP4, NVFP4_AWQ, … Weight-only names store no
// activation scale.
void apply_algorithm(const std::string& algorithm, DeclaredFormat& declared) {
  if (algorithm.find("NVFP4") == std::string::npos) return;
  declared.format = BlockFormat::nvfp4;
  declared.input_scales = algorithm.find("A16") == std::string::npos;
}

// The quantisation record: the text model's own, else the model's.
const Json& quantization_of(const Json& config) {
  const Json& inner = child(child(config, "text_config"), "quantization_config");
  return inner.is_object() ? inner : child(config, "quantization_config");
}

std::string expert_dtype_of(const Json& config) {
  for (const Json* place : {&config, &child(config, "text_config"), &quantization_of(config)}) {
    if (std::string dtype = text_at(*place, "expert_dtype"); !dtype.empty()) return dtype;
  }
  return {};
}

// Whether a module is the experts of a prefix or lies below them.
bool is_within(std::string_view module, std::string_view prefix) {
  return module.starts_with(prefix) &&
         (module.size() == prefix.size() || module[prefix.size()] == '.');
}

}  // namespace

DeclaredLayers::DeclaredLayers(const Json& config, const Json& quant_config) {
  const Json& sidecar = child(quant_config, "quantization");
  for (const Json* place : {&quantization_of(config), &sidecar}) {
    for (const std::string_view key : {"ignore", "exclude_modules", "modules_to_not_convert"}) {
      for (const Json& pattern : child(*place, key).elements())
        excluded_.push_back(pattern.as_string());
    }
    for (const JsonMember& layer : child(*place, "quantized_layers").members()) {
      if (!names_experts(layer.key)) continue;
      DeclaredFormat declared;
      apply_algorithm(upper(text_at(layer.value, "quant_algo")), declared);
      table_.push_back({.module = layer.key, .format = declared.format});
    }
  }
  if (expert_dtype_of(config) == "fp4") base_ = BlockFormat::mxfp4;
}

std::optional<BlockFormat> DeclaredLayers::format_of(std::string_view prefix,
                                                     std::optional<BlockFormat> overall) const {
  const std::string module(prefix);
  const std::string below = module + ".0.gate_proj";
  for (const std::string& pattern : excluded_) {
    if (matches_wildcard(module, pattern) || matches_wildcard(below, pattern)) return base_;
  }
  for (const Entry& entry : table_) {
    if (is_within(entry.module, prefix)) return entry.format ? entry.format : base_;
  }
  return overall;
}

DeclaredFormat declared_format(const Json& config, const Json& quant_config) {
  DeclaredFormat declared;
  const Json& quantization = quantization_of(config);
  const Json& sidecar = child(quant_config, "quantization");
  const std::string method = text_at(quantization, "quant_method");

  std::string algorithm = upper(text_at(quantization, "moe_quant_algo"));
  // A table of layers, wherever it stands, says more than an algorithm for all of them.
  for (const Json* place : {&quantization, &sidecar}) {
    if (algorithm.empty()) algorithm = experts_algorithm(*place);
  }
  for (const Json* place : {&quantization, &sidecar}) {
    if (algorithm.empty()) algorithm = upper(text_at(*place, "quant_algo"));
  }
  const std::string expert_dtype = expert_dtype_of(config);

  declared.quantization = method.empty() ? (sidecar.is_object() ? "modelopt" : "") : method;
  const auto say = [&](const std::string& part) {
    declared.quantization += (declared.quantization.empty() ? "" : " ") + part;
  };
  apply_algorithm(algorithm, declared);
  if (declared.format) {
    say(algorithm);
  } else if (method == "mxfp4" || method == "gpt_oss_mxfp4") {
    declared.format = BlockFormat::mxfp4;
  } else if (method == "compressed-tensors") {
    apply_compressed_tensors(quantization, declared);
  } else if (method == "quark") {
    apply_quark(quantization, declared);
  } else if (expert_dtype == "fp4") {
    declared.format = BlockFormat::mxfp4;
    say("expert_dtype fp4");
  }
  return declared;
}

}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// Methods: "fp8" with expert_dtype fp4 (DeepSeek-V4), "fp8" with moe_quant_algo NVFP4 (its
// re-quantisation), "modelopt*", "mxfp4" (gpt-oss), "compressed-tensors". Algorithm names appear in
// either case.
#include "model/declared_format.hpp"

#include <algorithm>
#include <cctype>

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

// The algorithm that a MIXED_PRECISION table gives the routed experts of any layer.
std::string experts_algorithm(const Json& quantization) {
  for (const JsonMember& layer : child(quantization, "quantized_layers").members()) {
    const bool routed = layer.key.find(".experts") != std::string::npos &&
                        layer.key.find("shared_expert") == std::string::npos;
    if (routed) return upper(text_at(layer.value, "quant_algo"));
  }
  return {};
}

// What a ModelOpt algorithm name says: NVFP4, W4A16_NVFP4, NVFP4_AWQ, … Weight-only names store no
// activation scale.
void apply_algorithm(const std::string& algorithm, DeclaredFormat& declared) {
  if (algorithm.find("NVFP4") == std::string::npos) return;
  declared.format = BlockFormat::nvfp4;
  declared.input_scales = algorithm.find("A16") == std::string::npos;
}

}  // namespace

DeclaredFormat declared_format(const Json& config, const Json& quant_config) {
  DeclaredFormat declared;
  const Json& text = child(config, "text_config");
  const Json& inner = child(text, "quantization_config");
  const Json& quantization = inner.is_object() ? inner : child(config, "quantization_config");
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
  std::string expert_dtype = text_at(config, "expert_dtype");
  if (expert_dtype.empty()) expert_dtype = text_at(text, "expert_dtype");
  if (expert_dtype.empty()) expert_dtype = text_at(quantization, "expert_dtype");

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
    const std::string format = text_at(quantization, "format");
    if (format.starts_with("nvfp4")) declared.format = BlockFormat::nvfp4;
    if (format.starts_with("mxfp4")) declared.format = BlockFormat::mxfp4;
    declared.input_scales = format.starts_with("nvfp4");
    say(format);
  } else if (expert_dtype == "fp4") {
    declared.format = BlockFormat::mxfp4;
    say("expert_dtype fp4");
  }
  return declared;
}

}  // namespace moxie

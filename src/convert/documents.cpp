// SPDX-License-Identifier: Apache-2.0
// What stays unquantised is listed from the tensors themselves: layers that look alike share one
// pattern.
#include "convert/documents.hpp"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "model/dialects/written_quantization.hpp"
#include "model/expert_names.hpp"

namespace moxie::convert {

namespace {

// How a dialect writes "any number" and marks a pattern.
struct PatternStyle {
  std::string_view number;
  std::string_view begin;
  std::string_view end;
  std::string_view rest;  // "anything"
  std::string_view dot;
};

PatternStyle style_of(DialectKind dialect) {
  if (dialect == DialectKind::compressed_tensors) return {"\\d+", "re:", "$", ".*", "\\."};
  return {"*", "", "", "*", "."};
}

std::string escaped(std::string_view text, const PatternStyle& style) {
  std::string result;
  for (const char c : text) result += c == '.' ? std::string(style.dot) : std::string(1, c);
  return result;
}

// Modules with a matrix that is copied. A layer without converted experts is named as a whole, so
// that its pattern is none of converted ones.
std::vector<std::string> ignored_modules(const Source& source, const PatternStyle& style) {
  std::set<std::string> patterns;
  for (const TensorInfo& tensor : source.model->checkpoint.tensors()) {
    constexpr std::string_view kWeight = ".weight";
    std::string_view module = tensor.name;
    if (source.replaced.contains(&tensor) || tensor.shape.size() < 2) continue;
    const bool is_stack =
        module.ends_with(".experts.gate_up_proj") || module.ends_with(".experts.down_proj");
    if (!is_stack && !module.ends_with(kWeight)) continue;
    if (!is_stack) module.remove_suffix(kWeight.size());
    const auto block = block_of(module);
    if (!block) {
      patterns.insert(std::string(module));
      continue;
    }
    if (block->mtp) {
      // Beside the pattern, the experts by name, for readers without regular expressions.
      constexpr std::string_view kExperts = ".experts.";
      if (const std::size_t at = module.find(kExperts);
          !style.begin.empty() && at != std::string_view::npos)
        patterns.insert(std::string(module.substr(0, at + kExperts.size() - 1)));
      const std::size_t at = module.find("mtp.");
      patterns.insert(std::string(style.begin) + escaped(module.substr(0, at + 4), style) +
                      std::string(style.rest));
      continue;
    }
    const std::string number = std::to_string(block->number);
    const std::string before = escaped(module.substr(0, block->digits_at), style);
    const std::string_view after = module.substr(block->digits_at + number.size());
    const bool is_converted =
        std::ranges::find(source.layers, block->number, &SourceLayer::layer) != source.layers.end();
    patterns.insert(
        std::string(style.begin) + before +
        (is_converted ? std::string(style.number) + escaped(after, style) + std::string(style.end)
                      : number + std::string(style.dot) + std::string(style.rest)));
  }
  return {patterns.begin(), patterns.end()};
}

Json fp8_quantization(const Json& declared, const std::vector<std::string>& ignored,
                      bool has_record) {
  Json quantization = has_record && declared.is_object() ? declared : Json::object();
  Json tile = Json::array();
  tile.push_back(kFp8Tile);
  tile.push_back(kFp8Tile);
  if (!has_record) {
    Json modules = Json::array();
    for (const std::string& module : ignored) modules.push_back(module);
    quantization.set("activation_scheme", "dynamic")
        .set("fmt", "e4m3")
        .set("modules_to_not_convert", std::move(modules));
  }
  quantization.set("quant_method", "fp8");
  const Json* size = quantization.find("weight_block_size");
  if (size == nullptr) {
    quantization.set("weight_block_size", std::move(tile));
  } else if (!(*size == tile)) {
    throw Error(ErrorCode::unsupported,
                {.code = "MOXIE-Q005",
                 .message = "the config's FP8 record has another block size",
                 .expected = tile.dump_compact(),
                 .got = size->dump_compact()});
  }
  return quantization;
}

}  // namespace

Documents written_documents(const Source& source, const Target& target, bool input_scales) {
  const MoeModel& model = *source.model;
  Documents documents{.config = model.checkpoint.config(), .sidecar = {}};
  Json& config = documents.config;
  // Where the source declares: inside text_config, or at the top.
  Json text;
  bool is_nested = false;
  if (const Json* found = config.find("text_config")) {
    text = *found;
    const Json* inner = text.find("quantization_config");
    is_nested = inner != nullptr && inner->is_object();
  }
  const Json* found =
      is_nested ? text.find("quantization_config") : config.find("quantization_config");
  const Json declared = found != nullptr ? *found : Json();
  const bool has_record = has_fp8_record(model);

  Json quantization;
  if (target.is_fp8()) {
    quantization =
        fp8_quantization(declared, ignored_modules(source, style_of(target.dialect)), has_record);
    config.erase("expert_dtype");
    text.erase("expert_dtype");
  } else {
    WrittenQuantization written{.dialect = target.dialect,
                                .format = target.block_format(),
                                .input_scales = input_scales,
                                .producer = "moxie-" + std::string(version()),
                                .prefixes = {},
                                .ignored = ignored_modules(source, style_of(target.dialect))};
    for (const SourceLayer& layer : source.layers) written.prefixes.push_back(layer.prefix);
    quantization = quantization_of(written, declared);
    documents.sidecar = quant_sidecar_of(written);
    if (target.dialect == DialectKind::deepseek) {
      // An FP8 record that the source has not must not claim the other tensors.
      if (!has_record) {
        Json modules = Json::array();
        for (const std::string& module : written.ignored) modules.push_back(module);
        quantization.set("modules_to_not_convert", std::move(modules));
      }
      if (source.layers.front().prefix.ends_with("ffn.experts")) config.set("expert_dtype", "fp4");
    }
  }
  if (is_nested) {
    text.set("quantization_config", quantization);
    config.set("text_config", std::move(text));
    if (config.find("quantization_config") != nullptr)
      config.set("quantization_config", std::move(quantization));
  } else {
    config.set("quantization_config", std::move(quantization));
  }
  return documents;
}

}  // namespace moxie::convert

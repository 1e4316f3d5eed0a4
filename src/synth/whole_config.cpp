// SPDX-License-Identifier: Apache-2.0
// The list of tensors comes from reading back what will be written, so that both agree.
#include "synth/whole_config.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/checked.hpp"
#include "model/v4_config.hpp"
#include "synth/written_config.hpp"

namespace moxie::synth {

namespace {

// Rows of an engram's table where the model is not written at its own size: 17 MB instead of
// 101 GB in V4.1-Flash.
constexpr std::uint64_t kReducedEngramRows = std::uint64_t{1} << 16;

[[noreturn]] void refuse(std::string message, std::string expected, std::string got) {
  throw Error(ErrorCode::unsupported, {.code = "MOXIE-P010",
                                       .message = std::move(message),
                                       .expected = std::move(expected),
                                       .got = std::move(got),
                                       .hint = "leave out --whole to write the experts alone"});
}

std::uint64_t number_at(const Json& object, std::string_view key) {
  const Json* value = object.find(key);
  return value != nullptr ? value->as_unsigned() : 0;
}

void limit(Json& config, std::string_view key, std::uint64_t most) {
  if (config.find(key) != nullptr) config.set(key, std::min(number_at(config, key), most));
}

// Of a list of layers those that are written.
void keep_written_layers(Json& config, std::string_view key, std::uint64_t layers) {
  const Json* list = config.find(key);
  if (list == nullptr || !list->is_array()) return;
  Json kept = Json::array();
  for (const Json& layer : list->elements()) {
    if (layer.as_unsigned() < layers) kept.push_back(layer);
  }
  config.set(key, std::move(kept));
}

// Tables of written layers; smaller ones where the model is.
void fit_engrams(Json& config, const Recipe& recipe) {
  const Json* layers = config.find("engram_layer_ids");
  const Json* rows = config.find("engram_num_embeddings");
  if (layers == nullptr || rows == nullptr) return;
  const std::uint64_t most = recipe.whole->full_size ? ~std::uint64_t{0} : kReducedEngramRows;
  Json kept = Json::array();
  for (std::size_t i = 0; i < rows->elements().size() && i < layers->elements().size(); ++i) {
    if (layers->elements()[i].as_unsigned() < recipe.layers)
      kept.push_back(std::min(rows->elements()[i].as_unsigned(), most));
  }
  config.set("engram_num_embeddings", std::move(kept));
  keep_written_layers(config, "engram_layer_ids", recipe.layers);
  // Every head of every n-gram from two tokens up has a part of the rows.
  const std::uint64_t ngrams = number_at(config, "engram_max_ngram_size");
  const std::uint64_t parts = ngrams < 2 ? 0 : (ngrams - 1) * number_at(config, "engram_n_heads");
  if (parts > 0) limit(config, "engram_vocab_size", most / parts);
}

// The layers that drafts look at stay as far from the last one as they are.
void fit_draft_targets(Json& config, std::uint64_t source_layers, std::uint64_t layers) {
  const Json* targets = config.find("dspark_target_layer_ids");
  if (targets == nullptr || !targets->is_array()) return;
  Json fitted = Json::array();
  for (const Json& target : targets->elements()) {
    const std::uint64_t from_end = source_layers - std::min(target.as_unsigned(), source_layers);
    fitted.push_back(layers - std::min(std::max<std::uint64_t>(from_end, 1), layers));
  }
  config.set("dspark_target_layer_ids", std::move(fitted));
}

void require_v4_names(const Recipe& recipe) {
  if (!recipe.model_type.starts_with("deepseek_v4")) {
    refuse("the tensors around the experts are known of another family alone",
           "model_type deepseek_v4", "model_type " + recipe.model_type);
  }
  if (recipe.dialect == DialectKind::deepseek && !recipe.dense) return;
  refuse("a whole model is written under DeepSeek's own names alone",
         "the deepseek dialect with mxfp4 or nvfp4",
         recipe.dense ? std::string(name_of(*recipe.dense)) : std::string(name_of(recipe.dialect)));
}

}  // namespace

void make_whole(Recipe& recipe, const SynthOptions& options) {
  require_v4_names(recipe);
  const ModelConfig source = read_config(options.config, {});
  std::string lacking;
  for (const LackingKey& lack : lacking_v4_keys(options.config, source))
    lacking += (lacking.empty() ? "" : ", ") + std::string(lack.key);
  if (!lacking.empty()) {
    refuse("the config lacks sizes of the tensors around the experts",
           "numbers that go together, at its top level or in text_config",
           "none that can be used for " + lacking);
  }
  recipe.whole = {.drafts = source.v4->drafts,
                  .full_size = recipe.layers >= source.num_layers &&
                               recipe.experts >= source.experts && recipe.hidden >= source.hidden &&
                               recipe.inter >= source.inter};
  std::optional<V4Config> written = read_config(written_config(options.config, recipe), {}).v4;
  MOXIE_CHECK(written.has_value(), "what is written of a model's sizes can be read");
  recipe.whole->config = std::move(*written);
}

void fit_whole_model(Json& config, const Recipe& recipe) {
  const std::uint64_t source_layers = number_at(config, "num_hidden_layers");
  keep_written_layers(config, "kv_source_layer_ids", recipe.layers);
  keep_written_layers(config, "index_source_layer_ids", recipe.layers);
  constexpr std::string_view kCandidates = "candidate_source_layer_id";
  if (number_at(config, kCandidates) >= recipe.layers) config.erase(kCandidates);
  fit_engrams(config, recipe);
  fit_draft_targets(config, source_layers, recipe.layers);
  limit(config, "dspark_n_routed_experts", recipe.experts);
  limit(config, "dspark_num_experts_per_tok", recipe.experts);
}

}  // namespace moxie::synth

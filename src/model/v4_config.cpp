// SPDX-License-Identifier: Apache-2.0
// The keys of config.json that size a DeepSeek-V4 model beside its routed experts.
#include "model/v4_config.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "model/limits.hpp"

namespace moxie {

namespace {

constexpr std::uint64_t kMaxCount = std::uint64_t{1} << 32;  // rows of a table

// The text model's keys, then those of the top level.
class ConfigNumbers {
 public:
  explicit ConfigNumbers(const Json& config) : config_(config) {
    const Json* text = config.find("text_config");
    if (text != nullptr && text->is_object()) text_ = text;
  }

  [[nodiscard]] const Json* find(std::string_view key) const {
    const Json* value = text_ != nullptr ? text_->find(key) : nullptr;
    return value != nullptr ? value : config_.find(key);
  }
  // A whole number up to `most`; 0 when it is absent or anything else.
  [[nodiscard]] std::uint64_t number(std::string_view key, std::uint64_t most = kMaxWidth) const {
    const Json* value = find(key);
    const std::uint64_t number = value != nullptr ? value->as_unsigned(0) : 0;
    return number <= most ? number : 0;
  }
  // Empty when one of them is no whole number.
  [[nodiscard]] std::vector<std::uint64_t> numbers(std::string_view key) const {
    const Json* list = find(key);
    std::vector<std::uint64_t> numbers;
    if (list == nullptr || !list->is_array()) return numbers;
    for (const Json& value : list->elements()) {
      constexpr std::uint64_t kNone = ~std::uint64_t{0};
      const std::uint64_t number = value.as_unsigned(kNone);
      if (number > kMaxCount) return {};
      numbers.push_back(number);
    }
    return numbers;
  }

 private:
  const Json& config_;
  const Json* text_ = nullptr;
};

std::uint64_t tile_of(const Json& config) {
  constexpr std::uint64_t kPublished = 128;
  const Json* quantization = config.find("quantization_config");
  const Json* size = quantization != nullptr ? quantization->find("weight_block_size") : nullptr;
  if (size == nullptr || !size->is_array() || size->elements().size() != 2) return kPublished;
  const std::uint64_t rows = size->elements()[0].as_unsigned(0);
  const std::uint64_t columns = size->elements()[1].as_unsigned(0);
  return rows == columns && rows <= kMaxWidth ? rows : 0;
}

void read_v4_1(const ConfigNumbers& keys, const Json& config, V4Config& model) {
  model.kv_sources = keys.numbers("kv_source_layer_ids");
  model.index_sources = keys.numbers("index_source_layer_ids");
  model.engram_layers = keys.numbers("engram_layer_ids");
  model.engram_rows = keys.numbers("engram_num_embeddings");
  model.engram_dim = keys.number("engram_head_dim");
  const std::uint64_t ngrams = keys.number("engram_max_ngram_size");
  // Heads of every n-gram from two tokens up.
  if (ngrams > 0)
    model.engram_width = model.engram_dim * keys.number("engram_n_heads") * (ngrams - 1);
  const Json* vision = config.find("vision_config");
  if (vision == nullptr || !vision->is_object()) return;
  const ConfigNumbers seen(*vision);
  constexpr std::uint64_t kChannels = 3;
  model.vision_layers = seen.number("num_hidden_layers", kMaxLayers);
  model.vision_hidden = seen.number("hidden_size");
  model.vision_inter = seen.number("intermediate_size");
  model.vision_patch = kChannels * seen.number("patch_size") * seen.number("patch_size");
  model.vision_downsample = seen.number("downsample_ratio");
}

V4Config::Release release_of(const ConfigNumbers& keys, std::string_view model_type) {
  if (model_type.starts_with("deepseek_v41")) return V4Config::Release::v4_1;
  const bool drafts = keys.find("dspark_block_size") != nullptr;
  return drafts ? V4Config::Release::v4_0731 : V4Config::Release::v4;
}

// The sizes that every model of the family has.
struct Size {
  std::string_view key;
  std::uint64_t V4Config::* member;
  std::uint64_t most = kMaxWidth;
};
constexpr std::array kSizes{
    Size{"vocab_size", &V4Config::vocab, kMaxCount},
    Size{"num_attention_heads", &V4Config::heads},
    Size{"head_dim", &V4Config::head_dim},
    Size{"qk_rope_head_dim", &V4Config::rope_dim},
    Size{"q_lora_rank", &V4Config::q_rank},
    Size{"o_groups", &V4Config::output_groups},
    Size{"o_lora_rank", &V4Config::o_rank},
    Size{"n_shared_experts", &V4Config::shared_inter, 64},
    Size{"hc_mult", &V4Config::copies, 64},
    Size{"index_n_heads", &V4Config::index_heads},
    Size{"index_head_dim", &V4Config::index_dim},
};

V4Config read_keys(const Json& config, const ModelConfig& routed) {
  const ConfigNumbers keys(config);
  V4Config model{.release = release_of(keys, routed.model_type),
                 .hidden = routed.hidden,
                 .layers = routed.num_layers,
                 .inter = routed.inter,
                 .experts = routed.experts,
                 .top_k = routed.top_k,
                 .hash_layers = std::min(routed.hash_layers, routed.num_layers),
                 .tile = tile_of(config),
                 .compress_ratios = keys.numbers("compress_ratios"),
                 .draft_experts = routed.experts,
                 .draft_top_k = routed.top_k};
  for (const Size& size : kSizes) model.*size.member = keys.number(size.key, size.most);
  model.shared_inter *= model.inter;
  // num_nextn_predict_layers stays at 1 where there are three drafts; the ratios count them.
  const std::uint64_t blocks = model.compress_ratios.size();
  model.drafts = blocks > model.layers ? blocks - model.layers : 0;
  if (model.release != V4Config::Release::v4) model.markov_rank = keys.number("dspark_markov_rank");
  if (model.release == V4Config::Release::v4_1) {
    read_v4_1(keys, config, model);
    if (const auto own = keys.number("dspark_n_routed_experts", kMaxExperts); own > 0)
      model.draft_experts = own;
    if (const auto own = keys.number("dspark_num_experts_per_tok", model.draft_experts); own > 0)
      model.draft_top_k = own;
  }
  return model;
}

}  // namespace

std::vector<LackingKey> lacking_v4_keys(const Json& config, const ModelConfig& routed) {
  const V4Config model = read_keys(config, routed);
  const ConfigNumbers keys(config);
  std::vector<LackingKey> lacking;
  const auto need = [&](std::string_view key, bool usable, std::string expected) {
    if (usable) return;
    const Json* value = keys.find(key);
    const bool absent = value == nullptr || value->is_null();
    lacking.push_back({key, std::move(expected), absent ? "none" : value->dump_compact()});
  };
  for (const Size& size : kSizes)
    need(size.key, model.*size.member > 0, "1 to " + std::to_string(size.most));
  need("quantization_config", model.tile > 0, "weight_block_size of two equal numbers");
  const std::uint64_t blocks = model.compress_ratios.size();
  need("compress_ratios", blocks >= model.layers && model.drafts <= kMaxLayers,
       "a number for each of " + std::to_string(model.layers) + " layers, then for draft blocks");
  if (!lacking.empty()) return lacking;
  need("o_groups", model.heads % model.output_groups == 0,
       "a divisor of num_attention_heads, " + std::to_string(model.heads));
  need("qk_rope_head_dim", model.rope_dim <= model.head_dim,
       "at most head_dim, " + std::to_string(model.head_dim));
  if (model.release != V4Config::Release::v4 && model.drafts > 0)
    need("dspark_markov_rank", model.markov_rank > 0, "1 to " + std::to_string(kMaxWidth));
  if (model.release != V4Config::Release::v4_1) return lacking;
  for (const std::string_view key : {"kv_source_layer_ids", "index_source_layer_ids"}) {
    const Json* list = keys.find(key);
    need(key, list != nullptr && list->is_array(), "a list of layers");
  }
  if (!model.engram_layers.empty()) {
    const auto& rows = model.engram_rows;
    need("engram_num_embeddings",
         rows.size() == model.engram_layers.size() && std::ranges::find(rows, 0U) == rows.end(),
         "a number for each of engram_layer_ids");
    need("engram_head_dim", model.engram_dim > 0, "1 to " + std::to_string(kMaxWidth));
    need("engram_n_heads", keys.number("engram_n_heads") > 0, "1 to " + std::to_string(kMaxWidth));
    need("engram_max_ngram_size", keys.number("engram_max_ngram_size") > 1, "2 or more");
  }
  need("vision_config",
       model.vision_layers == 0 || (model.vision_hidden > 0 && model.vision_inter > 0 &&
                                    model.vision_patch > 0 && model.vision_downsample > 0),
       "sizes that are all positive");
  return lacking;
}

std::optional<V4Config> read_v4_config(const Json& config, const ModelConfig& routed) {
  if (!routed.model_type.starts_with("deepseek_v4")) return std::nullopt;
  if (!lacking_v4_keys(config, routed).empty()) return std::nullopt;
  return read_keys(config, routed);
}

}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// The keys of config.json that size a DeepSeek-V4 model beside its routed experts.
#include "model/v4_config.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

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

}  // namespace

std::optional<V4Config> read_v4_config(const Json& config, const ModelConfig& routed) {
  if (!routed.model_type.starts_with("deepseek_v4")) return std::nullopt;
  const ConfigNumbers keys(config);
  V4Config model{.release = release_of(keys, routed.model_type),
                 .hidden = routed.hidden,
                 .vocab = keys.number("vocab_size", kMaxCount),
                 .layers = routed.num_layers,
                 .heads = keys.number("num_attention_heads"),
                 .head_dim = keys.number("head_dim"),
                 .rope_dim = keys.number("qk_rope_head_dim"),
                 .q_rank = keys.number("q_lora_rank"),
                 .output_groups = keys.number("o_groups"),
                 .o_rank = keys.number("o_lora_rank"),
                 .shared_inter = routed.inter * keys.number("n_shared_experts", 64),
                 .inter = routed.inter,
                 .experts = routed.experts,
                 .top_k = routed.top_k,
                 .hash_layers = std::min(routed.hash_layers, routed.num_layers),
                 .copies = keys.number("hc_mult", 64),
                 .index_heads = keys.number("index_n_heads"),
                 .index_dim = keys.number("index_head_dim"),
                 .tile = tile_of(config),
                 .compress_ratios = keys.numbers("compress_ratios")};
  for (const std::uint64_t size :
       {model.vocab, model.heads, model.head_dim, model.rope_dim, model.q_rank, model.output_groups,
        model.o_rank, model.shared_inter, model.copies, model.index_heads, model.index_dim,
        model.tile}) {
    if (size == 0) return std::nullopt;
  }
  const std::uint64_t blocks = model.compress_ratios.size();
  if (blocks < model.layers || blocks > model.layers + kMaxLayers) return std::nullopt;
  if (model.heads % model.output_groups != 0 || model.rope_dim > model.head_dim)
    return std::nullopt;
  // num_nextn_predict_layers stays at 1 where there are three drafts; the ratios count them.
  model.drafts = blocks - model.layers;
  model.draft_experts = model.experts;
  if (model.release != V4Config::Release::v4) model.markov_rank = keys.number("dspark_markov_rank");
  if (model.release == V4Config::Release::v4_1) {
    read_v4_1(keys, config, model);
    if (const auto own = keys.number("dspark_n_routed_experts", kMaxExperts); own > 0)
      model.draft_experts = own;
  }
  return model;
}

}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// config.json to ModelConfig, by the family's table of keys.
#include <algorithm>
#include <string>

#include "model/config_keys.hpp"
#include "model/declared_format.hpp"
#include "model/gguf_config.hpp"
#include "model/limits.hpp"
#include "model/v4_config.hpp"
#include "moxie/model.hpp"

namespace moxie {

namespace {

[[noreturn]] void refuse(std::string message, std::string expected = {}, std::string got = {},
                         std::string hint = {}) {
  throw Error(ErrorCode::input, {.code = "MOXIE-M001",
                                 .message = std::move(message),
                                 .where = {.file = "config.json"},
                                 .expected = std::move(expected),
                                 .got = std::move(got),
                                 .hint = std::move(hint)});
}

// The text model's config: keys under text_config win over the top level.
class TextConfig {
 public:
  explicit TextConfig(const Json& config) : config_(config) {
    const Json* text = config.find("text_config");
    if (text != nullptr && text->is_object()) text_ = text;
  }

  [[nodiscard]] const Json* find(std::string_view key) const {
    const Json* value = text_ != nullptr ? text_->find(key) : nullptr;
    if (value == nullptr || value->is_null()) value = config_.find(key);
    return value == nullptr || value->is_null() ? nullptr : value;
  }
  [[nodiscard]] const Json* find(const Keys& keys) const {
    for (const std::string_view key : keys) {
      if (key.empty()) continue;
      if (const Json* value = find(key)) return value;
    }
    return nullptr;
  }
  // A positive whole number up to `most`.
  [[nodiscard]] std::uint64_t require(const Keys& keys, std::uint64_t most) const {
    const Json* value = find(keys);
    const std::string key(keys[1].empty() || find(keys[0]) != nullptr ? keys[0] : keys[1]);
    if (value == nullptr) refuse("the config lacks " + key, "a whole number");
    const std::uint64_t number = value->as_unsigned();
    if (number == 0 || number > most) {
      refuse("the config's " + key + " is out of range",
             "a whole number from 1 to " + std::to_string(most), value->dump_compact());
    }
    return number;
  }
  // A whole number that may be absent.
  [[nodiscard]] std::uint64_t whole(const Keys& keys, std::uint64_t otherwise) const {
    const Json* value = find(keys);
    if (value == nullptr) return otherwise;
    constexpr std::uint64_t kNone = ~std::uint64_t{0};
    if (value->as_unsigned(kNone) == kNone) wrong_kind(keys, "a whole number", *value);
    return value->as_unsigned();
  }
  // A number greater than zero that may be absent.
  [[nodiscard]] std::optional<double> positive(const Keys& keys) const {
    const Json* value = find(keys);
    if (value == nullptr) return std::nullopt;
    if (!value->is_number() || !(value->as_double() > 0)) {
      wrong_kind(keys, "a number greater than 0", *value);
    }
    return value->as_double();
  }
  // A truth value that may be absent.
  [[nodiscard]] bool flag(const Keys& keys, bool otherwise) const {
    const Json* value = find(keys);
    if (value == nullptr) return otherwise;
    if (!value->is_bool()) wrong_kind(keys, "true or false", *value);
    return value->as_bool();
  }
  // A list that may be absent.
  [[nodiscard]] const Json* list(std::string_view key) const {
    const Json* value = find(key);
    if (value != nullptr && !value->is_array()) wrong_kind({key}, "a list", *value);
    return value;
  }
  [[noreturn]] static void wrong_kind(const Keys& keys, std::string expected, const Json& got) {
    refuse("the config's " + std::string(keys[0]) + " is of another kind", std::move(expected),
           got.dump_compact());
  }

 private:
  const Json& config_;
  const Json* text_ = nullptr;
};

std::string model_type_of(const TextConfig& config) {
  if (const Json* type = config.find("model_type")) return type->as_string();
  if (config.find("moe_inter_dim") != nullptr && config.find("n_activated_experts") != nullptr) {
    return "deepseek_v4_inference";
  }
  if (config.find("experts_per_token") != nullptr && config.find("swiglu_limit") != nullptr &&
      config.find("num_experts") != nullptr) {
    return "gpt_oss_original";
  }
  return {};
}

// Which layers have routed experts. Families say it by a list of kinds, a pattern, a frequency or a
// first index. A list may go on beyond the last layer, with blocks that are no layers of the model.
std::vector<int> moe_layers_of(const TextConfig& config, std::uint64_t layers) {
  const auto select = [layers](std::size_t count, auto&& is_moe) {
    std::vector<int> chosen;
    for (std::size_t i = 0; i < std::min<std::size_t>(count, layers); ++i) {
      if (is_moe(i)) chosen.push_back(static_cast<int>(i));
    }
    return chosen;
  };
  const auto kinds = [&](std::string_view key,
                         std::string_view kind) -> std::optional<std::vector<int>> {
    const Json* list = config.list(key);
    if (list == nullptr) return std::nullopt;
    const auto& elements = list->elements();
    return select(elements.size(), [&](std::size_t i) { return elements[i].as_string() == kind; });
  };
  if (auto chosen = kinds("layers_block_type", "moe")) return *chosen;
  if (auto chosen = kinds("mlp_layer_types", "sparse")) return *chosen;
  if (const Json* pattern = config.find("hybrid_override_pattern")) {
    if (!pattern->is_string())
      TextConfig::wrong_kind({"hybrid_override_pattern"}, "text", *pattern);
    const std::string text = pattern->as_string();
    return select(text.size(), [&](std::size_t i) { return text[i] == 'E'; });
  }
  const Json* frequency = config.find("moe_layer_freq");
  if (frequency != nullptr && frequency->is_array()) {
    const auto& elements = frequency->elements();
    return select(elements.size(), [&](std::size_t i) { return elements[i].as_unsigned() != 0; });
  }
  const std::uint64_t first = config.whole({"first_k_dense_replace"}, 0);
  const std::uint64_t every = std::max<std::uint64_t>(config.whole({"moe_layer_freq"}, 1), 1);
  const std::uint64_t step = std::max<std::uint64_t>(config.whole({"decoder_sparse_step"}, 1), 1);
  const Json* dense = config.list("mlp_only_layers");
  return select(layers, [&](std::size_t i) {
    const bool excluded = dense != nullptr &&
                          std::ranges::find(dense->elements(), Json(i)) != dense->elements().end();
    return i >= first && i % every == 0 && (i + 1) % step == 0 && !excluded;
  });
}

std::uint64_t layers_of(const TextConfig& config, const FamilyKeys& family) {
  const Json* kinds = config.find("layers_block_type");
  if (config.find(family.layers) == nullptr && kinds != nullptr && kinds->is_array())
    return std::min<std::uint64_t>(kinds->elements().size(), kMaxLayers);
  return config.require(family.layers, kMaxLayers);
}

// Selection by groups: the groups are equal, each is scored by its two best experts, and what is
// kept holds enough experts for a token.
void read_expert_groups(const TextConfig& config, const FamilyKeys& family, ModelConfig& model) {
  const bool kept_declared = config.find(family.kept_groups) != nullptr;
  if (config.find(family.expert_groups) == nullptr && !kept_declared) return;
  const std::uint64_t groups = config.require(family.expert_groups, model.experts);
  if (groups > 1 || kept_declared) {
    model.kept_groups = config.require(family.kept_groups, groups);
  }
  model.expert_groups = groups;
  const std::string key(family.expert_groups[0]);
  if (model.experts % groups != 0) {
    refuse("the config's " + key + " does not divide the number of experts",
           "a divisor of " + std::to_string(model.experts), std::to_string(groups));
  }
  const std::uint64_t group_experts = model.experts / groups;
  if (groups > 1 && group_experts < 2) {
    refuse("the config's " + key + " leaves groups of one expert",
           "at most " + std::to_string(model.experts / 2), std::to_string(groups));
  }
  if (model.kept_groups * group_experts < model.top_k) {
    refuse("the config's " + std::string(family.kept_groups[0]) +
               " keeps fewer experts than a token chooses",
           "groups of " + std::to_string(group_experts) + " for " + std::to_string(model.top_k) +
               " chosen experts",
           std::to_string(model.kept_groups));
  }
}

}  // namespace

ModelConfig read_config(const Json& json, const Json& quant_config) {
  if (!json.is_object()) refuse("no config.json", "a config.json beside the tensors", "none");
  if (is_gguf_config(json)) return read_gguf_config(json);
  const TextConfig config(json);
  const std::string model_type = model_type_of(config);
  const FamilyKeys* family = find_family(model_type);
  if (family == nullptr) {
    std::string known;
    for (const FamilyKeys& keys : families()) {
      for (const std::string_view type : keys.model_types) {
        if (!type.empty()) known += (known.empty() ? "" : ", ") + std::string(type);
      }
    }
    refuse("unknown model family", "model_type one of " + known,
           model_type.empty() ? "none" : model_type);
  }
  ModelConfig model;
  model.model_type = model_type;
  model.hidden = config.require(family->hidden, kMaxWidth);
  const bool own_width = config.find(family->router_hidden) != nullptr;
  model.router_hidden = own_width ? config.require(family->router_hidden, kMaxWidth) : model.hidden;
  model.inter = config.require(family->inter, kMaxWidth);
  model.experts = config.require(family->experts, kMaxExperts);
  model.top_k = config.require(family->top_k, model.experts);
  model.num_layers = layers_of(config, *family);
  model.moe_layers = moe_layers_of(config, model.num_layers);
  if (model.moe_layers.empty()) refuse("the config names no layer with experts");
  model.hash_layers = config.whole(family->hash_layers, 0);
  model.vocab = config.whole({"vocab_size"}, 0);
  model.gated = family->gated;
  model.activation = family->activation;
  model.activation_limit = config.positive(family->activation_limit);
  model.router = family->router;
  if (model.router == RouterKind::scaled_softmax)
    model.norm_eps = config.positive({"rms_norm_eps"});
  model.biases = family->biases;
  model.routed_scaling = config.positive(family->routed_scaling).value_or(1.0);
  model.norm_topk = config.flag(family->norm_topk, family->norm_topk_default);
  read_expert_groups(config, *family, model);
  const DeclaredFormat declared = declared_format(json, quant_config);
  model.format = declared.format;
  model.quantization = declared.quantization;
  model.input_scales = declared.input_scales;
  model.v4 = read_v4_config(json, model);
  return model;
}

}  // namespace moxie

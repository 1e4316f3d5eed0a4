// SPDX-License-Identifier: Apache-2.0
// The file says the sizes and the router; what the activation function is, only the architecture
// says, so an unknown one is refused. Source: the key names of the ggml documentation and of
// published files.
#include "model/gguf_config.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <string>

#include "model/limits.hpp"

namespace moxie {

namespace {

constexpr std::string_view kArchitectureKey = "general.architecture";

// What a file leaves to its reader. Without `router` the file has to say one.
struct Architecture {
  std::string_view name;
  std::array<std::string_view, 4> model_types;  // in config.json
  Activation activation = Activation::silu;
  std::optional<RouterKind> router{};
  bool norm_topk = false;         // where the file does not say
  std::optional<double> limit{};  // of the activation, where the file has no key for it
  bool biases = false;
};

constexpr std::array kArchitectures{
    Architecture{"deepseek4",
                 {"deepseek_v4", "deepseek_v4_inference"},
                 Activation::clamped_swiglu,
                 RouterKind::sqrt_softplus,
                 true},
    Architecture{
        "deepseek2", {"deepseek_v3", "kimi_k2"}, Activation::silu, RouterKind::softmax_topk},
    Architecture{"dots1", {}, Activation::silu},
    Architecture{"glm-dsa", {"glm_moe_dsa"}, Activation::silu, RouterKind::sigmoid},
    Architecture{"glm4moe", {}, Activation::silu, RouterKind::sigmoid},
    Architecture{"gpt-oss",
                 {"gpt_oss", "gpt_oss_original"},
                 Activation::oai_swiglu,
                 RouterKind::topk_softmax,
                 true,
                 7.0,
                 true},
    Architecture{"minimax-m2", {"minimax_m2"}, Activation::silu, RouterKind::sigmoid, true},
    Architecture{"qwen35moe",
                 {"qwen3_5_moe", "qwen3_5_moe_text"},
                 Activation::silu,
                 RouterKind::softmax_topk,
                 true},
    Architecture{"qwen3moe", {"qwen3_moe"}, Activation::silu, RouterKind::softmax_topk, true},
    Architecture{"qwen3vlmoe", {}, Activation::silu, RouterKind::softmax_topk, true},
};

// By its number in a file; 0 stands for "as the architecture does".
constexpr std::array<std::optional<RouterKind>, 5> kGating = {
    std::nullopt, RouterKind::softmax_topk, RouterKind::sigmoid, RouterKind::topk_softmax,
    RouterKind::sqrt_softplus};

[[noreturn]] void refuse(std::string message, std::string expected, std::string got,
                         std::string hint = {}) {
  throw Error(ErrorCode::input, {.code = "MOXIE-M001",
                                 .message = std::move(message),
                                 .expected = std::move(expected),
                                 .got = std::move(got),
                                 .hint = std::move(hint)});
}

const Architecture& architecture_of(const Json& config) {
  const Json* stated = config.find(kArchitectureKey);
  const std::string name = stated != nullptr ? stated->as_string() : std::string();
  const auto known = std::ranges::find(kArchitectures, name, &Architecture::name);
  if (known != kArchitectures.end()) return *known;
  std::string names;
  for (const Architecture& architecture : kArchitectures)
    names += (names.empty() ? "" : ", ") + std::string(architecture.name);
  refuse("unknown architecture: which activation function its experts have is not known",
         std::string(kArchitectureKey) + " one of " + names, name.empty() ? "none" : name);
}

class Metadata {
 public:
  Metadata(const Json& config, std::string_view architecture)
      : config_(config), prefix_(std::string(architecture) + ".") {}

  [[nodiscard]] std::string key(std::string_view leaf) const { return prefix_ + std::string(leaf); }
  [[nodiscard]] const Json* find(std::string_view leaf) const { return config_.find(key(leaf)); }

  [[nodiscard]] std::uint64_t require(std::string_view leaf, std::uint64_t most) const {
    const Json* value = find(leaf);
    if (value == nullptr) refuse("the file lacks " + key(leaf), "a whole number", "none");
    const std::uint64_t number = value->as_unsigned();
    if (number == 0 || number > most) {
      refuse(key(leaf) + " is out of range", "a whole number from 1 to " + std::to_string(most),
             value->dump_compact());
    }
    return number;
  }
  [[nodiscard]] std::uint64_t whole(std::string_view leaf, std::uint64_t otherwise) const {
    const Json* value = find(leaf);
    if (value == nullptr) return otherwise;
    constexpr std::uint64_t kNone = ~std::uint64_t{0};
    if (value->as_unsigned(kNone) == kNone)
      refuse(key(leaf) + " is of another kind", "a whole number", value->dump_compact());
    return value->as_unsigned();
  }
  [[nodiscard]] bool flag(std::string_view leaf, bool otherwise) const {
    const Json* value = find(leaf);
    if (value == nullptr) return otherwise;
    if (!value->is_bool())
      refuse(key(leaf) + " is of another kind", "true or false", value->dump_compact());
    return value->as_bool();
  }
  // Zero, or a number that may be absent.
  [[nodiscard]] double real(std::string_view leaf) const {
    const Json* value = find(leaf);
    if (value == nullptr) return 0;
    if (!value->is_number() || !(value->as_double() >= 0))
      refuse(key(leaf) + " is of another kind", "a number from 0 on", value->dump_compact());
    return value->as_double();
  }

 private:
  const Json& config_;
  std::string prefix_;
};

RouterKind router_of(const Metadata& metadata, const Architecture& architecture) {
  constexpr std::string_view kKey = "expert_gating_func";
  const std::uint64_t stated = metadata.whole(kKey, 0);
  const bool known = stated < kGating.size();
  const auto router = known && stated > 0 ? kGating[stated] : architecture.router;
  // gpt-oss and DeepSeek-V4 are read with their own router only.
  const bool fixed = architecture.router == RouterKind::topk_softmax ||
                     architecture.router == RouterKind::sqrt_softplus;
  const bool foreign = router == RouterKind::topk_softmax || router == RouterKind::sqrt_softplus;
  if (known && router && (fixed || foreign ? router == architecture.router : true)) return *router;
  refuse(metadata.key(kKey) + " is not understood",
         fixed ? std::to_string(gguf_gating(*architecture.router)) + " for " +
                     std::string(architecture.name)
               : "1 (softmax) or 2 (sigmoid)",
         stated == 0 ? "none" : std::to_string(stated));
}

// One limit for all layers, or the same for each; zeros are none.
std::optional<double> limit_of(const Metadata& metadata, const Architecture& architecture) {
  constexpr std::string_view kKey = "swiglu_clamp_exp";
  const Json* stated = metadata.find(kKey);
  if (stated == nullptr) return architecture.limit;
  const Json* first = stated;
  bool same = true;
  if (stated->is_array() && !stated->elements().empty()) {
    first = stated->elements().data();
    same = std::ranges::all_of(stated->elements(), [&](const Json& it) { return it == *first; });
  }
  const double limit = first->as_double(-1);
  const bool clamps = architecture.activation == Activation::clamped_swiglu;
  if (!same || !(limit >= 0) || (limit > 0 && !clamps)) {
    refuse(metadata.key(kKey) + " is not understood",
           clamps ? "one number for all layers" : "no limit in " + std::string(architecture.name),
           stated->dump_compact());
  }
  return limit > 0 ? std::optional(limit) : std::nullopt;
}

void read_layers(const Metadata& metadata, ModelConfig& model) {
  const std::uint64_t blocks = metadata.require("block_count", kMaxLayers);
  const std::uint64_t predicting = metadata.whole("nextn_predict_layers", 0);
  if (predicting >= blocks) {
    refuse(metadata.key("nextn_predict_layers") + " is out of range",
           "less than " + std::to_string(blocks), std::to_string(predicting));
  }
  model.num_layers = blocks - predicting;
  for (const std::string_view step : {"interleave_moe_layer_step", "moe_every_n_layers"}) {
    if (metadata.whole(step, 1) > 1) {
      refuse(metadata.key(step) + " is not understood", "experts in every layer",
             std::to_string(metadata.whole(step, 1)));
    }
  }
  for (std::uint64_t layer = metadata.whole("leading_dense_block_count", 0);
       layer < model.num_layers; ++layer)
    model.moe_layers.push_back(static_cast<int>(layer));
  if (model.moe_layers.empty()) {
    refuse("the file names no layer with experts",
           metadata.key("leading_dense_block_count") + " below " + std::to_string(model.num_layers),
           std::to_string(metadata.whole("leading_dense_block_count", 0)));
  }
}

// Groups are equal, have two experts or more, and what is kept holds enough for a token.
void read_groups(const Metadata& metadata, ModelConfig& model) {
  const std::uint64_t groups = std::max<std::uint64_t>(metadata.whole("expert_group_count", 1), 1);
  const std::uint64_t kept = metadata.whole("expert_group_used_count", groups);
  if (groups <= 1) return;
  const bool divides = model.experts % groups == 0 && model.experts / groups >= 2;
  if (!divides || kept == 0 || kept > groups || kept * (model.experts / groups) < model.top_k) {
    refuse("the groups of experts contradict each other",
           "equal groups of two or more, of which enough are kept for " +
               std::to_string(model.top_k) + " experts",
           std::to_string(kept) + " of " + std::to_string(groups) + " groups of " +
               std::to_string(model.experts) + " experts");
  }
  if (model.router == RouterKind::softmax_topk && kept < groups) {
    refuse("groups of experts under a softmax are not read", "sigmoid scores",
           std::to_string(groups) + " groups");
  }
  model.expert_groups = groups;
  model.kept_groups = kept;
}

}  // namespace

bool is_gguf_config(const Json& config) { return config.find(kArchitectureKey) != nullptr; }

ModelConfig read_gguf_config(const Json& config) {
  const Architecture& architecture = architecture_of(config);
  const Metadata metadata(config, architecture.name);
  ModelConfig model;
  model.model_type = architecture.name;
  model.hidden = metadata.require("embedding_length", kMaxWidth);
  model.router_hidden = model.hidden;
  const bool own_width = metadata.find("expert_feed_forward_length") != nullptr;
  model.inter =
      metadata.require(own_width ? "expert_feed_forward_length" : "feed_forward_length", kMaxWidth);
  model.experts = metadata.require("expert_count", kMaxExperts);
  model.top_k = metadata.require("expert_used_count", model.experts);
  model.vocab = metadata.whole("vocab_size", 0);
  model.hash_layers = metadata.whole("hash_layer_count", 0);
  read_layers(metadata, model);
  model.activation = architecture.activation;
  model.activation_limit = limit_of(metadata, architecture);
  model.router = router_of(metadata, architecture);
  model.biases = architecture.biases;
  model.norm_topk = metadata.flag("expert_weights_norm", architecture.norm_topk);
  const double scale = metadata.real("expert_weights_scale");
  model.routed_scaling = scale > 0 ? scale : 1.0;  // 0 is written where there is none
  read_groups(metadata, model);
  model.quantization = "gguf";
  return model;
}

std::string_view gguf_architecture(std::string_view model_type) {
  const auto known = std::ranges::find_if(kArchitectures, [&](const Architecture& architecture) {
    return !model_type.empty() && std::ranges::find(architecture.model_types, model_type) !=
                                      architecture.model_types.end();
  });
  return known == kArchitectures.end() ? std::string_view() : known->name;
}

unsigned gguf_gating(RouterKind router) {
  const auto known = std::ranges::find(kGating, std::optional(router));
  return known == kGating.end() ? 0 : static_cast<unsigned>(known - kGating.begin());
}

}  // namespace moxie

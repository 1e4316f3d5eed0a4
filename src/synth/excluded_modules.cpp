// SPDX-License-Identifier: Apache-2.0
// Published lists, one entry per layer and module; "{}" stands for the layer.
#include "synth/excluded_modules.hpp"

#include <array>
#include <string>
#include <string_view>

namespace moxie::synth {

namespace {

struct Exclusions {
  std::string_view model_type;
  std::array<std::string_view, 3> once;
  std::array<std::string_view, 6> per_layer;
  std::string_view after_last;  // the block after the last layer
};

constexpr Exclusions kExclusions[] = {
    {.model_type = "glm_moe_dsa",
     .once = {"lm_head"},
     .per_layer = {"model.layers.{}.self_attn.indexer*",
                   "model.layers.{}.self_attn.kv_a_proj_with_mqa",
                   "model.layers.{}.self_attn.kv_b_proj", "model.layers.{}.self_attn.o_proj",
                   "model.layers.{}.self_attn.q_a_proj", "model.layers.{}.self_attn.q_b_proj"},
     .after_last = "model.layers.{}*"},
    {.model_type = "kimi_k25",
     .once = {"language_model.lm_head", "mm_projector*", "vision_tower*"},
     .per_layer = {"language_model.model.layers.{}.self_attn*"},
     .after_last = {}},
    {.model_type = "qwen3_moe",
     .once = {"lm_head"},
     .per_layer = {"model.layers.{}.mlp.gate"},
     .after_last = {}},
};

std::string with_layer(std::string_view pattern, std::uint64_t layer) {
  const std::size_t at = pattern.find("{}");
  return std::string(pattern.substr(0, at)) + std::to_string(layer) +
         std::string(pattern.substr(at + 2));
}

}  // namespace

Json excluded_modules(const Recipe& recipe) {
  Json modules = Json::array();
  for (const Exclusions& model : kExclusions) {
    if (model.model_type != recipe.model_type) continue;
    for (const std::string_view name : model.once) {
      if (!name.empty()) modules.push_back(name);
    }
    for (std::uint64_t layer = 0; layer < recipe.layers; ++layer) {
      for (const std::string_view pattern : model.per_layer) {
        if (!pattern.empty()) modules.push_back(with_layer(pattern, layer));
      }
    }
    if (!model.after_last.empty()) modules.push_back(with_layer(model.after_last, recipe.layers));
    return modules;
  }
  for (const std::string_view name :
       {"lm_head", "model.embed_tokens", "model.layers.*.self_attn*", "model.layers.*.mlp.gate",
        "model.layers.*.mlp.shared_expert*"}) {
    modules.push_back(name);
  }
  return modules;
}

}  // namespace moxie::synth

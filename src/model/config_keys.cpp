// SPDX-License-Identifier: Apache-2.0
// The table of field names. Source: the published config.json files of these models.
#include "model/config_keys.hpp"

#include <algorithm>

namespace moxie {

namespace {

// clang-format off
constexpr FamilyKeys kFamilies[] = {
    {.model_types = {"deepseek_v4", "deepseek_v41", "deepseek_v41_text"},
     .hidden = {"hidden_size"}, .inter = {"moe_intermediate_size"}, .experts = {"n_routed_experts"},
     .top_k = {"num_experts_per_tok"}, .layers = {"num_hidden_layers"}, .routed_scaling = {"routed_scaling_factor"},
     .activation = Activation::clamped_swiglu, .router = RouterKind::sqrt_softplus,
     .activation_limit = {"swiglu_limit"}, .hash_layers = {"num_hash_layers"},
     .norm_topk = {"norm_topk_prob"}},
    // The publisher's own inference config has no model_type and other names.
    {.model_types = {"deepseek_v4_inference"},
     .hidden = {"dim"}, .inter = {"moe_inter_dim"}, .experts = {"n_routed_experts"},
     .top_k = {"n_activated_experts"}, .layers = {"n_layers"}, .routed_scaling = {"route_scale"},
     .activation = Activation::clamped_swiglu, .router = RouterKind::sqrt_softplus,
     .activation_limit = {"swiglu_limit"}, .hash_layers = {"n_hash_layers"}},
    {.model_types = {"deepseek_v3", "deepseek_v32", "kimi_k2", "glm_moe_dsa"},
     .hidden = {"hidden_size"}, .inter = {"moe_intermediate_size"}, .experts = {"n_routed_experts"},
     .top_k = {"num_experts_per_tok"}, .layers = {"num_hidden_layers"}, .routed_scaling = {"routed_scaling_factor"},
     .activation = Activation::silu, .router = RouterKind::sigmoid,
     .norm_topk = {"norm_topk_prob"}, .expert_groups = {"n_group"}, .kept_groups = {"topk_group"}},
    {.model_types = {"kimi_linear"},
     .hidden = {"routed_expert_hidden_size", "hidden_size"}, .inter = {"moe_intermediate_size"},
     .experts = {"num_experts"}, .top_k = {"num_experts_per_token"}, .layers = {"num_hidden_layers"},
     .routed_scaling = {"routed_scaling_factor"},
     .activation = Activation::situ, .router = RouterKind::sigmoid,
     .norm_topk = {"moe_renormalize"}, .expert_groups = {"num_expert_group"}, .kept_groups = {"topk_group"},
     .router_hidden = {"hidden_size"}},
    {.model_types = {"gpt_oss"},
     .hidden = {"hidden_size"}, .inter = {"intermediate_size"}, .experts = {"num_local_experts"},
     .top_k = {"num_experts_per_tok", "experts_per_token"}, .layers = {"num_hidden_layers"}, .routed_scaling = {},
     .activation = Activation::oai_swiglu, .router = RouterKind::topk_softmax,
     .biases = true, .activation_limit = {"swiglu_limit"}},
    // The publisher's own files have no model_type and other names.
    {.model_types = {"gpt_oss_original"},
     .hidden = {"hidden_size"}, .inter = {"intermediate_size"}, .experts = {"num_experts"},
     .top_k = {"experts_per_token"}, .layers = {"num_hidden_layers"}, .routed_scaling = {},
     .activation = Activation::oai_swiglu, .router = RouterKind::topk_softmax,
     .biases = true, .activation_limit = {"swiglu_limit"}},
    {.model_types = {"qwen3_moe"},
     .hidden = {"hidden_size"}, .inter = {"moe_intermediate_size"}, .experts = {"num_experts"},
     .top_k = {"num_experts_per_tok"}, .layers = {"num_hidden_layers"}, .routed_scaling = {},
     .activation = Activation::silu, .router = RouterKind::softmax_topk, .norm_topk_default = false,
     .norm_topk = {"norm_topk_prob"}},
    {.model_types = {"qwen3_5_moe", "qwen3_5_moe_text"},
     .hidden = {"hidden_size"}, .inter = {"moe_intermediate_size"}, .experts = {"num_experts"},
     .top_k = {"num_experts_per_tok"}, .layers = {"num_hidden_layers"}, .routed_scaling = {},
     .activation = Activation::silu, .router = RouterKind::softmax_topk, .norm_topk = {"norm_topk_prob"}},
    {.model_types = {"minimax_m2"},
     .hidden = {"hidden_size"}, .inter = {"intermediate_size"}, .experts = {"num_local_experts"},
     .top_k = {"num_experts_per_tok"}, .layers = {"num_hidden_layers"}, .routed_scaling = {},
     .activation = Activation::silu, .router = RouterKind::sigmoid},
    {.model_types = {"minimax_m3"},
     .hidden = {"hidden_size"}, .inter = {"moe_intermediate_size", "intermediate_size"},
     .experts = {"num_local_experts"}, .top_k = {"num_experts_per_tok"}, .layers = {"num_hidden_layers"},
     .routed_scaling = {"routed_scaling_factor"},
     .activation = Activation::oai_swiglu, .router = RouterKind::sigmoid, .activation_limit = {"swiglu_limit"}},
    {.model_types = {"nemotron_h"},
     .hidden = {"moe_latent_size", "hidden_size"}, .inter = {"moe_intermediate_size"},
     .experts = {"n_routed_experts"}, .top_k = {"num_experts_per_tok"}, .layers = {"num_hidden_layers"},
     .routed_scaling = {"routed_scaling_factor"},
     .activation = Activation::relu2, .router = RouterKind::sigmoid, .gated = false,
     .norm_topk = {"norm_topk_prob"}, .expert_groups = {"n_group"}, .kept_groups = {"topk_group"},
     .router_hidden = {"hidden_size"}},
    {.model_types = {"gemma4", "gemma4_text"},
     .hidden = {"hidden_size"}, .inter = {"moe_intermediate_size"}, .experts = {"num_experts"},
     .top_k = {"top_k_experts"}, .layers = {"num_hidden_layers"}, .routed_scaling = {},
     .activation = Activation::gelu_tanh, .router = RouterKind::scaled_softmax},
};
// clang-format on

}  // namespace

std::span<const FamilyKeys> families() { return kFamilies; }

const FamilyKeys* find_family(std::string_view model_type) {
  if (model_type.empty()) return nullptr;
  const auto family = std::ranges::find_if(kFamilies, [&](const FamilyKeys& keys) {
    return std::ranges::find(keys.model_types, model_type) != keys.model_types.end();
  });
  return family == std::end(kFamilies) ? nullptr : family;
}

}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// The configs of the named models: published facts, and a tiny model of the same geometry.
#include <array>
#include <cstdint>
#include <string>

#include "moxie/synth.hpp"
#include "synth/published_configs.hpp"

namespace moxie {

namespace {

// What differs between models of the DeepSeek-V4 family.
struct FamilySizes {
  std::string_view name;
  std::uint64_t hidden = 0;
  std::uint64_t inter = 0;
  std::uint64_t experts = 0;
  std::uint64_t top_k = 0;
  std::uint64_t layers = 0;
  std::uint64_t hash_layers = 0;
  std::uint64_t vocab = 0;
  std::uint64_t heads = 0;
  std::uint64_t head_dim = 0;
  std::uint64_t q_lora_rank = 0;
  std::uint64_t output_groups = 0;
  std::uint64_t o_lora_rank = 0;
  std::uint64_t index_heads = 0;
  std::uint64_t index_head_dim = 0;
  std::uint64_t index_topk = 0;
  double routed_scaling = 0;
  std::uint64_t first_ratio = 0;  // compress_ratios of layers 0 and 1; then 4 and 128 alternate
};

constexpr std::array kModels{
    FamilySizes{"deepseek-v4-flash", 4096, 2048, 256, 6, 43, 3, 129280, 64, 512, 1024, 8, 1024, 64,
                128, 512, 1.5, 0},
    FamilySizes{"deepseek-v4-pro", 7168, 3072, 384, 6, 61, 3, 129280, 128, 512, 1536, 16, 1024, 64,
                128, 1024, 2.5, 128},
    // Small enough for tests; at three ranks every axis is cut in the same pattern as Flash.
    FamilySizes{"tiny", 256, 640, 8, 2, 4, 1, 320, 16, 128, 128, 8, 128, 4, 64, 8, 1.5, 0},
};

// One entry per layer and one, 0, for the multi-token-prediction block.
Json compress_ratios(const FamilySizes& model) {
  Json ratios = Json::array();
  if (model.name == "tiny") {
    // One layer of each kind: window only, overlapping, plain, window only.
    for (const int ratio : {0, 4, 128, 0, 0}) ratios.push_back(ratio);
    return ratios;
  }
  for (std::uint64_t layer = 0; layer < model.layers; ++layer) {
    ratios.push_back(layer < 2 ? model.first_ratio : layer % 2 == 0 ? 4U : 128U);
  }
  ratios.push_back(0);
  return ratios;
}

Json config_of(const FamilySizes& model) {
  Json block_size = Json::array();
  block_size.push_back(128);
  block_size.push_back(128);
  Json quantization;
  quantization.set("activation_scheme", "dynamic")
      .set("fmt", "e4m3")
      .set("quant_method", "fp8")
      .set("scale_fmt", "ue8m0")
      .set("weight_block_size", std::move(block_size));
  Json rope_scaling;
  rope_scaling.set("beta_fast", 32)
      .set("beta_slow", 1)
      .set("factor", 16)
      .set("original_max_position_embeddings", 65536)
      .set("type", "yarn");
  Json architectures = Json::array();
  architectures.push_back("DeepseekV4ForCausalLM");

  Json config;
  config.set("architectures", std::move(architectures))
      .set("attention_bias", false)
      .set("attention_dropout", 0.0)
      .set("bos_token_id", 0)
      .set("eos_token_id", 1)
      .set("expert_dtype", "fp4")
      .set("hc_eps", 1e-6)
      .set("hc_mult", 4)
      .set("hc_sinkhorn_iters", 20)
      .set("head_dim", model.head_dim)
      .set("hidden_act", "silu")
      .set("hidden_size", model.hidden)
      .set("index_head_dim", model.index_head_dim)
      .set("index_n_heads", model.index_heads)
      .set("index_topk", model.index_topk)
      .set("initializer_range", 0.02)
      .set("max_position_embeddings", 1048576)
      .set("model_type", "deepseek_v4")
      .set("moe_intermediate_size", model.inter)
      .set("n_routed_experts", model.experts)
      .set("n_shared_experts", 1)
      .set("norm_topk_prob", true)
      .set("num_attention_heads", model.heads)
      .set("num_experts_per_tok", model.top_k)
      .set("num_hidden_layers", model.layers)
      .set("num_hash_layers", model.hash_layers)
      .set("num_key_value_heads", 1)
      .set("num_nextn_predict_layers", 1)
      .set("o_groups", model.output_groups)
      .set("o_lora_rank", model.o_lora_rank)
      .set("q_lora_rank", model.q_lora_rank)
      .set("qk_rope_head_dim", 64)
      .set("quantization_config", std::move(quantization))
      .set("rms_norm_eps", 1e-6)
      .set("rope_scaling", std::move(rope_scaling))
      .set("rope_theta", 10000)
      .set("routed_scaling_factor", model.routed_scaling)
      .set("scoring_func", "sqrtsoftplus")
      .set("sliding_window", 128)
      .set("swiglu_limit", 10.0)
      .set("tie_word_embeddings", false)
      .set("topk_method", "noaux_tc")
      .set("torch_dtype", "bfloat16")
      .set("transformers_version", "4.57.1")
      .set("use_cache", true)
      .set("vocab_size", model.vocab)
      .set("compress_rope_theta", 160000)
      .set("compress_ratios", compress_ratios(model));
  return config;
}

}  // namespace

std::vector<std::string_view> synth_models() {
  std::vector<std::string_view> names;
  for (const FamilySizes& model : kModels) names.push_back(model.name);
  for (const std::string_view name : synth::published_models()) names.push_back(name);
  return names;
}

Json synth_config(std::string_view model) {
  for (const FamilySizes& candidate : kModels) {
    if (candidate.name == model) return config_of(candidate);
  }
  if (Json config = synth::published_config(model); !config.is_null()) return config;
  std::string known;
  for (const std::string_view name : synth_models())
    known += (known.empty() ? "" : ", ") + std::string(name);
  throw Error(ErrorCode::usage, {.code = "MOXIE-U003",
                                 .message = "unknown model name",
                                 .expected = "one of " + known,
                                 .got = std::string(model),
                                 .hint = "use --config FILE for another model"});
}

}  // namespace moxie

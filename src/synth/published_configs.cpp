// SPDX-License-Identifier: Apache-2.0
// Published configs of other families than DeepSeek-V4. Where the quantisation stands in a second
// file only, the config says its method too, as newer checkpoints do.
#include "synth/published_configs.hpp"

#include <cstdint>

namespace moxie::synth {

namespace {

// clang-format off
constexpr std::string_view kGptOss = R"json({"architectures": ["GptOssForCausalLM"], "attention_bias": true, "attention_dropout": 0.0,
"eos_token_id": 200002, "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu",
"hidden_size": 2880, "initial_context_length": 4096, "initializer_range": 0.02,
"intermediate_size": 2880, "max_position_embeddings": 131072, "model_type": "gpt_oss",
"num_attention_heads": 64, "num_experts_per_tok": 4, "num_hidden_layers": 24,
"num_key_value_heads": 8, "num_local_experts": 32, "output_router_logits": false,
"pad_token_id": 199999,
"quantization_config": {"modules_to_not_convert": ["model.layers.*.self_attn",
"model.layers.*.mlp.router", "model.embed_tokens", "lm_head"], "quant_method": "mxfp4"},
"rms_norm_eps": 1e-05, "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0,
"original_max_position_embeddings": 4096, "rope_type": "yarn", "truncate": false},
"rope_theta": 150000, "router_aux_loss_coef": 0.9, "sliding_window": 128, "swiglu_limit": 7.0,
"tie_word_embeddings": false, "transformers_version": "4.55.0.dev0", "use_cache": true,
"vocab_size": 201088})json";

constexpr std::string_view kDeepseekV41Flash = R"json({"architectures": ["DeepseekV41ForCausalLM"], "model_type": "deepseek_v41", "dtype": "bfloat16",
"transformers_version": "5.6.0", "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2,
"image_token_id": 129264, "quantization_config": {"quant_method": "fp8",
"activation_scheme": "dynamic", "weight_block_size": [32, 32], "scale_fmt": "ue8m0",
"expert_dtype": "fp4"}, "text_config": {"model_type": "deepseek_v41_text", "vocab_size": 129280,
"hidden_size": 5120, "moe_intermediate_size": 2304, "num_hidden_layers": 40,
"num_attention_heads": 64, "num_key_value_heads": 1, "head_dim": 512, "qk_rope_head_dim": 64,
"q_lora_rank": 1280, "o_lora_rank": 1024, "o_groups": 8, "hidden_act": "silu",
"swiglu_limit": 10.0, "rms_norm_eps": 1e-20, "attention_bias": false, "attention_dropout": 0.0,
"initializer_range": 0.02, "use_cache": true, "tie_word_embeddings": false,
"max_position_embeddings": 1048576, "rope_theta": 10000, "rope_scaling": {"rope_type": "yarn",
"factor": 16, "beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 65536},
"n_routed_experts": 384, "n_shared_experts": 1, "num_experts_per_tok": 6,
"scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc", "norm_topk_prob": true,
"routed_scaling_factor": 1.5, "sliding_window": 128, "compress_ratios": [0, 0, 2, 2, 2, 2, 2, 2,
2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
0, 0, 0], "compress_rope_theta": 160000, "kv_source_layer_ids": [2, 8, 14, 20],
"index_source_layer_ids": [2, 8, 14, 20, 24, 28, 32, 36], "index_n_heads": 32,
"index_head_dim": 128, "index_topk": 512, "candidate_source_layer_id": 20,
"candidate_topk_blocks": 2048, "candidate_block_size": 8, "hc_mult": 4, "hc_sinkhorn_iters": 20,
"hc_eps": 1e-06, "engram_layer_ids": [1, 14], "engram_num_embeddings": [384006168, 384016682],
"engram_max_ngram_size": 4, "engram_vocab_size": 16000000, "engram_n_heads": 8,
"engram_head_dim": 256, "engram_pad_token_id": 2, "engram_compressed_vocab_size": 99092,
"num_nextn_predict_layers": 3, "dspark_block_size": 5, "dspark_noise_token_id": 128799,
"dspark_target_layer_ids": [37, 38, 39], "dspark_markov_rank": 256,
"dspark_n_routed_experts": 128, "dspark_num_experts_per_tok": 3},
"vision_config": {"model_type": "deepseek_v41_vision", "num_hidden_layers": 32,
"hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 2816, "patch_size": 14,
"rope_theta": 10000, "downsample_ratio": 3, "max_image_tokens": 1024, "min_pixels": 295936,
"max_wh_ratio": null}})json";

constexpr std::string_view kKimiK2 = R"json({"architectures": ["KimiK25ForConditionalGeneration"], "bos_token_id": 163584,
"dtype": "bfloat16", "eos_token_id": 163585, "model_type": "kimi_k25", "pad_token_id": 163839,
"tie_word_embeddings": false, "transformers_version": "4.57.1",
"text_config": {"architectures": ["DeepseekV3ForCausalLM"], "attention_bias": false,
"dtype": "bfloat16", "ep_size": 1, "first_k_dense_replace": 1, "hidden_act": "silu",
"hidden_size": 7168, "initializer_range": 0.02, "intermediate_size": 18432, "kv_lora_rank": 512,
"max_position_embeddings": 262144, "model_type": "deepseek_v3", "moe_intermediate_size": 2048,
"moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 384, "n_shared_experts": 1,
"norm_topk_prob": true, "num_attention_heads": 64, "num_experts_per_tok": 8,
"num_hidden_layers": 61, "num_key_value_heads": 64, "num_nextn_predict_layers": 0,
"q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-05,
"rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 64.0, "mscale": 1.0,
"mscale_all_dim": 1.0, "original_max_position_embeddings": 4096, "type": "yarn"},
"rope_theta": 50000.0, "routed_scaling_factor": 2.827, "scoring_func": "sigmoid",
"tie_word_embeddings": false, "topk_group": 1, "topk_method": "noaux_tc", "v_head_dim": 128,
"vocab_size": 163840}, "quantization_config": {"quant_method": "modelopt",
"quant_algo": "NVFP4"}})json";

constexpr std::string_view kGlm5 = R"json({"architectures": ["GlmMoeDsaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
"dtype": "bfloat16", "eos_token_id": [154820, 154827, 154829], "ep_size": 1,
"first_k_dense_replace": 3, "hidden_act": "silu", "head_dim": 64, "hidden_size": 6144,
"index_head_dim": 128, "index_n_heads": 32, "index_topk": 2048, "indexer_rope_interleave": true,
"initializer_range": 0.02, "intermediate_size": 12288, "kv_lora_rank": 512,
"max_position_embeddings": 202752, "moe_intermediate_size": 2048, "moe_layer_freq": 1,
"model_type": "glm_moe_dsa", "n_group": 1, "n_routed_experts": 256, "n_shared_experts": 1,
"norm_topk_prob": true, "num_attention_heads": 64, "num_experts_per_tok": 8,
"num_hidden_layers": 78, "num_key_value_heads": 64, "num_nextn_predict_layers": 1,
"pad_token_id": 154820, "pretraining_tp": 1, "q_lora_rank": 2048, "qk_head_dim": 256,
"qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-05, "rope_interleave": true,
"rope_parameters": {"rope_theta": 1000000, "rope_type": "default"},
"routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "tie_word_embeddings": false,
"topk_group": 1, "topk_method": "noaux_tc", "transformers_version": "5.0.2.dev0",
"use_cache": true, "v_head_dim": 256, "vocab_size": 154880,
"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}})json";

constexpr std::string_view kQwen3Moe = R"json({"architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
"bos_token_id": 151643, "decoder_sparse_step": 1, "eos_token_id": 151645, "head_dim": 128,
"hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
"intermediate_size": 12288, "max_position_embeddings": 40960, "max_window_layers": 94,
"mlp_only_layers": [], "model_type": "qwen3_moe", "moe_intermediate_size": 1536,
"norm_topk_prob": true, "num_attention_heads": 64, "num_experts": 128, "num_experts_per_tok": 8,
"num_hidden_layers": 94, "num_key_value_heads": 4, "output_router_logits": false,
"rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000.0,
"router_aux_loss_coef": 0.001, "sliding_window": null, "tie_word_embeddings": false,
"torch_dtype": "bfloat16", "transformers_version": "4.51.3", "use_cache": true,
"use_sliding_window": false, "vocab_size": 151936,
"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}})json";

// clang-format on

// The smaller model's config; the larger one differs in its depth and its number of experts.
Json gpt_oss(std::uint64_t layers, std::uint64_t experts) {
  Json kinds = Json::array();
  for (std::uint64_t layer = 0; layer < layers; ++layer)
    kinds.push_back(layer % 2 == 0 ? "sliding_attention" : "full_attention");
  Json config = Json::parse(kGptOss, "gpt-oss");
  config.set("num_hidden_layers", layers)
      .set("num_local_experts", experts)
      .set("layer_types", std::move(kinds));
  return config;
}

}  // namespace

std::vector<std::string_view> published_models() {
  return {"deepseek-v4.1-flash", "gpt-oss-20b", "gpt-oss-120b", "kimi-k2", "glm-5", "qwen3-moe"};
}

Json published_config(std::string_view model) {
  if (model == "gpt-oss-20b") return gpt_oss(24, 32);
  if (model == "gpt-oss-120b") return gpt_oss(36, 128);
  if (model == "deepseek-v4.1-flash") return Json::parse(kDeepseekV41Flash, model);
  if (model == "kimi-k2") return Json::parse(kKimiK2, model);
  if (model == "glm-5") return Json::parse(kGlm5, model);
  if (model == "qwen3-moe") return Json::parse(kQwen3Moe, model);
  return {};
}

}  // namespace moxie::synth

// SPDX-License-Identifier: Apache-2.0
// Narrow models with every kind of tensor that a release of DeepSeek-V4 has.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "small_checkpoint.hpp"

namespace moxie::test {

inline Json json_list(const std::vector<std::uint64_t>& numbers) {
  Json list = Json::array();
  for (const std::uint64_t number : numbers) list.push_back(number);
  return list;
}

// Widths are no multiples of a tile, so that the last ones are partial.
inline void narrow(Json& config) {
  config.set("hidden_size", 96)
      .set("moe_intermediate_size", 160)
      .set("vocab_size", 40)
      .set("num_attention_heads", 4)
      .set("head_dim", 48)
      .set("qk_rope_head_dim", 16)
      .set("q_lora_rank", 72)
      .set("o_groups", 2)
      .set("o_lora_rank", 40)
      .set("index_n_heads", 3)
      .set("index_head_dim", 16);
}

// Four layers: of V4-Flash two with the window alone and one of each compressor.
inline SynthOptions whole_options(Json config, BlockFormat format = BlockFormat::mxfp4) {
  SynthOptions options;
  options.config = std::move(config);
  options.num_layers = 4;
  options.experts = 3;
  options.format = format;
  options.whole = true;
  options.seed = 7;
  return options;
}

inline Json narrow_v4(std::string_view name) {
  Json config = synth_config(name);
  narrow(config);
  return config;
}

// The later V4-Flash: three draft blocks of another kind.
inline Json narrow_0731() {
  Json config = narrow_v4("deepseek-v4-flash");
  Json ratios = *config.find("compress_ratios");
  ratios.push_back(0);
  ratios.push_back(0);
  config.set("compress_ratios", std::move(ratios))
      .set("dspark_block_size", 5)
      .set("dspark_target_layer_ids", json_list({40, 41, 42}))
      .set("dspark_markov_rank", 8);
  return config;
}

inline Json narrow_v4_1() {
  Json config = synth_config("deepseek-v4.1-flash");
  Json text = *config.find("text_config");
  narrow(text);
  text.set("engram_head_dim", 8).set("dspark_markov_rank", 8);
  Json vision = *config.find("vision_config");
  vision.set("num_hidden_layers", 2).set("hidden_size", 24).set("intermediate_size", 56);
  config.set("text_config", std::move(text)).set("vision_config", std::move(vision));
  return config;
}

// V4.1 with four layers and three experts of its own, so that `whole_options` ask for all of it.
inline Json small_v4_1() {
  Json config = narrow_v4_1();
  Json text = *config.find("text_config");
  text.set("num_hidden_layers", 4)
      .set("n_routed_experts", 3)
      .set("num_experts_per_tok", 2)
      .set("compress_ratios", json_list({0, 0, 2, 1, 0, 0, 0}))
      .set("kv_source_layer_ids", json_list({2, 3}))
      .set("index_source_layer_ids", json_list({2, 3}))
      .set("candidate_source_layer_id", 3)
      .set("engram_layer_ids", json_list({1, 3}))
      .set("engram_num_embeddings", json_list({70'001, 90}))
      .set("dspark_n_routed_experts", 2)
      .set("dspark_num_experts_per_tok", 1)
      .set("dspark_target_layer_ids", json_list({1, 2, 3}));
  config.set("text_config", std::move(text));
  return config;
}

struct NamedConfig {
  std::string name;
  Json config;
};
inline std::vector<NamedConfig> whole_models() {
  return {{"tiny", synth_config("tiny")},
          {"flash", narrow_v4("deepseek-v4-flash")},
          {"pro", narrow_v4("deepseek-v4-pro")},
          {"flash-0731", narrow_0731()},
          {"v4.1", narrow_v4_1()},
          {"v4.1-small", small_v4_1()}};
}

}  // namespace moxie::test

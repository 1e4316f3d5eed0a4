// SPDX-License-Identifier: Apache-2.0
// GGUF metadata to ModelConfig, by architecture; what would change the result and is not
// understood is refused.
#include "model/gguf_config.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/refusal.hpp"

namespace moxie {
namespace {

Json metadata(const std::string& architecture, const std::string& more = "") {
  std::string text = R"({"general.architecture": "A", "A.block_count": 4, "A.embedding_length": 64,
    "A.feed_forward_length": 512, "A.expert_feed_forward_length": 96, "A.expert_count": 8,
    "A.expert_used_count": 2)";
  if (!more.empty()) text += ", " + more;
  text += "}";
  for (std::size_t at = 0; (at = text.find("\"A", at)) != text.npos; at += architecture.size())
    text.replace(at + 1, 1, architecture);
  return Json::parse(text, "test");
}
ModelConfig config_of(const std::string& architecture, const std::string& more = "") {
  return read_config(metadata(architecture, more), {});
}
Error refusal(const std::string& architecture, const std::string& more) {
  return test::refusal_of([&] { (void)config_of(architecture, more); });
}

TEST(GgufConfig, ReadsSizesUnderTheArchitecturesKeys) {
  const ModelConfig config = config_of(
      "qwen3moe", R"("A.leading_dense_block_count": 1, "A.vocab_size": 99, "B.expert_count": 3)");
  EXPECT_EQ(config.model_type, "qwen3moe");
  EXPECT_EQ(config.hidden, 64U);
  EXPECT_EQ(config.inter, 96U);
  EXPECT_EQ(config.experts, 8U);
  EXPECT_EQ(config.top_k, 2U);
  EXPECT_EQ(config.num_layers, 4U);
  EXPECT_EQ(config.moe_layers, (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(config.vocab, 99U);
  EXPECT_EQ(config.activation, Activation::silu);
  EXPECT_EQ(config.router, RouterKind::softmax_topk);
  EXPECT_TRUE(config.norm_topk);
  EXPECT_FALSE(config.biases);
  EXPECT_EQ(config.routed_scaling, 1.0);
  EXPECT_FALSE(config.format.has_value()) << "the tensors say it, not general.file_type";
}

TEST(GgufConfig, GptOssHasItsActivationBiasesAndRouter) {
  for (const char* gating : {"", R"("A.expert_gating_func": 0)", R"("A.expert_gating_func": 3)"}) {
    const ModelConfig config = config_of("gpt-oss", gating);
    EXPECT_EQ(config.activation, Activation::oai_swiglu);
    EXPECT_EQ(config.activation_limit, 7.0);
    EXPECT_EQ(config.router, RouterKind::topk_softmax);
    EXPECT_TRUE(config.biases);
  }
}

TEST(GgufConfig, TheGatingFunctionOfTheFileDecidesWhereAnArchitectureHasSeveral) {
  EXPECT_EQ(config_of("deepseek2").router, RouterKind::softmax_topk) << "files before the key";
  const ModelConfig kimi =
      config_of("deepseek2", R"("A.expert_gating_func": 2, "A.expert_weights_norm": true,
                      "A.expert_weights_scale": 2.827, "A.expert_group_count": 4,
                      "A.expert_group_used_count": 2)");
  EXPECT_EQ(kimi.router, RouterKind::sigmoid);
  EXPECT_TRUE(kimi.norm_topk);
  EXPECT_EQ(kimi.routed_scaling, 2.827);
  EXPECT_EQ(kimi.expert_groups, 4U);
  EXPECT_EQ(kimi.kept_groups, 2U);
  EXPECT_EQ(config_of("glm4moe").router, RouterKind::sigmoid);
  EXPECT_EQ(config_of("minimax-m2", R"("A.expert_weights_scale": 0.0)").routed_scaling, 1.0);
}

TEST(GgufConfig, PredictionBlocksAreNoLayers) {
  const ModelConfig config = config_of("glm4moe", R"("A.nextn_predict_layers": 1)");
  EXPECT_EQ(config.num_layers, 3U);
  EXPECT_EQ(config.moe_layers, (std::vector<int>{0, 1, 2}));
}

TEST(GgufConfig, DeepseekV4HasOneLimitForAllLayersAndHashLayers) {
  for (const char* limit : {"10.0", "[10.0, 10.0, 10.0, 10.0]"}) {
    const ModelConfig config =
        config_of("deepseek4", R"("A.expert_gating_func": 4, "A.hash_layer_count": 3,
                                  "A.swiglu_clamp_exp": )" +
                                   std::string(limit));
    EXPECT_EQ(config.activation, Activation::clamped_swiglu);
    EXPECT_EQ(config.activation_limit, 10.0);
    EXPECT_EQ(config.router, RouterKind::sqrt_softplus);
    EXPECT_EQ(config.hash_layers, 3U);
  }
}

TEST(GgufConfig, WithoutAWidthOfItsOwnAnExpertHasTheModels) {
  Json json = metadata("gpt-oss");
  json.erase("gpt-oss.expert_feed_forward_length");
  EXPECT_EQ(read_config(json, {}).inter, 512U);
}

TEST(GgufConfig, AnUnknownArchitectureIsRefusedWithThoseThatAreKnown) {
  for (const char* name : {"grok", "llama", ""}) {
    const Error error = refusal(name, "");
    EXPECT_EQ(test::code_of(error), "MOXIE-M001");
    const Finding& finding = error.findings()[0];
    for (const char* known : {"gpt-oss", "qwen3moe", "deepseek2", "glm4moe", "minimax-m2"})
      EXPECT_NE(finding.expected.find(known), std::string::npos) << known;
    EXPECT_EQ(finding.got, *name == '\0' ? "none" : name);
  }
}

TEST(GgufConfig, WhatIsNotUnderstoodIsRefusedByItsKey) {
  const struct {
    const char* architecture;
    const char* more;
    const char* key;
  } cases[] = {
      {"qwen3moe", R"("A.expert_gating_func": 3)", "expert_gating_func"},
      {"qwen3moe", R"("A.expert_gating_func": 4)", "expert_gating_func"},
      {"qwen3moe", R"("A.expert_gating_func": 5)", "expert_gating_func"},
      {"qwen3moe", R"("A.expert_gating_func": "softmax")", "expert_gating_func"},
      {"gpt-oss", R"("A.expert_gating_func": 1)", "expert_gating_func"},
      {"deepseek4", R"("A.expert_gating_func": 2)", "expert_gating_func"},
      {"dots1", "", "expert_gating_func"},
      {"qwen3moe", R"("A.swiglu_clamp_exp": 7.0)", "swiglu_clamp_exp"},
      {"gpt-oss", R"("A.swiglu_clamp_exp": 5.0)", "swiglu_clamp_exp"},
      {"deepseek4", R"("A.swiglu_clamp_exp": [10.0, 10.0, 7.0, 10.0])", "swiglu_clamp_exp"},
      {"deepseek4", R"("A.swiglu_clamp_exp": "NaN")", "swiglu_clamp_exp"},
      {"deepseek4", R"("A.swiglu_clamp_exp": [])", "swiglu_clamp_exp"},
      {"qwen3moe", R"("A.expert_weights_norm": 1)", "expert_weights_norm"},
      {"qwen3moe", R"("A.expert_weights_scale": -1.0)", "expert_weights_scale"},
      {"qwen3moe", R"("A.expert_weights_scale": "NaN")", "expert_weights_scale"},
      {"qwen3moe", R"("A.leading_dense_block_count": 4)", "leading_dense_block_count"},
      {"qwen3moe", R"("A.nextn_predict_layers": 4)", "nextn_predict_layers"},
      {"qwen3moe", R"("A.interleave_moe_layer_step": 2)", "interleave_moe_layer_step"},
      {"glm4moe", R"("A.expert_group_count": 3, "A.expert_group_used_count": 1)", "groups"},
      {"glm4moe", R"("A.expert_group_count": 8, "A.expert_group_used_count": 4)", "groups"},
      {"glm4moe", R"("A.expert_group_count": 4, "A.expert_group_used_count": 5)", "groups"},
      {"deepseek2", R"("A.expert_group_count": 4, "A.expert_group_used_count": 2)", "groups"},
  };
  for (const auto& it : cases) {
    const Error error = refusal(it.architecture, it.more);
    EXPECT_EQ(test::code_of(error), "MOXIE-M001") << it.more;
    EXPECT_NE(std::string(error.what()).find(it.key), std::string::npos) << error.what();
  }
}

TEST(GgufConfig, AnAbsentOrImpossibleSizeIsRefusedByItsKey) {
  for (const char* leaf :
       {"block_count", "embedding_length", "expert_count", "expert_used_count"}) {
    const std::string key = "qwen3moe." + std::string(leaf);
    for (const auto& value : {Json(), Json(0), Json(-1), Json("4"), Json(1e300)}) {
      Json json = metadata("qwen3moe");
      json.set(key, value);
      if (value.is_null()) json.erase(key);
      const Error error = test::refusal_of([&] { (void)read_config(json, {}); });
      EXPECT_EQ(test::code_of(error), "MOXIE-M001");
      EXPECT_NE(std::string(error.what()).find(key), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// Every family's config keys become the same fields, and what is absent or wrong is named.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "model/config_keys.hpp"
#include "moxie/model.hpp"
#include "support/refusal.hpp"

namespace moxie {
namespace {

using test::code_of;
using test::refusal_of;

ModelConfig read(std::string_view text) { return read_config(Json::parse(text, "test"), {}); }

Error refused(std::string_view text) {
  return refusal_of([&] { read(text); });
}

std::vector<int> layers_from(int first, int end) {
  std::vector<int> layers(static_cast<std::size_t>(end - first));
  std::iota(layers.begin(), layers.end(), first);
  return layers;
}

// hidden, inter, experts, top_k, num_layers.
void expect_sizes(const ModelConfig& config, std::vector<std::uint64_t> sizes) {
  EXPECT_EQ(
      (std::vector{config.hidden, config.inter, config.experts, config.top_k, config.num_layers}),
      sizes);
}

TEST(Config, DeepseekV4NamesItsFields) {
  const ModelConfig config = read(R"({"model_type": "deepseek_v4", "hidden_size": 10,
    "moe_intermediate_size": 11, "n_routed_experts": 12, "num_experts_per_tok": 3,
    "num_hidden_layers": 4, "num_hash_layers": 2, "swiglu_limit": 10.5, "vocab_size": 99,
    "routed_scaling_factor": 1.5, "intermediate_size": 77, "num_experts": 78})");
  expect_sizes(config, {10, 11, 12, 3, 4});
  EXPECT_EQ(config.model_type, "deepseek_v4");
  EXPECT_EQ(config.moe_layers, layers_from(0, 4));
  EXPECT_EQ(config.hash_layers, 2U);
  EXPECT_EQ(config.vocab, 99U);
  EXPECT_EQ(config.activation, Activation::clamped_swiglu);
  EXPECT_EQ(config.activation_limit, 10.5);
  EXPECT_EQ(config.router, RouterKind::sqrt_softplus);
  EXPECT_EQ(config.routed_scaling, 1.5);
  EXPECT_TRUE(config.gated);
  EXPECT_EQ(projections_of(config),
            (std::vector{ProjectionKind::gate, ProjectionKind::up, ProjectionKind::down}));
}

TEST(Config, KeysUnderTextConfigWinOverTheTopLevel) {
  const ModelConfig config = read(R"({"model_type": "deepseek_v41", "hidden_size": 1,
    "vocab_size": 5, "text_config": {"model_type": "deepseek_v41_text", "hidden_size": 20,
    "moe_intermediate_size": 21, "n_routed_experts": 22, "num_experts_per_tok": 6,
    "num_hidden_layers": 2, "vocab_size": null}})");
  expect_sizes(config, {20, 21, 22, 6, 2});
  EXPECT_EQ(config.model_type, "deepseek_v41_text");
  EXPECT_EQ(config.vocab, 5U);  // a null is no value
  EXPECT_EQ(config.hash_layers, 0U);
  EXPECT_FALSE(config.activation_limit.has_value());
}

TEST(Config, ThePublishersInferenceConfigNeedsNoModelType) {
  const ModelConfig config = read(R"({"dim": 30, "moe_inter_dim": 31, "n_routed_experts": 32,
    "n_activated_experts": 6, "n_layers": 5, "n_hash_layers": 3, "route_scale": 2.5,
    "swiglu_limit": 10, "expert_dtype": "fp4"})");
  expect_sizes(config, {30, 31, 32, 6, 5});
  EXPECT_EQ(config.hash_layers, 3U);
  EXPECT_EQ(config.routed_scaling, 2.5);
  EXPECT_EQ(config.format, BlockFormat::mxfp4);
}

TEST(Config, TheFirstLayersOfDeepseekV3AreDense) {
  const ModelConfig config = read(R"({"model_type": "deepseek_v3", "hidden_size": 40,
    "moe_intermediate_size": 41, "n_routed_experts": 42, "num_experts_per_tok": 8,
    "num_hidden_layers": 7, "first_k_dense_replace": 3, "moe_layer_freq": 1,
    "routed_scaling_factor": 2.827})");
  expect_sizes(config, {40, 41, 42, 8, 7});
  EXPECT_EQ(config.moe_layers, layers_from(3, 7));
  EXPECT_EQ(config.activation, Activation::silu);
  EXPECT_EQ(config.router, RouterKind::sigmoid);
  EXPECT_EQ(config.routed_scaling, 2.827);
}

TEST(Config, ALayerFrequencyCountsFromLayerZero) {
  const ModelConfig config = read(R"({"model_type": "deepseek_v3", "hidden_size": 1,
    "moe_intermediate_size": 1, "n_routed_experts": 8, "num_experts_per_tok": 1,
    "num_hidden_layers": 9, "first_k_dense_replace": 3, "moe_layer_freq": 2})");
  EXPECT_EQ(config.moe_layers, (std::vector{4, 6, 8}));
}

TEST(Config, AListOfLayerKindsWinsOverTheFirstDenseLayers) {
  const ModelConfig config = read(R"({"model_type": "glm_moe_dsa", "hidden_size": 50,
    "moe_intermediate_size": 51, "n_routed_experts": 52, "num_experts_per_tok": 8,
    "num_hidden_layers": 4, "first_k_dense_replace": 1, "num_experts": 53,
    "mlp_layer_types": ["dense", "sparse", "dense", "sparse"]})");
  expect_sizes(config, {50, 51, 52, 8, 4});
  EXPECT_EQ(config.moe_layers, (std::vector{1, 3}));
}

TEST(Config, AFrequencyMayBeAListOfZerosAndOnes) {
  const ModelConfig config = read(R"({"model_type": "minimax_m3", "hidden_size": 60,
    "moe_intermediate_size": 61, "intermediate_size": 62, "num_local_experts": 63,
    "num_experts_per_tok": 4, "num_hidden_layers": 5, "moe_layer_freq": [0, 0, 1, 0, 1],
    "first_k_dense_replace": 3, "swiglu_limit": 7.0, "routed_scaling_factor": 2.0})");
  expect_sizes(config, {60, 61, 63, 4, 5});
  EXPECT_EQ(config.moe_layers, (std::vector{2, 4}));
  EXPECT_EQ(config.activation, Activation::oai_swiglu);
  EXPECT_EQ(config.activation_limit, 7.0);
}

TEST(Config, MinimaxM2CallsTheExpertWidthIntermediateSize) {
  const ModelConfig config = read(R"({"model_type": "minimax_m2", "hidden_size": 64,
    "intermediate_size": 65, "num_local_experts": 66, "num_experts_per_tok": 8,
    "num_hidden_layers": 2})");
  expect_sizes(config, {64, 65, 66, 8, 2});
  EXPECT_EQ(config.activation, Activation::silu);
  EXPECT_EQ(config.router, RouterKind::sigmoid);
  EXPECT_EQ(config.routed_scaling, 1.0);
}

TEST(Config, NemotronsPatternMarksExpertsAndHasNoGate) {  // pit49
  const ModelConfig config = read(R"({"model_type": "nemotron_h", "hidden_size": 70,
    "moe_intermediate_size": 71, "intermediate_size": 1, "n_routed_experts": 72,
    "num_experts_per_tok": 6, "num_hidden_layers": 6, "hybrid_override_pattern": "MEM*EE",
    "moe_latent_size": null, "routed_scaling_factor": 2.5})");
  expect_sizes(config, {70, 71, 72, 6, 6});
  EXPECT_EQ(config.moe_layers, (std::vector{1, 4, 5}));
  EXPECT_EQ(config.activation, Activation::relu2);
  EXPECT_FALSE(config.gated);
  EXPECT_EQ(projections_of(config), (std::vector{ProjectionKind::up, ProjectionKind::down}));
}

TEST(Config, ALatentWidthIsWhatTheExpertsSee) {
  const ModelConfig nemotron = read(R"({"model_type": "nemotron_h", "hidden_size": 80,
    "moe_latent_size": 16, "moe_intermediate_size": 81, "n_routed_experts": 82,
    "num_experts_per_tok": 22, "layers_block_type": ["mamba", "moe", "attention", "moe"]})");
  expect_sizes(nemotron, {16, 81, 82, 22, 4});  // the list of kinds also says how many layers
  EXPECT_EQ(nemotron.moe_layers, (std::vector{1, 3}));
  const ModelConfig kimi = read(R"({"model_type": "kimi_k3", "text_config":
    {"model_type": "kimi_linear", "hidden_size": 80, "routed_expert_hidden_size": 48,
    "moe_intermediate_size": 83, "num_experts": 84, "num_experts_per_token": 16,
    "num_hidden_layers": 3, "first_k_dense_replace": 1}})");
  expect_sizes(kimi, {48, 83, 84, 16, 3});
  EXPECT_EQ(kimi.moe_layers, (std::vector{1, 2}));
  EXPECT_EQ(kimi.activation, Activation::situ);
}

TEST(Config, GptOssTakesEitherNameOfTopK) {
  for (const char* key : {"num_experts_per_tok", "experts_per_token"}) {
    const ModelConfig config =
        read(R"({"model_type": "gpt_oss", "hidden_size": 90, "intermediate_size": 91,
      "num_local_experts": 32, "num_hidden_layers": 2, "swiglu_limit": 7, ")" +
             std::string(key) + R"(": 4})");
    expect_sizes(config, {90, 91, 32, 4, 2});
    EXPECT_EQ(config.activation, Activation::oai_swiglu);
    EXPECT_EQ(config.router, RouterKind::topk_softmax);
  }
}

TEST(Config, QwenLeavesOutDenseLayers) {
  const ModelConfig config = read(R"({"model_type": "qwen3_moe", "hidden_size": 92,
    "moe_intermediate_size": 93, "intermediate_size": 1, "num_experts": 94,
    "num_experts_per_tok": 8, "num_hidden_layers": 6, "decoder_sparse_step": 2,
    "mlp_only_layers": [3]})");
  expect_sizes(config, {92, 93, 94, 8, 6});
  EXPECT_EQ(config.moe_layers, (std::vector{1, 5}));
  EXPECT_EQ(config.router, RouterKind::softmax_topk);
}

TEST(Config, GemmaNamesTopKItsOwnWay) {
  const ModelConfig config = read(R"({"model_type": "gemma4", "text_config":
    {"model_type": "gemma4_text", "hidden_size": 95, "moe_intermediate_size": 96,
    "intermediate_size": 1, "num_experts": 97, "top_k_experts": 8, "num_hidden_layers": 2}})");
  expect_sizes(config, {95, 96, 97, 8, 2});
  EXPECT_EQ(config.activation, Activation::gelu_tanh);
  EXPECT_EQ(config.router, RouterKind::scaled_softmax);
}

// A list longer than the model would give numbers that belong to prediction blocks.
TEST(Config, LayerListsEndWithTheLastLayer) {
  for (const char* list :
       {R"("mlp_layer_types": ["sparse", "dense", "sparse", "sparse"])",
        R"("layers_block_type": ["moe", "moe", "moe", "moe", "moe"])",
        R"("moe_layer_freq": [1, 0, 1])", R"("hybrid_override_pattern": "EMEEE")"}) {
    const ModelConfig config =
        read(R"({"model_type": "nemotron_h", "hidden_size": 1, "moe_intermediate_size": 1,
      "n_routed_experts": 8, "num_experts_per_tok": 1, "num_hidden_layers": 2, )" +
             std::string(list) + "}");
    ASSERT_FALSE(config.moe_layers.empty()) << list;
    EXPECT_EQ(config.num_layers, 2U) << list;
    EXPECT_LT(config.moe_layers.back(), 2) << list;
  }
}

TEST(Config, EveryFamilyRefusesTheAbsenceOfEachSizeByName) {
  for (const FamilyKeys& family : families()) {
    Json whole;
    whole.set("model_type", family.model_types[0]);
    const Keys* required[] = {&family.hidden, &family.inter, &family.experts, &family.top_k,
                              &family.layers};
    for (const Keys* keys : required) whole.set((*keys)[0], 4);
    ASSERT_NO_THROW(read_config(whole, {})) << family.model_types[0];
    for (const Keys* keys : required) {
      Json without = whole;
      without.erase((*keys)[0]);
      const Error error = refusal_of([&] { read_config(without, {}); });
      EXPECT_EQ(error.code(), ErrorCode::input);
      EXPECT_EQ(code_of(error), "MOXIE-M001");
      const std::string text = error.what();
      EXPECT_TRUE(text.find((*keys)[0]) != std::string::npos ||
                  (!(*keys)[1].empty() && text.find((*keys)[1]) != std::string::npos) ||
                  text.find("unknown model family") != std::string::npos)
          << family.model_types[0] << ": " << text;
    }
  }
}

TEST(Config, AnOptionalValueOfAnotherKindIsRefusedByKeyAndValue) {
  const std::string sizes = R"({"model_type": "deepseek_v4", "hidden_size": 32,
      "moe_intermediate_size": 32, "n_routed_experts": 1, "num_experts_per_tok": 1,
      "num_hidden_layers": 4, )";
  for (const char* wrong :
       {R"("swiglu_limit": "x")", R"("swiglu_limit": -3)", R"("swiglu_limit": 0)",
        R"("swiglu_limit": "NaN")", R"("routed_scaling_factor": "abc")",
        R"("routed_scaling_factor": 0)", R"("num_hash_layers": "q")", R"("vocab_size": -4)",
        R"("first_k_dense_replace": -1)", R"("hybrid_override_pattern": 5)",
        R"("mlp_only_layers": 1)", R"("moe_layer_freq": 0.5)"}) {
    const Error error = refused(sizes + wrong + "}");
    EXPECT_EQ(code_of(error), "MOXIE-M001") << wrong;
    const std::string key = std::string(wrong).substr(1, std::string(wrong).find('"', 1) - 1);
    EXPECT_NE(std::string(error.what()).find(key), std::string::npos) << error.what();
  }
  for (const char* none : {R"("first_k_dense_replace": 4)", R"("mlp_only_layers": [0, 1, 2, 3])",
                           R"("hybrid_override_pattern": "MMMM")"}) {
    EXPECT_NE(std::string(refused(sizes + none + "}").what()).find("no layer with experts"),
              std::string::npos);
  }
}

TEST(Config, ASizeThatIsNoPositiveWholeNumberIsRefusedByKeyAndValue) {
  for (const char* value : {"0", "-1", "2.5", "\"64\"", "[64]", "{}", "true", "1e30", "262145"}) {
    const Error error = refused(R"({"model_type": "deepseek_v4", "hidden_size": )" +
                                std::string(value) + R"(, "moe_intermediate_size": 1,
      "n_routed_experts": 1, "num_experts_per_tok": 1, "num_hidden_layers": 1})");
    EXPECT_EQ(code_of(error), "MOXIE-M001") << value;
    EXPECT_NE(std::string(error.what()).find("hidden_size"), std::string::npos) << error.what();
    EXPECT_FALSE(error.findings().front().got.empty()) << value;
  }
}

TEST(Config, MoreChosenExpertsThanExistAreRefused) {
  const Error error = refused(R"({"model_type": "deepseek_v4", "hidden_size": 1,
    "moe_intermediate_size": 1, "n_routed_experts": 4, "num_experts_per_tok": 5,
    "num_hidden_layers": 1})");
  EXPECT_NE(std::string(error.what()).find("num_experts_per_tok"), std::string::npos);
}

TEST(Config, AnUnknownFamilyIsRefusedWithTheKnownOnes) {
  const Error error = refused(R"({"model_type": "no_such_model"})");
  EXPECT_EQ(code_of(error), "MOXIE-M001");
  EXPECT_EQ(error.findings().front().got, "no_such_model");
  EXPECT_NE(error.findings().front().expected.find("deepseek_v4"), std::string::npos);
  EXPECT_EQ(code_of(refused("{}")), "MOXIE-M001");
  EXPECT_EQ(code_of(refused(R"({"model_type": ""})")), "MOXIE-M001");
  EXPECT_EQ(code_of(refused("[]")), "MOXIE-M001");
  EXPECT_EQ(code_of(refused("null")), "MOXIE-M001");
}

TEST(Config, EveryEnumeratorHasItsOwnName) {
  std::vector<std::string_view> names;
  for (unsigned i = 0; i < 6; ++i) names.push_back(name_of(static_cast<Activation>(i)));
  for (unsigned i = 0; i < 5; ++i) names.push_back(name_of(static_cast<RouterKind>(i)));
  for (unsigned i = 0; i < 3; ++i) names.push_back(name_of(static_cast<ProjectionKind>(i)));
  std::ranges::sort(names);
  EXPECT_EQ(std::ranges::adjacent_find(names), names.end());
  EXPECT_EQ(std::ranges::find(names, "?"), names.end());
}

}  // namespace
}  // namespace moxie

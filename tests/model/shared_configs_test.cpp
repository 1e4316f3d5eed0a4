// SPDX-License-Identifier: Apache-2.0
// Every published config, read as it lies in shared/data/configs, gives the shapes of its model.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>

#include "moxie/model.hpp"

namespace moxie {
namespace {

namespace fs = std::filesystem;

fs::path configs() {
  const char* shared = std::getenv("MOXIE_SHARED_DIR");  // NOLINT(concurrency-mt-unsafe)
  return fs::path(shared != nullptr ? shared : MOXIE_SHARED_DIR) / "data" / "configs";
}

struct Published {
  const char* file;
  std::uint64_t hidden, inter, experts, top_k, layers, moe_layers;
  std::optional<BlockFormat> format;
  bool gated = true;
};

constexpr auto kMxfp4 = BlockFormat::mxfp4;
constexpr auto kNvfp4 = BlockFormat::nvfp4;

// `format` is what config and sidecar declare; nullopt where these two alone do not say it.
const Published kPublished[] = {
    {"DeepSeek-V4-Flash", 4096, 2048, 256, 6, 43, 43, kMxfp4},
    {"DeepSeek-V4-Flash-NVFP4", 4096, 2048, 256, 6, 43, 43, kNvfp4},
    {"DeepSeek-V4-Pro", 7168, 3072, 384, 6, 61, 61, kMxfp4},
    {"DeepSeek-V4-Pro.inference_config", 7168, 3072, 384, 6, 61, 61, kMxfp4},
    {"DeepSeek-V4-Pro-NVFP4", 7168, 3072, 384, 6, 61, 61, kNvfp4},
    {"DeepSeek-V4.1-Flash", 5120, 2304, 384, 6, 40, 40, kMxfp4},
    {"DeepSeek-V3.1-NVFP4", 7168, 2048, 256, 8, 61, 58, kNvfp4},
    {"DeepSeek-V3.2-NVFP4", 7168, 2048, 256, 8, 61, 58, kNvfp4},
    {"Kimi-K2-Instruct", 7168, 2048, 384, 8, 61, 60, std::nullopt},
    {"Kimi-K2.5-NVFP4", 7168, 2048, 384, 8, 61, 60, kNvfp4},
    {"Kimi-K2.6-NVFP4", 7168, 2048, 384, 8, 61, 60, kNvfp4},
    {"Kimi-K2.7-Code-NVFP4", 7168, 2048, 384, 8, 61, 60, kNvfp4},
    {"Kimi-K3", 3584, 3072, 896, 16, 93, 92, kMxfp4},
    {"GLM-5-NVFP4", 6144, 2048, 256, 8, 78, 75, kNvfp4},
    {"GLM-5.1-NVFP4", 6144, 2048, 256, 8, 78, 75, kNvfp4},
    {"GLM-5.2-NVFP4", 6144, 2048, 256, 8, 78, 75, kNvfp4},
    {"gpt-oss-20b", 2880, 2880, 32, 4, 24, 24, kMxfp4},
    {"gpt-oss-120b", 2880, 2880, 128, 4, 36, 36, kMxfp4},
    {"Qwen3-30B-A3B", 2048, 768, 128, 8, 48, 48, std::nullopt},
    {"Qwen3-235B-A22B-NVFP4", 4096, 1536, 128, 8, 94, 94, kNvfp4},
    {"Qwen3.5-35B-A3B", 2048, 512, 256, 8, 40, 40, std::nullopt},
    {"Qwen3.6-35B-A3B-NVFP4", 2048, 512, 256, 8, 40, 40, kNvfp4},
    {"Qwen3.5-122B-A10B-NVFP4", 3072, 1024, 256, 8, 48, 48, kNvfp4},
    {"Qwen3.5-397B-A17B-NVFP4", 4096, 1024, 512, 10, 60, 60, kNvfp4},
    {"MiniMax-M2.5", 3072, 1536, 256, 8, 62, 62, std::nullopt},
    {"MiniMax-M2.5-NVFP4", 3072, 1536, 256, 8, 62, 62, kNvfp4},
    {"MiniMax-M2.7-NVFP4", 3072, 1536, 256, 8, 62, 62, kNvfp4},
    {"MiniMax-M3", 6144, 3072, 128, 4, 60, 57, std::nullopt},
    {"Nemotron-3-Nano-30B-A3B-NVFP4", 2688, 1856, 128, 6, 52, 23, kNvfp4, false},
    {"Nemotron-3.5-Lightning-30B-A3B-NVFP4", 2688, 1856, 128, 6, 52, 23, std::nullopt, false},
    {"Nemotron-3-Super-120B-A12B-NVFP4", 1024, 2688, 512, 22, 88, 40, std::nullopt, false},
    {"Nemotron-3-Ultra-550B-A55B-NVFP4", 2048, 5120, 512, 22, 108, 48, std::nullopt, false},
    {"Gemma-4-26B-A4B-NVFP4", 2816, 704, 128, 8, 30, 30, kNvfp4},
};

class PublishedConfigs : public testing::TestWithParam<Published> {};

TEST_P(PublishedConfigs, GivesTheShapesOfTheTable) {
  const Published& expected = GetParam();
  const fs::path path = configs() / (std::string(expected.file) + ".json");
  if (!fs::exists(path)) GTEST_SKIP() << path << " is not here";
  const MoeModel model = read_model(open_checkpoint(path));
  EXPECT_EQ(model.config.hidden, expected.hidden);
  EXPECT_EQ(model.config.inter, expected.inter);
  EXPECT_EQ(model.config.experts, expected.experts);
  EXPECT_EQ(model.config.top_k, expected.top_k);
  EXPECT_EQ(model.config.num_layers, expected.layers);
  EXPECT_EQ(model.config.moe_layers.size(), expected.moe_layers);
  EXPECT_EQ(model.config.gated, expected.gated);
  EXPECT_EQ(model.config.format, expected.format);
  EXPECT_EQ(model.format, expected.format);
  EXPECT_TRUE(model.layers.empty());
  EXPECT_TRUE(model.dialect.empty());
  EXPECT_TRUE(model.findings.empty());
  EXPECT_GT(model.config.vocab, 0U);
}

INSTANTIATE_TEST_SUITE_P(Files, PublishedConfigs, testing::ValuesIn(kPublished),
                         [](const auto& test) {
                           std::string name = test.param.file;
                           std::ranges::replace_if(
                               name, [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
                           return name;
                         });

TEST(PublishedConfigsFolder, HoldsNoConfigThatTheTableLacks) {
  if (!fs::exists(configs())) GTEST_SKIP() << configs() << " is not here";
  std::size_t found = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(configs())) {
    const std::string stem = entry.path().stem().string();
    if (entry.path().extension() != ".json" || stem.ends_with(".hf_quant_config")) continue;
    ++found;
    EXPECT_TRUE(std::ranges::any_of(kPublished, [&](const auto& row) { return row.file == stem; }))
        << stem;
  }
  EXPECT_EQ(found, std::size(kPublished));
}

TEST(PublishedConfigsRouting, ScalingAndLimitsAreThoseOfTheTable) {
  struct Row {
    const char* file;
    double scaling;
    Activation activation;
    RouterKind router;
    std::optional<double> limit;
    std::uint64_t hash_layers;
  };
  for (const Row& row : {
           Row{"DeepSeek-V4-Flash", 1.5, Activation::clamped_swiglu, RouterKind::sqrt_softplus,
               10.0, 3},
           Row{"DeepSeek-V4-Pro", 2.5, Activation::clamped_swiglu, RouterKind::sqrt_softplus, 10.0,
               3},
           Row{"DeepSeek-V4.1-Flash", 1.5, Activation::clamped_swiglu, RouterKind::sqrt_softplus,
               10.0, 0},
           Row{"DeepSeek-V3.1-NVFP4", 2.5, Activation::silu, RouterKind::sigmoid, {}, 0},
           Row{"Kimi-K2.5-NVFP4", 2.827, Activation::silu, RouterKind::sigmoid, {}, 0},
           Row{"Kimi-K3", 1.0, Activation::situ, RouterKind::sigmoid, {}, 0},
           Row{"gpt-oss-20b", 1.0, Activation::oai_swiglu, RouterKind::topk_softmax, 7.0, 0},
           Row{"Qwen3-30B-A3B", 1.0, Activation::silu, RouterKind::softmax_topk, {}, 0},
           Row{"MiniMax-M3", 2.0, Activation::oai_swiglu, RouterKind::sigmoid, 7.0, 0},
           Row{"Nemotron-3-Ultra-550B-A55B-NVFP4",
               5.0,
               Activation::relu2,
               RouterKind::sigmoid,
               {},
               0},
           Row{"Gemma-4-26B-A4B-NVFP4",
               1.0,
               Activation::gelu_tanh,
               RouterKind::scaled_softmax,
               {},
               0},
       }) {
    const fs::path path = configs() / (std::string(row.file) + ".json");
    if (!fs::exists(path)) GTEST_SKIP() << path << " is not here";
    const ModelConfig config = read_model(open_checkpoint(path)).config;
    EXPECT_EQ(config.routed_scaling, row.scaling) << row.file;
    EXPECT_EQ(config.activation, row.activation) << row.file;
    EXPECT_EQ(config.router, row.router) << row.file;
    EXPECT_EQ(config.activation_limit, row.limit) << row.file;
    EXPECT_EQ(config.hash_layers, row.hash_layers) << row.file;
  }
}

TEST(PublishedConfigsRouting, OnlyDeepseekV3SelectsByGroupsAndAllNormaliseTheirWeights) {
  for (const Published& published : kPublished) {
    const fs::path path = configs() / (std::string(published.file) + ".json");
    if (!fs::exists(path)) GTEST_SKIP() << path << " is not here";
    const ModelConfig config = read_model(open_checkpoint(path)).config;
    const bool grouped = std::string(published.file).starts_with("DeepSeek-V3");
    EXPECT_EQ(config.expert_groups, grouped ? 8U : 1U) << published.file;
    EXPECT_EQ(config.kept_groups, grouped ? 4U : 1U) << published.file;
    EXPECT_TRUE(config.norm_topk) << published.file;
  }
}

}  // namespace
}  // namespace moxie

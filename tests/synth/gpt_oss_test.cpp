// SPDX-License-Identifier: Apache-2.0
// gpt-oss as synth writes it, and the prefixes and lists of other families.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <string>

#include "formats/bf16.hpp"
#include "small_checkpoint.hpp"

namespace moxie {
namespace {

using test::bytes_of;
using test::synthesised;
using test::TempFolder;

SynthOptions options_of(std::string_view model, Pattern pattern = Pattern::normal) {
  SynthOptions options;
  options.config = synth_config(model);
  options.experts = 3;
  options.hidden = 64;
  options.inter = 96;
  options.pattern = pattern;
  options.seed = 7;
  return options;
}

constexpr const char* kExperts = "model.layers.0.mlp.experts.";

TEST(SynthGptOss, HasThePublishedTensors) {
  const TempFolder folder;
  const Checkpoint checkpoint = synthesised(folder, options_of("gpt-oss-20b"));
  const auto expect = [&](const std::string& name, DType dtype, const Shape& shape) {
    const TensorInfo* tensor = checkpoint.find(name);
    ASSERT_NE(tensor, nullptr) << name;
    EXPECT_EQ(tensor->dtype, dtype) << name;
    EXPECT_EQ(tensor->shape, shape) << name;
  };
  const std::string experts = kExperts;
  expect(experts + "gate_up_proj_blocks", DType::u8, {3, 192, 2, 16});
  expect(experts + "gate_up_proj_scales", DType::u8, {3, 192, 2});
  expect(experts + "gate_up_proj_bias", DType::bf16, {3, 192});
  expect(experts + "down_proj_blocks", DType::u8, {3, 64, 3, 16});
  expect(experts + "down_proj_scales", DType::u8, {3, 64, 3});
  expect(experts + "down_proj_bias", DType::bf16, {3, 64});
  expect("model.layers.0.mlp.router.weight", DType::bf16, {3, 64});
  expect("model.layers.0.mlp.router.bias", DType::bf16, {3});
  EXPECT_EQ(checkpoint.tensors().size(), 8U);
  const Json& quantization = *checkpoint.config().find("quantization_config");
  EXPECT_EQ(quantization.find("quant_method")->as_string(), "mxfp4");
  EXPECT_EQ(quantization.find("modules_to_not_convert")->elements().size(), 4U);
  EXPECT_TRUE(checkpoint.quant_config().is_null());
  EXPECT_EQ(checkpoint.config().find("intermediate_size")->as_unsigned(), 96U);
  EXPECT_EQ(checkpoint.config().find("num_local_experts")->as_unsigned(), 3U);
  EXPECT_EQ(checkpoint.config().find("layer_types")->elements().size(), 1U);
}

std::vector<float> biases_of(const Checkpoint& checkpoint, const std::string& leaf) {
  const auto bytes = bytes_of(checkpoint, kExperts + leaf);
  std::vector<float> values;
  for (std::size_t at = 0; at < bytes.size(); at += 2) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, &bytes[at], sizeof bits);
    values.push_back(decode_bf16(bits));
  }
  return values;
}

TEST(SynthGptOss, RandomBiasesAreDistinctFiniteAndNotTiny) {
  for (const Pattern pattern : {Pattern::normal, Pattern::outliers}) {
    const TempFolder folder;
    const Checkpoint checkpoint = synthesised(folder, options_of("gpt-oss-20b", pattern));
    for (const char* leaf : {"gate_up_proj_bias", "down_proj_bias"}) {
      const std::vector<float> biases = biases_of(checkpoint, leaf);
      double square = 0;
      for (const float bias : biases) {
        EXPECT_TRUE(std::fabs(bias) <= 1.0F);
        square += double{bias} * bias;
      }
      const double deviation = std::sqrt(square / static_cast<double>(biases.size()));
      EXPECT_TRUE(deviation > 0.2 && deviation < 0.4) << deviation;
      EXPECT_GT(std::set<float>(biases.begin(), biases.end()).size(), biases.size() / 2);
    }
    EXPECT_NE(biases_of(checkpoint, "gate_up_proj_bias").front(),
              biases_of(checkpoint, "down_proj_bias").front());
  }
}

TEST(SynthGptOss, MonotonicCountsThroughTheStackAndConstantIsOne) {
  const TempFolder folder;
  const Checkpoint counted =
      synthesised(folder, options_of("gpt-oss-20b", Pattern::monotonic), "counted");
  const auto codes = bytes_of(counted, std::string(kExperts) + "gate_up_proj_blocks");
  for (std::size_t at = 0; at < codes.size(); ++at) ASSERT_EQ(codes[at], at % 256);
  const auto scales = bytes_of(counted, std::string(kExperts) + "down_proj_scales");
  for (std::size_t at = 0; at < scales.size(); ++at)
    ASSERT_EQ(scales[at], (31 * at + 6) % 113) << "the sixth tensor of the checkpoint";
  const std::vector<float> biases = biases_of(counted, "down_proj_bias");
  for (std::size_t at = 0; at < biases.size(); ++at)
    ASSERT_EQ(biases[at], (static_cast<int>((31 * at + 7) % 113) - 56) / 64.0F);

  const Checkpoint ones =
      synthesised(folder, options_of("gpt-oss-20b", Pattern::constant), "constant");
  for (const float bias : biases_of(ones, "gate_up_proj_bias")) ASSERT_EQ(bias, 1.0F);
  for (const auto byte : bytes_of(ones, std::string(kExperts) + "gate_up_proj_blocks"))
    ASSERT_EQ(byte, 0x22);
}

std::vector<std::string> strings_of(const Json& list) {
  std::vector<std::string> texts;
  for (const Json& text : list.elements()) texts.push_back(text.as_string());
  return texts;
}

TEST(SynthFamilies, HaveTheirPublishedPrefixesAndLists) {
  struct Row {
    const char* model;
    const char* tensor;
    const char* excluded;
  };
  for (const Row& row :
       {Row{"kimi-k2", "language_model.model.layers.0.mlp.experts.2.down_proj.weight_scale_2",
            "language_model.model.layers.0.self_attn*"},
        Row{"glm-5", "model.layers.0.mlp.experts.2.gate_proj.weight", "model.layers.1*"},
        Row{"qwen3-moe", "model.layers.0.mlp.experts.2.up_proj.input_scale",
            "model.layers.0.mlp.gate"}}) {
    const TempFolder folder;
    const Checkpoint checkpoint = synthesised(folder, options_of(row.model));
    EXPECT_NE(checkpoint.find(row.tensor), nullptr) << row.model;
    const auto excluded =
        strings_of(*checkpoint.quant_config().find("quantization")->find("exclude_modules"));
    EXPECT_TRUE(std::ranges::count(excluded, row.excluded)) << row.model;
    EXPECT_EQ(excluded,
              strings_of(*checkpoint.config().find("quantization_config")->find("ignore")))
        << "both places say the same";
  }
}

TEST(SynthFamilies, V41KeepsItsTextConfigAndItsTiles) {
  const TempFolder folder;
  const Checkpoint checkpoint = synthesised(folder, options_of("deepseek-v4.1-flash"));
  const Json& config = checkpoint.config();
  EXPECT_EQ(config.find("hidden_size"), nullptr);
  EXPECT_EQ(config.find("expert_dtype"), nullptr);
  const Json& text = *config.find("text_config");
  EXPECT_EQ(text.find("hidden_size")->as_unsigned(), 64U);
  EXPECT_EQ(text.find("n_routed_experts")->as_unsigned(), 3U);
  EXPECT_EQ(text.find("num_nextn_predict_layers")->as_unsigned(9), 0U);
  EXPECT_EQ(text.find("compress_ratios")->elements().size(), 1U);
  const Json& quantization = *config.find("quantization_config");
  EXPECT_EQ(quantization.find("expert_dtype")->as_string(), "fp4");
  EXPECT_EQ(quantization.find("weight_block_size")->elements()[0].as_unsigned(), 32U);
  EXPECT_NE(checkpoint.find("layers.0.ffn.experts.2.w2.scale"), nullptr);
  EXPECT_NE(checkpoint.find("layers.0.ffn.gate.bias"), nullptr) << "no layer is hash-routed";
}

}  // namespace
}  // namespace moxie

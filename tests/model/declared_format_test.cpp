// SPDX-License-Identifier: Apache-2.0
// What a quantisation declaration says about the routed experts, wherever and however it says it.
#include "model/declared_format.hpp"

#include <gtest/gtest.h>

#include <string>

namespace moxie {
namespace {

DeclaredFormat declared(std::string_view config, std::string_view sidecar = "null") {
  return declared_format(Json::parse(config, "config"), Json::parse(sidecar, "sidecar"));
}

TEST(DeclaredFormat, Fp8WithFp4ExpertsIsMxfp4) {
  for (const char* config :
       {R"({"expert_dtype": "fp4", "quantization_config": {"quant_method": "fp8"}})",
        R"({"quantization_config": {"quant_method": "fp8", "expert_dtype": "fp4"}})",
        R"({"text_config": {"expert_dtype": "fp4"},
            "quantization_config": {"quant_method": "fp8"}})",
        R"({"expert_dtype": "fp4"})"}) {
    const DeclaredFormat format = declared(config);
    EXPECT_EQ(format.format, BlockFormat::mxfp4) << config;
    EXPECT_FALSE(format.input_scales);
  }
  EXPECT_EQ(declared(R"({"expert_dtype": "fp4", "quantization_config": {"quant_method": "fp8"}})")
                .quantization,
            "fp8 expert_dtype fp4");
}

TEST(DeclaredFormat, Fp8AloneDeclaresNoFp4Format) {
  const DeclaredFormat format =
      declared(R"({"quantization_config": {"quant_method": "fp8", "fmt": "e4m3"}})");
  EXPECT_FALSE(format.format.has_value());
  EXPECT_EQ(format.quantization, "fp8");
  EXPECT_FALSE(format.input_scales);
  EXPECT_FALSE(declared(R"({"expert_dtype": "fp8",
    "quantization_config": {"quant_method": "fp8"}})")
                   .format.has_value());
}

TEST(DeclaredFormat, NothingDeclaredIsNothing) {
  const DeclaredFormat format = declared("{}");
  EXPECT_FALSE(format.format.has_value());
  EXPECT_TRUE(format.quantization.empty());
}

// The config keeps fp8 and fp4; the added key wins.
TEST(DeclaredFormat, TheRequantisationOfDeepseekIsNvfp4) {
  const DeclaredFormat format = declared(R"({"expert_dtype": "fp4", "quantization_config":
    {"quant_method": "fp8", "moe_quant_algo": "NVFP4", "quant_algo": "MIXED_PRECISION"}})");
  EXPECT_EQ(format.format, BlockFormat::nvfp4);
  EXPECT_TRUE(format.input_scales);
  EXPECT_EQ(format.quantization, "fp8 NVFP4");
}

TEST(DeclaredFormat, ModeloptAlgorithmsAreReadInEitherCase) {
  for (const char* algorithm : {"NVFP4", "nvfp4", "NvFp4", "NVFP4_AWQ", "NVFP4_SVD"}) {
    const DeclaredFormat format = declared(R"({"quantization_config":
      {"quant_method": "modelopt", "quant_algo": ")" +
                                           std::string(algorithm) + R"("}})");
    EXPECT_EQ(format.format, BlockFormat::nvfp4) << algorithm;
    EXPECT_TRUE(format.input_scales) << algorithm;
  }
  EXPECT_FALSE(declared(R"({"quantization_config":
    {"quant_method": "modelopt", "quant_algo": "FP8"}})")
                   .format.has_value());
}

TEST(DeclaredFormat, WeightOnlyAlgorithmsStoreNoInputScale) {
  for (const char* algorithm : {"W4A16_NVFP4", "w4a16_nvfp4"}) {
    const DeclaredFormat format = declared(R"({"quantization_config":
      {"quant_method": "modelopt", "quant_algo": ")" +
                                           std::string(algorithm) + R"("}})");
    EXPECT_EQ(format.format, BlockFormat::nvfp4);
    EXPECT_FALSE(format.input_scales);
  }
}

constexpr std::string_view kLayers = R"("quantized_layers": {
  "model.layers.0.self_attn.o_proj": {"quant_algo": "FP8"},
  "model.layers.0.mlp.shared_experts.up_proj": {"quant_algo": "FP8"},
  "model.layers.0.mlp.experts": {"quant_algo": "W4A16_NVFP4", "group_size": 16}})";

TEST(DeclaredFormat, MixedPrecisionIsWhatTheTableSaysOfTheRoutedExperts) {
  const DeclaredFormat format = declared(R"({"quantization_config": {"quant_method": "modelopt",
    "quant_algo": "MIXED_PRECISION", )" + std::string(kLayers) +
                                         "}}");
  EXPECT_EQ(format.format, BlockFormat::nvfp4);
  EXPECT_FALSE(format.input_scales);
  EXPECT_EQ(format.quantization, "modelopt W4A16_NVFP4");
  EXPECT_FALSE(declared(R"({"quantization_config": {"quant_method": "modelopt",
    "quant_algo": "MIXED_PRECISION"}})")
                   .format.has_value());
}

TEST(DeclaredFormat, TheTableMayStandInTheSidecarAlone) {
  const DeclaredFormat format = declared(
      R"({"quantization_config": {"quant_method": "modelopt",
    "quant_algo": "MIXED_PRECISION"}})",
      R"({"quantization": {"quant_algo": "MIXED_PRECISION", )" + std::string(kLayers) + "}}");
  EXPECT_EQ(format.format, BlockFormat::nvfp4);
  EXPECT_FALSE(format.input_scales);
}

TEST(DeclaredFormat, ASidecarAloneDeclares) {
  const DeclaredFormat format =
      declared("{}", R"({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "nvfp4",
    "group_size": 16, "exclude_modules": ["lm_head"]}})");
  EXPECT_EQ(format.format, BlockFormat::nvfp4);
  EXPECT_TRUE(format.input_scales);
  EXPECT_EQ(format.quantization, "modelopt NVFP4");
}

TEST(DeclaredFormat, GptOssIsMxfp4) {
  for (const char* method : {"mxfp4", "gpt_oss_mxfp4"}) {
    const DeclaredFormat format =
        declared(R"({"quantization_config": {"quant_method": ")" + std::string(method) + R"("}})");
    EXPECT_EQ(format.format, BlockFormat::mxfp4);
    EXPECT_FALSE(format.input_scales);
  }
}

TEST(DeclaredFormat, CompressedTensorsSayTheFormat) {
  const auto packed = [](const std::string& format) {
    return declared(R"({"text_config": {"quantization_config":
      {"quant_method": "compressed-tensors", "format": ")" +
                    format + R"("}}})");
  };
  EXPECT_EQ(packed("mxfp4-pack-quantized").format, BlockFormat::mxfp4);
  EXPECT_FALSE(packed("mxfp4-pack-quantized").input_scales);
  EXPECT_EQ(packed("nvfp4-pack-quantized").format, BlockFormat::nvfp4);
  EXPECT_TRUE(packed("nvfp4-pack-quantized").input_scales);
  EXPECT_FALSE(packed("float-quantized").format.has_value());
}

TEST(DeclaredFormat, ValuesOfAWrongKindAreNoDeclaration) {
  for (const char* config :
       {R"({"quantization_config": "modelopt"})", R"({"quantization_config": []})",
        R"({"quantization_config": {"quant_method": 4, "quant_algo": ["NVFP4"]}})",
        R"({"expert_dtype": 4})", R"({"text_config": 1})"}) {
    EXPECT_FALSE(declared(config).format.has_value()) << config;
  }
}

}  // namespace
}  // namespace moxie

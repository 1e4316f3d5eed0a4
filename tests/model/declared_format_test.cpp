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

DeclaredFormat of_groups(const std::string& groups, const std::string& rest = "") {
  return declared(R"({"quantization_config": {"quant_method": "compressed-tensors", )" + rest +
                  R"("config_groups": {)" + groups + "}}}");
}

// Which group holds the experts: the one that names them, not the first.
TEST(DeclaredFormat, CompressedTensorsMayDeclareTheFormatOfEachGroup) {
  const std::string linear =
      R"("group_0": {"format": "float-quantized", "targets": ["Linear"],
         "input_activations": {"dynamic": true}})";
  const std::string experts = R"("group_1": {"format": "nvfp4-pack-quantized",
      "targets": ["re:.*mlp.experts.*proj$"], "input_activations": {"dynamic": "local"}})";
  const std::string shared = R"("group_2": {"format": "mxfp4-pack-quantized",
      "targets": ["re:.*shared_experts.*"]})";
  const DeclaredFormat mixed =
      of_groups(shared + ", " + linear + ", " + experts, R"("format": "mixed-precision", )");
  EXPECT_EQ(mixed.format, BlockFormat::nvfp4);
  EXPECT_TRUE(mixed.input_scales);
  EXPECT_EQ(mixed.quantization, "compressed-tensors nvfp4-pack-quantized");
  EXPECT_FALSE(of_groups(linear + ", " + shared).format.has_value());
  EXPECT_EQ(of_groups(shared).format, BlockFormat::mxfp4) << "the only group";
  EXPECT_EQ(
      of_groups(R"("group_0": {"targets": ["Linear"]})", R"("format": "mxfp4-pack-quantized", )")
          .format,
      BlockFormat::mxfp4);
}

// NVFP4A16 stores no input_global_scale; wholly dynamic activations need none.
TEST(DeclaredFormat, CompressedTensorsStoreAnInputScaleForStaticActivationsOnly) {
  for (const auto& [activations, stored] :
       {std::pair{R"({"dynamic": "local"})", true}, std::pair{R"({"dynamic": false})", true},
        std::pair{R"({"dynamic": true})", false}, std::pair{"null", false}}) {
    const DeclaredFormat format = of_groups(
        R"("group_0": {"format": "nvfp4-pack-quantized", "targets": ["Linear"],
           "input_activations": )" +
        std::string(activations) + "}");
    EXPECT_EQ(format.format, BlockFormat::nvfp4);
    EXPECT_EQ(format.input_scales, stored) << activations;
  }
}

TEST(DeclaredFormat, QuarkIsMxfp4WhenItsWeightsAreFp4InGroupsOf32) {
  const auto quark = [](const std::string& rest) {
    return declared(R"({"quantization_config": {"quant_method": "quark", )" + rest + "}}");
  };
  const std::string fp4 =
      R"({"weight": {"dtype": "fp4", "qscheme": "per_group", "group_size": 32}})";
  const std::string fp8 = R"({"weight": {"dtype": "fp8_e4m3", "qscheme": "per_tensor"}})";
  const DeclaredFormat global = quark(R"("global_quant_config": )" + fp4);
  EXPECT_EQ(global.format, BlockFormat::mxfp4);
  EXPECT_FALSE(global.input_scales);
  EXPECT_EQ(global.quantization, "quark fp4");
  EXPECT_EQ(quark(R"("weight": {"dtype": "fp4", "group_size": 32})").format, BlockFormat::mxfp4);
  EXPECT_EQ(quark(R"("global_quant_config": )" + fp8 +
                  R"(, "layer_quant_config": {"*mlp.experts*": )" + fp4 + "}")
                .format,
            BlockFormat::mxfp4);
  EXPECT_FALSE(quark(R"("global_quant_config": )" + fp4 +
                     R"(, "layer_quant_config": {"*mlp.experts*": )" + fp8 + "}")
                   .format.has_value());
  EXPECT_EQ(quark(R"("global_quant_config": )" + fp4 +
                  R"(, "layer_quant_config": {"*shared_experts*": )" + fp8 + "}")
                .format,
            BlockFormat::mxfp4);
  EXPECT_FALSE(quark(R"("global_quant_config": )" + fp8).format.has_value());
  EXPECT_FALSE(quark(R"("weight": {"dtype": "fp4", "group_size": 16})").format.has_value());
  EXPECT_FALSE(quark(R"("weight": [])").format.has_value());
}

TEST(DeclaredFormat, ValuesOfAWrongKindAreNoDeclaration) {
  for (const char* config :
       {R"({"quantization_config": "modelopt"})", R"({"quantization_config": []})",
        R"({"quantization_config": {"quant_method": 4, "quant_algo": ["NVFP4"]}})",
        R"({"quantization_config": {"quant_method": "compressed-tensors", "format": 1,
            "config_groups": [1]}})",
        R"({"quantization_config": {"quant_method": "compressed-tensors",
            "config_groups": {"a": 1, "b": {"targets": 1, "input_activations": 2}}}})",
        R"({"quantization_config": {"quant_method": "quark", "layer_quant_config": 1,
            "global_quant_config": {"weight": "fp4"}}})",
        R"({"expert_dtype": 4})", R"({"text_config": 1})"}) {
    EXPECT_FALSE(declared(config).format.has_value()) << config;
  }
}

}  // namespace
}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// Lists that leave experts out of quantisation and tables of mixed precision, against tensors.
#include <gtest/gtest.h>

#include <string>

#include "model/canonical.hpp"
#include "model/declared_format.hpp"
#include "moxie/model.hpp"

namespace moxie {
namespace {

using test::TempFolder;
using test::text_of;
using test::tiny_checkpoint;
using test::TinyDialect;
using test::TinyOptions;
using test::TinyTensor;

constexpr auto kNvfp4 = BlockFormat::nvfp4;
constexpr auto kMxfp4 = BlockFormat::mxfp4;
const std::string kThird = "model.layers.3.mlp.experts";

Json strings(const std::vector<std::string>& texts) {
  Json list = Json::array();
  for (const std::string& text : texts) list.push_back(text);
  return list;
}

Json modelopt() {
  return Json::object().set("quant_method", "modelopt").set("quant_algo", "NVFP4");
}

DeclaredLayers layers_of(const Json& quantization, const Json& sidecar = {}) {
  return {Json::object().set("quantization_config", quantization),
          Json::object().set("quantization", sidecar)};
}

TEST(DeclaredLayers, ListsUnderEveryKeyAreWildcardsThatStandForWhatTheySay) {
  for (const char* key : {"ignore", "exclude_modules", "modules_to_not_convert"}) {
    const auto excludes = [&](const std::string& pattern) {
      const Json list = strings({"lm_head", pattern});
      const bool in_config =
          !layers_of(modelopt().set(key, list)).format_of(kThird, kNvfp4).has_value();
      const bool in_sidecar =
          !layers_of(modelopt(), Json::object().set(key, list)).format_of(kThird, kNvfp4);
      EXPECT_EQ(in_config, in_sidecar) << pattern;
      return in_config;
    };
    for (const char* pattern : {"model.layers.3*", "model.layers.3.mlp.experts", "*.mlp.experts*",
                                "*experts.*", "model.layers.[2-4].*"})
      EXPECT_TRUE(excludes(pattern)) << pattern;
    for (const char* pattern :
         {"mtp*", "*.attn.*", "model.layers.33*", "model.layers.*.mlp.shared_expert*",
          "model.layers.*.mlp.gate", "layers.3*", "re:.*mlp.experts.*"})
      EXPECT_FALSE(excludes(pattern)) << pattern;
  }
}

TEST(DeclaredLayers, ATableOfMixedPrecisionSaysItPerLayer) {
  const auto algorithm = [](const char* name) { return Json::object().set("quant_algo", name); };
  Json quantization;
  quantization.set("quant_method", "modelopt")
      .set("quant_algo", "MIXED_PRECISION")
      .set("quantized_layers",
           Json::object()
               .set("model.layers.3.mlp.experts.0.up_proj", algorithm("fp8"))
               .set("model.layers.4.mlp.experts", algorithm("nvfp4"))
               .set("model.layers.4.mlp.shared_experts.up_proj", algorithm("fp8")));
  EXPECT_EQ(declared_format(Json::object().set("quantization_config", quantization), {}).format,
            kNvfp4)
      << "of the layers that are in FP4";
  const DeclaredLayers layers = layers_of(quantization);
  EXPECT_EQ(layers.format_of(kThird, kNvfp4), std::nullopt);
  EXPECT_EQ(layers.format_of("model.layers.4.mlp.experts", kNvfp4), kNvfp4);
  EXPECT_EQ(layers.format_of("model.layers.34.mlp.experts", kMxfp4), kMxfp4) << "no word on it";
}

// In a re-quantised DeepSeek-V4 what is left out keeps the native format.
TEST(DeclaredLayers, WhatDeepseekLeavesOutIsNative) {
  const Json config = Json::object()
                          .set("expert_dtype", "fp4")
                          .set("quantization_config", Json::object()
                                                          .set("quant_method", "fp8")
                                                          .set("moe_quant_algo", "NVFP4")
                                                          .set("ignore", strings({"layers.2.*"})));
  const DeclaredLayers layers(config, {});
  EXPECT_EQ(layers.format_of("layers.2.ffn.experts", kNvfp4), kMxfp4);
  EXPECT_EQ(layers.format_of("layers.1.ffn.experts", kNvfp4), kNvfp4);
}

TinyOptions options_with(const std::vector<std::string>& ignored) {
  TinyOptions options{.dialect = TinyDialect::modelopt, .layers = 3};
  options.config = test::tiny_config(options);
  options.config->set("quantization_config", modelopt().set("ignore", strings(ignored)));
  return options;
}

// Layer 1 as it would be without quantisation.
test::TinyEdit unquantised_layer() {
  return [](TinyTensor& tensor) {
    if (!tensor.name.starts_with("model.layers.1.")) return true;
    if (!tensor.name.ends_with(".weight")) return false;
    tensor.dtype = DType::bf16;
    tensor.shape[1] *= 2;
    tensor.bytes = std::string(4 * tensor.bytes.size(), '\x3C');
    return true;
  };
}

TEST(DeclaredLayers, AnExcludedLayerWithoutFp4IsANote) {
  const TempFolder folder;
  TinyOptions options = options_with({"model.layers.1.*"});
  options.edits = {unquantised_layer()};
  const MoeModel model = read_model(tiny_checkpoint(folder, options));
  EXPECT_EQ(model.layers.size(), 2U);
  ASSERT_EQ(model.findings.size(), 1U) << text_of(model.findings);
  EXPECT_EQ(model.findings[0].code, "MOXIE-M010");
  EXPECT_EQ(model.findings[0].severity, Severity::note);
  EXPECT_EQ(model.findings[0].where.layer, 1);
}

TEST(DeclaredLayers, AnExcludedLayerInFp4IsBelievedAndFound) {
  const TempFolder folder;
  const MoeModel model =
      read_model(tiny_checkpoint(folder, options_with({"lm_head", "model.layers.1.*"})));
  EXPECT_EQ(model.layers.size(), 3U);
  EXPECT_EQ(model.require_layer(1).format, kNvfp4);
  ASSERT_EQ(model.findings.size(), 1U) << text_of(model.findings);
  EXPECT_EQ(model.findings[0].code, "MOXIE-M003");
  EXPECT_EQ(model.findings[0].where.layer, 1);
  EXPECT_EQ(model.findings[0].expected, "experts left out of quantisation");
}

TEST(DeclaredLayers, AListThatFitsIsSilent) {
  const TempFolder folder;
  const MoeModel model = read_model(tiny_checkpoint(
      folder, options_with({"mtp*", "*.attn.*", "model.layers.*.mlp.shared_expert*"})));
  EXPECT_EQ(text_of(model.findings), "");
}

TEST(DeclaredLayers, AConfigAloneThatLeavesAllExpertsOutHasNoFormat) {
  const TempFolder folder;
  const TinyOptions options = options_with({"*.mlp.experts*"});
  const MoeModel model =
      read_model(open_checkpoint(folder.write("config.json", options.config->dump())));
  EXPECT_EQ(model.format, std::nullopt);
  const TinyOptions some = options_with({"model.layers.1.*"});
  EXPECT_EQ(read_model(open_checkpoint(folder.write("other.json", some.config->dump()))).format,
            kNvfp4);
}

}  // namespace
}  // namespace moxie

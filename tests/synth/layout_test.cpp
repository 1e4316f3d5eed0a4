// SPDX-License-Identifier: Apache-2.0
// Names, types, shapes and config files of each dialect, read back from disk.
#include <gtest/gtest.h>

#include <filesystem>
#include <stdexcept>
#include <string>
#include <tuple>

#include "moxie/model.hpp"
#include "small_checkpoint.hpp"

namespace moxie {
namespace {

using test::small_options;
using test::synthesised;
using test::TempFolder;

void expect_tensor(const Checkpoint& checkpoint, std::string_view name, DType dtype,
                   const Shape& shape) {
  const TensorInfo* tensor = checkpoint.find(name);
  ASSERT_NE(tensor, nullptr) << name;
  EXPECT_EQ(name_of(tensor->dtype), name_of(dtype)) << name;
  EXPECT_EQ(to_string(tensor->shape), to_string(shape)) << name;
}

const Json& at(const Json& json, std::string_view key) {
  const Json* value = json.find(key);
  if (value == nullptr) throw std::runtime_error("no key " + std::string(key));
  return *value;
}

TEST(SynthLayout, NativeMxfp4HasTheNamesThatDeepseekPublishes) {
  const TempFolder folder;
  const auto checkpoint = synthesised(folder, small_options(BlockFormat::mxfp4));
  EXPECT_TRUE(checkpoint.findings().empty());
  for (const std::string gate : {"w1", "w3"}) {
    const std::string prefix = "layers.1.ffn.experts.2." + gate;
    expect_tensor(checkpoint, prefix + ".weight", DType::i8, {96, 32});
    expect_tensor(checkpoint, prefix + ".scale", DType::f8_e8m0, {96, 2});
  }
  expect_tensor(checkpoint, "layers.1.ffn.experts.2.w2.weight", DType::i8, {64, 48});
  expect_tensor(checkpoint, "layers.1.ffn.experts.2.w2.scale", DType::f8_e8m0, {64, 3});
  EXPECT_EQ(checkpoint.tensors().size(), 2U * (2 + 3 * 3 * 2));
  EXPECT_TRUE(checkpoint.quant_config().is_null());
}

TEST(SynthLayout, RequantisedNvfp4HasTheNamesThatNvidiaPublishes) {
  const TempFolder folder;
  const auto checkpoint = synthesised(folder, small_options(BlockFormat::nvfp4));
  EXPECT_TRUE(checkpoint.findings().empty());
  expect_tensor(checkpoint, "layers.0.ffn.experts.0.w1.weight", DType::u8, {96, 32});
  expect_tensor(checkpoint, "layers.0.ffn.experts.0.w1.weight_scale", DType::f8_e4m3, {96, 4});
  expect_tensor(checkpoint, "layers.0.ffn.experts.0.w1.weight_scale_2", DType::f32, {});
  expect_tensor(checkpoint, "layers.0.ffn.experts.0.w1.input_scale", DType::f32, {});
  expect_tensor(checkpoint, "layers.0.ffn.experts.0.w2.weight_scale", DType::f8_e4m3, {64, 6});
  EXPECT_EQ(checkpoint.find("layers.0.ffn.experts.0.w1.scale"), nullptr);
  EXPECT_EQ(checkpoint.tensors().size(), 2U * (2 + 3 * 3 * 4));

  const Json& quantization = at(checkpoint.config(), "quantization_config");
  EXPECT_EQ(at(quantization, "quant_method").as_string(), "fp8");
  EXPECT_EQ(at(quantization, "moe_quant_algo").as_string(), "NVFP4");
  EXPECT_EQ(at(quantization, "quant_algo").as_string(), "MIXED_PRECISION");
  EXPECT_EQ(at(quantization, "quantized_layers").members().size(), 2U);
  EXPECT_NE(at(quantization, "quantized_layers").find("layers.1.ffn.experts"), nullptr);
  EXPECT_EQ(at(checkpoint.config(), "expert_dtype").as_string(), "fp4");
  const Json& sidecar = at(checkpoint.quant_config(), "quantization");
  EXPECT_EQ(at(sidecar, "quant_algo").as_string(), "MIXED_PRECISION");
  EXPECT_EQ(at(sidecar, "group_size").as_unsigned(), 16U);
}

TEST(SynthLayout, ModeloptHasItsOwnPrefixAndProjectionNames) {
  const TempFolder folder;
  const auto checkpoint =
      synthesised(folder, small_options(BlockFormat::nvfp4, DialectKind::modelopt));
  const std::string prefix = "model.layers.1.mlp.experts.2.";
  expect_tensor(checkpoint, prefix + "gate_proj.weight", DType::u8, {96, 32});
  expect_tensor(checkpoint, prefix + "up_proj.weight_scale", DType::f8_e4m3, {96, 4});
  expect_tensor(checkpoint, prefix + "down_proj.weight_scale_2", DType::f32, {});
  expect_tensor(checkpoint, prefix + "down_proj.input_scale", DType::f32, {});
  expect_tensor(checkpoint, "model.layers.0.mlp.gate.tid2eid", DType::i64, {320, 2});
  expect_tensor(checkpoint, "model.layers.1.mlp.gate.weight", DType::bf16, {3, 64});
  expect_tensor(checkpoint, "model.layers.1.mlp.gate.e_score_correction_bias", DType::f32, {3});
  const Json& quantization = at(checkpoint.config(), "quantization_config");
  EXPECT_EQ(at(quantization, "quant_method").as_string(), "modelopt");
  EXPECT_EQ(at(quantization, "quant_algo").as_string(), "NVFP4");
  EXPECT_EQ(at(at(checkpoint.quant_config(), "quantization"), "quant_algo").as_string(), "NVFP4");
}

TEST(SynthLayout, CompressedTensorsHasPackedWeightsAndGlobalsOfOneElement) {
  const TempFolder folder;
  const auto nvfp4 = synthesised(
      folder, small_options(BlockFormat::nvfp4, DialectKind::compressed_tensors), "nvfp4");
  const std::string prefix = "model.layers.1.mlp.experts.2.";
  expect_tensor(nvfp4, prefix + "gate_proj.weight_packed", DType::u8, {96, 32});
  expect_tensor(nvfp4, prefix + "up_proj.weight_scale", DType::f8_e4m3, {96, 4});
  expect_tensor(nvfp4, prefix + "down_proj.weight_global_scale", DType::f32, {1});
  expect_tensor(nvfp4, prefix + "down_proj.input_global_scale", DType::f32, {1});
  EXPECT_EQ(nvfp4.tensors().size(), 2U * (2 + 3 * 3 * 4));
  const auto mxfp4 = synthesised(
      folder, small_options(BlockFormat::mxfp4, DialectKind::compressed_tensors), "mxfp4");
  expect_tensor(mxfp4, prefix + "gate_proj.weight_packed", DType::u8, {96, 32});
  expect_tensor(mxfp4, prefix + "down_proj.weight_scale", DType::u8, {64, 3});
  EXPECT_EQ(mxfp4.tensors().size(), 2U * (2 + 3 * 3 * 2));
  for (const Checkpoint* checkpoint : {&nvfp4, &mxfp4}) {
    EXPECT_TRUE(checkpoint->quant_config().is_null());
    const std::string format = checkpoint == &nvfp4 ? "nvfp4" : "mxfp4";
    const Json& quantization = at(checkpoint->config(), "quantization_config");
    EXPECT_EQ(at(quantization, "quant_method").as_string(), "compressed-tensors");
    EXPECT_EQ(at(quantization, "format").as_string(), format + "-pack-quantized");
    const Json& group = at(at(quantization, "config_groups"), "group_0");
    EXPECT_EQ(at(group, "format").as_string(), format + "-pack-quantized");
    EXPECT_EQ(at(at(group, "weights"), "group_size").as_unsigned(), format == "nvfp4" ? 16U : 32U);
    EXPECT_EQ(at(group, "input_activations").is_null(), format == "mxfp4");
  }
}

TEST(SynthLayout, QuarkHasModeloptsNamesAndScaleBytes) {
  const TempFolder folder;
  const auto checkpoint =
      synthesised(folder, small_options(BlockFormat::mxfp4, DialectKind::quark));
  const std::string prefix = "model.layers.1.mlp.experts.2.";
  expect_tensor(checkpoint, prefix + "gate_proj.weight", DType::u8, {96, 32});
  expect_tensor(checkpoint, prefix + "down_proj.weight_scale", DType::u8, {64, 3});
  EXPECT_EQ(checkpoint.tensors().size(), 2U * (2 + 3 * 3 * 2));
  EXPECT_TRUE(checkpoint.quant_config().is_null());
  const Json& quantization = at(checkpoint.config(), "quantization_config");
  EXPECT_EQ(at(quantization, "quant_method").as_string(), "quark");
  const Json& weight = at(at(quantization, "global_quant_config"), "weight");
  EXPECT_EQ(at(weight, "dtype").as_string(), "fp4");
  EXPECT_EQ(at(weight, "group_size").as_unsigned(), 32U);
}

// The reader agrees with the config of every dialect that is written.
TEST(SynthLayout, EveryDialectIsReadBackWithoutAFinding) {
  const TempFolder folder;
  for (const auto& [dialect, format, name] :
       {std::tuple{DialectKind::deepseek, BlockFormat::mxfp4, "deepseek-v4"},
        {DialectKind::deepseek, BlockFormat::nvfp4, "deepseek-v4-nvfp4"},
        {DialectKind::modelopt, BlockFormat::nvfp4, "modelopt"},
        {DialectKind::compressed_tensors, BlockFormat::nvfp4, "compressed-tensors"},
        {DialectKind::compressed_tensors, BlockFormat::mxfp4, "compressed-tensors"},
        {DialectKind::quark, BlockFormat::mxfp4, "quark"}}) {
    const std::string place = std::string(name) + std::string(name_of(format));
    const MoeModel model = read_model(synthesised(folder, small_options(format, dialect), place));
    EXPECT_EQ(model.dialect, name);
    EXPECT_EQ(model.format, format);
    EXPECT_EQ(model.config.format, format) << place;
    EXPECT_EQ(model.config.input_scales, format == BlockFormat::nvfp4) << place;
    for (const Finding& finding : model.findings) ADD_FAILURE() << to_string(finding);
    for (const int layer : {0, 1}) EXPECT_NO_THROW((void)model.require_layer(layer));
  }
}

TEST(SynthLayout, AConfigOfAnInverseDialectIsWrittenInItsOwnDialectAndFormat) {
  const TempFolder folder;
  for (const auto format : {BlockFormat::mxfp4, BlockFormat::nvfp4}) {
    const auto first = synthesised(folder, small_options(format, DialectKind::compressed_tensors),
                                   name_of(format));
    SynthOptions options;
    options.config = first.config();
    options.config.set("model_type", "deepseek_v3");
    const auto report =
        synthesise(folder.path() / ("again" + std::string(name_of(format))), options);
    EXPECT_EQ(report.dialect, DialectKind::compressed_tensors);
    EXPECT_EQ(report.format, format);
  }
}

TEST(SynthLayout, RoutersHaveATableOnHashLayersAndABiasOnTheOthers) {
  const TempFolder folder;
  const auto checkpoint = synthesised(folder, small_options(BlockFormat::mxfp4));
  expect_tensor(checkpoint, "layers.0.ffn.gate.weight", DType::bf16, {3, 64});
  expect_tensor(checkpoint, "layers.0.ffn.gate.tid2eid", DType::i64, {320, 2});
  EXPECT_EQ(checkpoint.find("layers.0.ffn.gate.bias"), nullptr);
  expect_tensor(checkpoint, "layers.1.ffn.gate.bias", DType::f32, {3});
  EXPECT_EQ(checkpoint.find("layers.1.ffn.gate.tid2eid"), nullptr);
}

TEST(SynthLayout, WritesOneShardPerLayerAndAnIndexOfAllTensors) {
  const TempFolder folder;
  const auto report = synthesise(folder.path() / "model", small_options(BlockFormat::mxfp4));
  const auto checkpoint = open_checkpoint(folder.path() / "model");
  ASSERT_EQ(checkpoint.files().size(), 2U);
  EXPECT_EQ(checkpoint.files()[0].path.filename(), "model-00001-of-00002.safetensors");
  EXPECT_EQ(checkpoint.files()[1].path.filename(), "model-00002-of-00002.safetensors");

  const Json index = Json::parse(
      test::read_bytes(folder.path() / "model" / "model.safetensors.index.json"), "index");
  const auto& weight_map = at(index, "weight_map").members();
  EXPECT_EQ(weight_map.size(), checkpoint.tensors().size());
  std::uint64_t bytes = 0;
  for (const TensorInfo& tensor : checkpoint.tensors()) {
    bytes += tensor.bytes;
    const std::string layer = tensor.name.substr(0, tensor.name.find(".ffn"));
    EXPECT_EQ(tensor.file, layer == "layers.0" ? 0U : 1U) << tensor.name;
  }
  EXPECT_EQ(at(at(index, "metadata"), "total_size").as_unsigned(), bytes);
  EXPECT_EQ(report.bytes, bytes);
  EXPECT_EQ(report.tensors, checkpoint.tensors().size());
  EXPECT_EQ(report.files, 4U);
}

TEST(SynthLayout, TensorsAreAlignedToTheirElements) {
  const TempFolder folder;
  for (const auto format : {BlockFormat::mxfp4, BlockFormat::nvfp4}) {
    const auto checkpoint = synthesised(folder, small_options(format), name_of(format));
    for (const TensorInfo& tensor : checkpoint.tensors()) {
      EXPECT_EQ(tensor.offset % (bits_of(tensor.dtype) / 8), 0U) << tensor.name;
    }
  }
}

TEST(SynthLayout, TheConfigSaysWhatIsWritten) {
  const TempFolder folder;
  auto options = small_options(BlockFormat::mxfp4);
  options.experts = 1;
  options.num_layers = 6;
  const auto checkpoint = synthesised(folder, options);
  const Json& config = checkpoint.config();
  EXPECT_EQ(at(config, "num_hidden_layers").as_unsigned(), 6U);
  EXPECT_EQ(at(config, "n_routed_experts").as_unsigned(), 1U);
  EXPECT_EQ(at(config, "num_experts_per_tok").as_unsigned(), 1U);
  EXPECT_EQ(at(config, "hidden_size").as_unsigned(), 64U);
  EXPECT_EQ(at(config, "moe_intermediate_size").as_unsigned(), 96U);
  EXPECT_EQ(at(config, "num_nextn_predict_layers").as_unsigned(1), 0U);
  EXPECT_EQ(at(config, "compress_ratios").dump_compact(), "[0,4,128,0,0,4]");
  EXPECT_EQ(at(config, "quantization_config").dump_compact(),
            R"({"activation_scheme":"dynamic","fmt":"e4m3","quant_method":"fp8",)"
            R"("scale_fmt":"ue8m0","weight_block_size":[128,128]})");
}

TEST(SynthLayout, DefaultsAreOneLayerOfAtMostSixteenExpertsAtFullWidth) {
  const TempFolder folder;
  SynthOptions options;
  options.config = synth_config("tiny");
  options.config.set("n_routed_experts", 40);
  const auto checkpoint = synthesised(folder, options);
  EXPECT_EQ(checkpoint.files().size(), 1U);
  EXPECT_EQ(at(checkpoint.config(), "n_routed_experts").as_unsigned(), 16U);
  expect_tensor(checkpoint, "layers.0.ffn.experts.15.w1.weight", DType::i8, {640, 128});
  EXPECT_EQ(checkpoint.find("layers.0.ffn.experts.16.w1.weight"), nullptr);
}

TEST(SynthLayout, AnotherModelsConfigGivesItsOwnRouterAndSparseLayersOnly) {
  const TempFolder folder;
  SynthOptions options;
  options.config = Json::parse(R"({"model_type": "qwen3_moe", "hidden_size": 64,
      "moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 4,
      "num_hidden_layers": 4, "mlp_only_layers": [0], "decoder_sparse_step": 2})",
                               "config.json");
  options.dialect = DialectKind::modelopt;
  const auto checkpoint = synthesised(folder, options);
  expect_tensor(checkpoint, "model.layers.0.mlp.experts.7.up_proj.weight", DType::u8, {32, 32});
  EXPECT_EQ(checkpoint.tensors().size(), 1U + 8 * 3 * 4);
  EXPECT_TRUE(at(checkpoint.config(), "mlp_only_layers").elements().empty());
  EXPECT_EQ(at(checkpoint.config(), "decoder_sparse_step").as_unsigned(), 1U);
  EXPECT_EQ(at(checkpoint.config(), "num_experts").as_unsigned(), 8U);
  EXPECT_EQ(checkpoint.config().find("n_routed_experts"), nullptr);
}

TEST(SynthLayout, TooFewExpertsForTheRouterGroupsLeaveOneGroup) {
  const TempFolder folder;
  SynthOptions options;
  options.config = Json::parse(R"({"model_type": "deepseek_v3", "hidden_size": 32,
      "moe_intermediate_size": 32, "n_routed_experts": 256, "num_experts_per_tok": 8,
      "num_hidden_layers": 4, "n_group": 8, "topk_group": 4, "topk_method": "noaux_tc",
      "first_k_dense_replace": 3})",
                               "config.json");
  options.dialect = DialectKind::modelopt;
  const auto kept = synthesised(folder, options, "kept");
  EXPECT_EQ(at(kept.config(), "n_group").as_unsigned(), 8U);
  EXPECT_EQ(at(kept.config(), "first_k_dense_replace").as_unsigned(9), 0U);
  expect_tensor(kept, "model.layers.0.mlp.gate.e_score_correction_bias", DType::f32, {16});
  options.experts = 12;
  const auto merged = synthesised(folder, options, "merged");
  EXPECT_EQ(at(merged.config(), "n_group").as_unsigned(), 1U);
  EXPECT_EQ(at(merged.config(), "topk_group").as_unsigned(), 1U);
}

}  // namespace
}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// The NVFP4 re-quantisation: native names, a global per expert and projection, native prediction
// blocks.
#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "model/canonical.hpp"
#include "support/refusal.hpp"

namespace moxie {
namespace {

using test::expect_layer;
using test::has_code;
using test::refusal_of;
using test::TempFolder;
using test::text_of;
using test::tiny_checkpoint;
using test::TinyDialect;
using test::TinyOptions;

TinyOptions nvfp4() { return {.dialect = TinyDialect::deepseek_v4_nvfp4}; }

TEST(DeepseekV4Nvfp4, EveryProjectionHasItsOwnGlobals) {  // pit11: gate and up are kept apart
  const TempFolder folder;
  const TinyOptions options = nvfp4();
  const MoeModel model = read_model(tiny_checkpoint(folder, options));
  EXPECT_EQ(model.dialect, "deepseek-v4-nvfp4");
  EXPECT_EQ(model.format, BlockFormat::nvfp4);
  EXPECT_EQ(text_of(model.findings), "");
  expect_layer(model.require_layer(0), options, {"w1", "w3", "w2"});
  expect_layer(model.require_layer(1), options, {"w1", "w3", "w2"});
  std::set<float> scalars;
  for (const LayerExperts& layer : model.layers) {
    for (const ExpertTensors& expert : layer.experts) {
      for (const ProjectionKind kind : projections_of(model.config)) {
        scalars.insert(read_scalar(model.checkpoint, expert[kind].dequant_mul));
        scalars.insert(read_scalar(model.checkpoint, expert[kind].act_dequant_mul));
      }
    }
  }
  EXPECT_EQ(scalars.size(), 2U * 3U * 3U * 2U);
}

// pit12: the config says one thing for all; each layer's tensors decide.
TEST(DeepseekV4Nvfp4, OneCheckpointMixesNvfp4LayersAndMxfp4PredictionBlocks) {
  const TempFolder folder;
  TinyOptions options = nvfp4();
  options.mtp_blocks = 2;
  const MoeModel model = read_model(tiny_checkpoint(folder, options));
  ASSERT_EQ(model.layers.size(), 4U);
  EXPECT_EQ(model.format, BlockFormat::nvfp4);
  EXPECT_EQ(model.dialect, "deepseek-v4-nvfp4");
  EXPECT_EQ(text_of(model.findings), "");
  for (const int layer : {0, 1}) {
    EXPECT_FALSE(model.require_layer(layer).mtp);
    EXPECT_EQ(model.require_layer(layer).format, BlockFormat::nvfp4);
  }
  for (const int layer : {2, 3}) {  // after the last main layer
    const LayerExperts& block = model.require_layer(layer);
    EXPECT_TRUE(block.mtp);
    EXPECT_EQ(block.format, BlockFormat::mxfp4);
    EXPECT_EQ(block.dialect, "deepseek-v4");
    EXPECT_EQ(block.prefix, "mtp." + std::to_string(layer - 2) + ".ffn.experts");
    expect_layer(block, options, {"w1", "w3", "w2"});
  }
}

// pit13, C17: a missing global is never a zero or a one.
TEST(DeepseekV4Nvfp4, AMissingGlobalStopsTheLayerAndNamesTheExpert) {
  for (const char* leaf : {"w1", "w3", "w2"}) {
    const TempFolder folder;
    TinyOptions options = nvfp4();
    const std::string name = "layers.1.ffn.experts.2." + std::string(leaf) + ".weight_scale_2";
    options.edits = {test::leave_out(name)};
    const MoeModel model = read_model(tiny_checkpoint(folder, options));
    EXPECT_NO_THROW((void)model.require_layer(0));
    const Error error = refusal_of([&] { (void)model.require_layer(1); });
    EXPECT_EQ(error.code(), ErrorCode::input);
    ASSERT_EQ(error.findings().size(), 1U);
    const Finding& finding = error.findings().front();
    EXPECT_EQ(finding.code, "MOXIE-M004");
    EXPECT_EQ(finding.where.layer, 1);
    EXPECT_EQ(finding.where.expert, 2U);
    EXPECT_NE(finding.message.find(name), std::string::npos) << finding.message;
    EXPECT_NE(finding.message.find("26 of 27"), std::string::npos) << finding.message;
  }
}

// R-10, pit13: whether an activation scale is needed is the plan's question; absent is not zero.
TEST(DeepseekV4Nvfp4, AMissingInputScaleIsAbsentAndNoProblem) {
  const TempFolder folder;
  TinyOptions options = nvfp4();
  options.experts = 4;
  options.edits = {test::leave_out("layers.0.ffn.experts.2.w2.input_scale")};
  const MoeModel model = read_model(tiny_checkpoint(folder, options));
  const LayerExperts& layer = model.require_layer(0);
  EXPECT_FALSE(layer.experts[2].down.act_dequant_mul.present());
  ASSERT_TRUE(layer.experts[2].down.dequant_mul.present());
  ASSERT_TRUE(layer.experts[2].up.act_dequant_mul.present());
  ASSERT_TRUE(layer.experts[3].down.act_dequant_mul.present());
  EXPECT_EQ(layer.experts[3].down.act_dequant_mul.tensor->name,
            "layers.0.ffn.experts.3.w2.input_scale");
}

TEST(DeepseekV4Nvfp4, ScalarsOfAnotherTypeOrLengthAreRefused) {
  for (const auto& [dtype, shape] :
       {std::pair{DType::bf16, Shape{}}, std::pair{DType::f32, Shape{2}},
        std::pair{DType::f64, Shape{}}, std::pair{DType::u32, Shape{}}}) {
    for (const char* leaf : {"weight_scale_2", "input_scale"}) {
      const TempFolder folder;
      TinyOptions options = nvfp4();
      const std::string name = "layers.0.ffn.experts.1.w3." + std::string(leaf);
      options.edits = {test::retype(name, dtype, shape)};
      const MoeModel model = read_model(tiny_checkpoint(folder, options));
      ASSERT_EQ(model.layers[0].problems.size(), 1U) << text_of(model.layers[0].problems);
      EXPECT_EQ(model.layers[0].problems[0].code, "MOXIE-M005");
      EXPECT_EQ(model.layers[0].problems[0].where.tensor, name);
    }
  }
  const TempFolder folder;
  TinyOptions options = nvfp4();
  options.edits = {test::retype("layers.0.ffn.experts.1.w3.weight_scale_2", DType::f32, {1})};
  EXPECT_NO_THROW((void)read_model(tiny_checkpoint(folder, options)).require_layer(0));
}

TEST(DeepseekV4Nvfp4, AConfigThatStillDeclaresMxfp4IsAFindingAndTheTensorsWin) {
  const TempFolder folder;
  TinyOptions options = nvfp4();
  options.config = tiny_config(TinyOptions{});  // as the native checkpoint declares itself
  const MoeModel model = read_model(tiny_checkpoint(folder, options));
  EXPECT_EQ(model.config.format, BlockFormat::mxfp4);
  EXPECT_EQ(model.format, BlockFormat::nvfp4);
  ASSERT_EQ(model.findings.size(), 1U) << text_of(model.findings);
  EXPECT_EQ(model.findings[0].code, "MOXIE-M003");
  EXPECT_EQ(model.findings[0].severity, Severity::warning);
  EXPECT_NE(model.findings[0].expected.find("mxfp4"), std::string::npos);
  EXPECT_EQ(model.findings[0].got, "nvfp4");
  expect_layer(model.require_layer(0), options, {"w1", "w3", "w2"});
}

// pit13, R-10: "present" means finite and greater than zero.
TEST(ReadScalar, RefusesWhatIsNoPositiveFiniteNumber) {
  const std::string name = "layers.0.ffn.experts.1.w3.weight_scale_2";
  const float inf = std::numeric_limits<float>::infinity();
  for (const float value :
       {0.0F, -0.0F, -1.0F, inf, -inf, std::numeric_limits<float>::quiet_NaN()}) {
    const TempFolder folder;
    TinyOptions options = nvfp4();
    options.edits = {test::set_scalar(name, value)};
    const MoeModel model = read_model(tiny_checkpoint(folder, options));
    const ScalarRef scalar = model.require_layer(0).experts[1].up.dequant_mul;
    const Error error = refusal_of([&] { (void)read_scalar(model.checkpoint, scalar); });
    EXPECT_EQ(error.code(), ErrorCode::input);
    EXPECT_EQ(error.findings()[0].code, "MOXIE-M007");
    EXPECT_EQ(error.findings()[0].where.tensor, name);
  }
  for (const float value : {1.0F / 2688.0F, std::numeric_limits<float>::denorm_min(), 1e38F}) {
    const TempFolder folder;
    TinyOptions options = nvfp4();
    options.edits = {test::set_scalar(name, value)};
    const MoeModel model = read_model(tiny_checkpoint(folder, options));
    EXPECT_EQ(read_scalar(model.checkpoint, model.layers[0].experts[1].up.dequant_mul), value);
  }
}

}  // namespace
}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// ModelOpt's NVFP4 under the prefixes and projection names of the families that use it.
#include <gtest/gtest.h>

#include <array>
#include <string>

#include "model/canonical.hpp"
#include "support/refusal.hpp"

namespace moxie {
namespace {

using test::expect_layer;
using test::has_code;
using test::TempFolder;
using test::text_of;
using test::tiny_checkpoint;
using test::TinyDialect;
using test::TinyOptions;

struct Naming {
  const char* model;
  const char* prefix;
  std::array<std::string, 3> projections;
  bool gated = true;
};

const Naming kNamings[] = {
    {"GLM", "model.layers.{}.mlp.experts", {"gate_proj", "up_proj", "down_proj"}},
    {"Kimi", "language_model.model.layers.{}.mlp.experts", {"gate_proj", "up_proj", "down_proj"}},
    {"Qwen", "model.language_model.layers.{}.mlp.experts", {"gate_proj", "up_proj", "down_proj"}},
    {"MiniMaxM2", "model.layers.{}.block_sparse_moe.experts", {"w1", "w3", "w2"}},
    {"MiniMaxM3", "language_model.model.layers.{}.block_sparse_moe.experts", {"w1", "w3", "w2"}},
    {"Nemotron", "backbone.layers.{}.mixer.experts", {"", "up_proj", "down_proj"}, false}};

class ModeloptNames : public testing::TestWithParam<Naming> {};

TEST_P(ModeloptNames, AreReadIntoGateUpAndDown) {
  const Naming& naming = GetParam();
  const TempFolder folder;
  const TinyOptions options{.dialect = TinyDialect::modelopt,
                            .layers = 12,  // two digits
                            .gated = naming.gated,
                            .prefix = naming.prefix,
                            .projections = naming.projections};
  const MoeModel model = read_model(tiny_checkpoint(folder, options));
  EXPECT_EQ(model.dialect, "modelopt");
  EXPECT_EQ(text_of(model.findings), "");
  ASSERT_EQ(model.layers.size(), 12U);
  for (int layer = 0; layer < 12; ++layer) {
    std::string prefix = naming.prefix;
    prefix.replace(prefix.find("{}"), 2, std::to_string(layer));
    EXPECT_EQ(model.layers[static_cast<std::size_t>(layer)].layer, layer);
    EXPECT_EQ(model.require_layer(layer).prefix, prefix);
    expect_layer(model.require_layer(layer), options, naming.projections);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, ModeloptNames, testing::ValuesIn(kNamings),
                         [](const auto& test) { return std::string(test.param.model); });

TEST(Modelopt, WeightOnlyCheckpointsHaveNoInputScale) {
  const TempFolder folder;
  const TinyOptions options{.dialect = TinyDialect::modelopt, .input_scales = false};
  const MoeModel model = read_model(tiny_checkpoint(folder, options));
  expect_layer(model.require_layer(0), options, {"gate_proj", "up_proj", "down_proj"});
}

// R-09, pit10: the direct dialect's scalars multiply as they are stored; nothing inverts them.
TEST(Modelopt, GlobalsAreMultipliersAsStored) {
  const TempFolder folder;
  const std::string stem = "model.layers.0.mlp.experts.0.up_proj.";
  const TinyOptions options{.dialect = TinyDialect::modelopt,
                            .edits = {test::set_scalar(stem + "weight_scale_2", 1.0F / 2688.0F),
                                      test::set_scalar(stem + "input_scale", 1.0F / 256.0F)}};
  const MoeModel model = read_model(tiny_checkpoint(folder, options));
  const Projection& up = model.require_layer(0).experts[0].up;
  EXPECT_EQ(read_scalar(model.checkpoint, up.dequant_mul), 1.0F / 2688.0F);
  EXPECT_EQ(read_scalar(model.checkpoint, up.act_dequant_mul), 1.0F / 256.0F);
}

// pit10: a reciprocal global under its own name is not taken for a multiplier.
TEST(Modelopt, TheReciprocalDialectIsNotMistakenForThisOne) {
  const TempFolder folder;
  const TinyOptions options{.dialect = TinyDialect::modelopt,
                            .edits = {test::rename(".weight_scale_2", ".weight_global_scale")}};
  const MoeModel model = read_model(tiny_checkpoint(folder, options));
  EXPECT_TRUE(has_code(model.layers.at(0).problems, "MOXIE-M004"));
}

TEST(Modelopt, Mxfp4ScalesInAnNvfp4CheckpointAreRefused) {  // pit9: one scale per 16, not per 32
  const TempFolder folder;
  const TinyOptions options{
      .dialect = TinyDialect::modelopt,
      .hidden = 64,
      .inter = 96,
      .edits = {test::retype("model.layers.0.mlp.experts.0.gate_proj.weight_scale", DType::f8_e4m3,
                             {96, 2})}};
  const MoeModel model = read_model(tiny_checkpoint(folder, options));
  ASSERT_TRUE(has_code(model.layers[0].problems, "MOXIE-M005"));
  EXPECT_EQ(model.layers[0].problems[0].expected, "F8_E4M3 [96, 4]");
}

// Exclude lists leave this block in another format; it is no main layer and no problem.
TEST(Modelopt, APredictionBlockAfterTheLastLayerIsLeftAlone) {
  const TempFolder folder;
  TinyOptions options{.dialect = TinyDialect::modelopt, .layers = 2};
  options.extra = {{"model.layers.2.mlp.experts.0.gate_proj.weight", DType::bf16, {1, 2}, "abcd"}};
  const MoeModel model = read_model(tiny_checkpoint(folder, options));
  EXPECT_EQ(model.layers.size(), 2U);
  EXPECT_EQ(text_of(model.findings), "");
}

// `mtp.layers.0` is block 0, not layer 0, wherever it stands among the files.
TEST(Modelopt, APredictionBlockWithItsOwnLayersIsNoMainLayer) {
  const TempFolder folder;
  TinyOptions options{.dialect = TinyDialect::modelopt,
                      .layers = 2,
                      .prefix = "mtp.layers.{}.mlp.experts",
                      .projections = {"gate_proj", "up_proj", "down_proj"},
                      .shards = test::TinyShards::without_index};
  options.edits = {[](test::TinyTensor& tensor) {  // the second written layer is the main one
    if (tensor.name.starts_with("mtp.layers.1.")) tensor.name.replace(0, 13, "model.layers.0.");
    return true;
  }};
  options.config = tiny_config(options).set("num_hidden_layers", 1);
  const MoeModel model = read_model(tiny_checkpoint(folder, options));
  ASSERT_EQ(model.layers.size(), 2U);
  EXPECT_EQ(model.require_layer(0).prefix, "model.layers.0.mlp.experts");
  EXPECT_FALSE(model.require_layer(0).mtp);
  EXPECT_EQ(model.require_layer(1).prefix, "mtp.layers.0.mlp.experts");
  EXPECT_TRUE(model.require_layer(1).mtp);
}

}  // namespace
}  // namespace moxie

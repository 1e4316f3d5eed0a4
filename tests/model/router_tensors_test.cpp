// SPDX-License-Identifier: Apache-2.0
// Router tensors lie beside the experts under each dialect's names; what is absent is no problem.
#include "model/router_tensors.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "model/canonical.hpp"
#include "synth/small_checkpoint.hpp"

namespace moxie {
namespace {

using test::TempFolder;
using test::text_of;
using test::tiny_checkpoint;
using test::TinyDialect;
using test::TinyOptions;
using test::TinyTensor;

TinyTensor tensor(std::string name) { return {std::move(name), DType::f32, {1}, "\1\2\3\4"}; }

std::string name_or_none(const TensorInfo* info) { return info == nullptr ? "none" : info->name; }

// The names found for a layer: weight, bias, table.
std::vector<std::string> found(const MoeModel& model, int layer) {
  const LayerExperts& experts = model.require_layer(layer);
  EXPECT_EQ(text_of(experts.problems), "");
  EXPECT_EQ(text_of(model.findings), "");
  return {name_or_none(experts.router.weight), name_or_none(experts.router.bias),
          name_or_none(experts.router.token_table)};
}

using Names = std::vector<std::string>;

TEST(RouterTensors, DeepseekNamesThemUnderItsGate) {
  const TempFolder folder;
  TinyOptions options{.layers = 3, .mtp_blocks = 1};
  options.extra = {tensor("layers.0.ffn.gate.weight"), tensor("layers.0.ffn.gate.tid2eid"),
                   tensor("layers.1.ffn.gate.weight"), tensor("layers.1.ffn.gate.bias"),
                   tensor("mtp.0.ffn.gate.weight"),    tensor("mtp.0.ffn.gate.bias")};
  const MoeModel model = read_model(tiny_checkpoint(folder, options));
  EXPECT_EQ(found(model, 0),
            (Names{"layers.0.ffn.gate.weight", "none", "layers.0.ffn.gate.tid2eid"}));
  EXPECT_EQ(found(model, 1), (Names{"layers.1.ffn.gate.weight", "layers.1.ffn.gate.bias", "none"}));
  EXPECT_EQ(found(model, 2), (Names{"none", "none", "none"}));
  EXPECT_EQ(found(model, 3), (Names{"mtp.0.ffn.gate.weight", "mtp.0.ffn.gate.bias", "none"}));
}

TEST(RouterTensors, TheConvertedNameOfDeepseeksBiasIsKnownAndItsOwnWins) {
  for (const auto dialect : {TinyDialect::deepseek_v4, TinyDialect::deepseek_v4_nvfp4}) {
    const TempFolder folder;
    TinyOptions options{.dialect = dialect};
    options.extra = {tensor("layers.0.ffn.gate.e_score_correction_bias"),
                     tensor("layers.1.ffn.gate.e_score_correction_bias"),
                     tensor("layers.1.ffn.gate.bias")};
    const MoeModel model = read_model(tiny_checkpoint(folder, options));
    EXPECT_EQ(found(model, 0)[1], "layers.0.ffn.gate.e_score_correction_bias");
    EXPECT_EQ(found(model, 1)[1], "layers.1.ffn.gate.bias");
  }
}

// There a plain bias would belong to the logits.
TEST(RouterTensors, ModeloptNamesACorrectionBiasAsSuchInEveryBlock) {
  for (const std::string block :
       {"model.layers.{}.mlp", "backbone.layers.{}.mixer", "model.layers.{}.block_sparse_moe"}) {
    const TempFolder folder;
    std::string first = block;
    first.replace(first.find("{}"), 2, "0");
    TinyOptions options{
        .dialect = TinyDialect::modelopt, .layers = 1, .prefix = block + ".experts"};
    options.extra = {tensor(first + ".gate.weight"), tensor(first + ".gate.bias")};
    const MoeModel plain = read_model(tiny_checkpoint(folder, options, "plain"));
    EXPECT_EQ(found(plain, 0), (Names{first + ".gate.weight", "none", "none"}));
    options.extra.push_back(tensor(first + ".gate.e_score_correction_bias"));
    const MoeModel model = read_model(tiny_checkpoint(folder, options));
    EXPECT_EQ(found(model, 0)[1], first + ".gate.e_score_correction_bias");
  }
}

TEST(RouterTensors, TheExpectedNamesFollowFromThePrefixOfTheExperts) {
  const RouterNames native = router_names("layers.7.ffn.experts");
  EXPECT_EQ(native.weight, "layers.7.ffn.gate.weight");
  EXPECT_EQ(native.bias,
            (Names{"layers.7.ffn.gate.bias", "layers.7.ffn.gate.e_score_correction_bias",
                   "layers.7.ffn.e_score_correction_bias"}));
  EXPECT_EQ(native.token_table, "layers.7.ffn.gate.tid2eid");
  EXPECT_EQ(router_names("model.layers.7.mlp.experts").bias,
            (Names{"model.layers.7.mlp.gate.e_score_correction_bias",
                   "model.layers.7.mlp.e_score_correction_bias"}));
}

TEST(RouterTensors, EveryLayerThatSynthWritesHasTheTensorsThatRouteIt) {
  for (const auto dialect : {DialectKind::deepseek, DialectKind::modelopt}) {
    const TempFolder folder;
    const auto options = test::small_options(BlockFormat::nvfp4, dialect);
    const MoeModel model = read_model(test::synthesised(folder, options));
    EXPECT_EQ(model.config.hash_layers, 1U);
    ASSERT_EQ(model.layers.size(), 2U);
    for (const LayerExperts& layer : model.layers) {
      ASSERT_NE(layer.router.weight, nullptr);
      EXPECT_EQ(layer.router.weight->shape, (Shape{3, 64}));
      EXPECT_EQ(layer.router.token_table != nullptr, layer.layer == 0);
      EXPECT_EQ(layer.router.bias != nullptr, layer.layer == 1);
    }
  }
}

TEST(RouterTensors, SoftmaxKindsHaveARouterInsteadOfAGate) {
  const RouterNames oss = router_names("model.layers.7.mlp.experts", RouterKind::topk_softmax);
  EXPECT_EQ(oss.weight, "model.layers.7.mlp.router.weight");
  EXPECT_EQ(oss.bias, Names{"model.layers.7.mlp.router.bias"});
  EXPECT_EQ(oss.token_table, "");
  EXPECT_EQ(router_names("block.7.mlp", RouterKind::topk_softmax).bias,
            Names{"block.7.mlp.gate.bias"});
  const RouterNames gemma =
      router_names("model.language_model.layers.7.experts", RouterKind::scaled_softmax);
  EXPECT_EQ(gemma.weight, "model.language_model.layers.7.router.proj.weight");
  EXPECT_EQ(gemma.input_scale, "model.language_model.layers.7.router.scale");
  EXPECT_EQ(gemma.expert_scale, "model.language_model.layers.7.router.per_expert_scale");
  EXPECT_TRUE(gemma.bias.empty());
}

}  // namespace
}  // namespace moxie

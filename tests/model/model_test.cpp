// SPDX-License-Identifier: Apache-2.0
// Config against tensors: what matches no dialect, what is absent, and what disagrees.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "model/canonical.hpp"
#include "support/refusal.hpp"

namespace moxie {
namespace {

using test::code_of;
using test::has_code;
using test::refusal_of;
using test::TempFolder;
using test::text_of;
using test::tiny_checkpoint;
using test::TinyDialect;
using test::TinyOptions;
using test::TinyShards;

TinyOptions eight_experts() { return {.experts = 8, .layers = 1}; }

TEST(ReadModel, AConfigAloneGivesShapesAndTheDeclaredFormat) {
  const TempFolder folder;
  const auto path = folder.write("some.json", tiny_config(TinyOptions{}).dump());
  const MoeModel model = read_model(open_checkpoint(path));
  EXPECT_EQ(model.config.hidden, 64U);
  EXPECT_EQ(model.format, BlockFormat::mxfp4);
  EXPECT_TRUE(model.layers.empty());
  EXPECT_TRUE(model.dialect.empty());
  EXPECT_TRUE(model.findings.empty());
  const Error error = refusal_of([&] { (void)model.require_layer(0); });
  EXPECT_EQ(error.code(), ErrorCode::input);
  EXPECT_EQ(code_of(error), "MOXIE-M011");
  EXPECT_EQ(error.findings()[0].where.layer, 0);
}

TEST(ReadModel, ALayerThatDoesNotExistIsRefusedByNumber) {
  const TempFolder folder;
  const MoeModel model = read_model(tiny_checkpoint(folder, {}));
  const Error error = refusal_of([&] { (void)model.require_layer(2); });
  EXPECT_EQ(code_of(error), "MOXIE-M011");
  EXPECT_EQ(error.findings()[0].where.layer, 2);
}

TEST(ReadModel, NoExpertTensorThatMatchesIsRefusedWithTheNamesSeen) {
  for (const char* name : {"layers.0.ffn.experts.gate_up_fused", "experts.gate_up_fused"}) {
    const TempFolder folder;
    TinyOptions options = eight_experts();
    options.edits = {test::leave_out("")};
    options.extra = {{name, DType::u8, {2}, "ab"}};
    options.edits = {
        [](test::TinyTensor& tensor) { return tensor.name.find(".w") == std::string::npos; }};
    const Checkpoint checkpoint = tiny_checkpoint(folder, options);
    const Error error = refusal_of([&] { (void)read_model(checkpoint); });
    EXPECT_EQ(error.code(), ErrorCode::input);
    const Finding& finding = error.findings().front();
    EXPECT_NE(finding.message.find("0 of 24"), std::string::npos) << finding.message;
    EXPECT_NE(finding.expected.find("layers.0.ffn.experts.0."), std::string::npos);
    EXPECT_NE(finding.got.find(name), std::string::npos) << finding.got;
  }
}

TEST(ReadModel, OneMissingWeightOf24IsRefusedByName) {
  const TempFolder folder;
  TinyOptions options = eight_experts();
  options.edits = {test::rename("experts.5.w3.weight", "experts.5.w3_fused.weight")};
  const MoeModel model = read_model(tiny_checkpoint(folder, options));
  const Error error = refusal_of([&] { (void)model.require_layer(0); });
  const Finding& finding = error.findings().front();
  EXPECT_EQ(finding.code, "MOXIE-M004");
  EXPECT_EQ(finding.where.expert, 5U);
  // 24 weights and 24 scales are expected.
  EXPECT_NE(finding.message.find("47 of 48"), std::string::npos) << finding.message;
  EXPECT_NE(finding.message.find("layers.0.ffn.experts.5.w3.weight"), std::string::npos);
}

TEST(ReadModel, ManyMissingTensorsAreCountedAndTheFirstAreNamed) {
  const TempFolder folder;
  TinyOptions options = eight_experts();
  options.edits = {test::leave_out("w2.scale")};
  const MoeModel model = read_model(tiny_checkpoint(folder, options));
  ASSERT_EQ(model.layers.at(0).problems.size(), 1U);
  const Finding& finding = model.layers[0].problems[0];
  EXPECT_NE(finding.message.find("40 of 48"), std::string::npos) << finding.message;
  EXPECT_EQ(finding.where.expert, 0U);
  EXPECT_NE(finding.message.find("experts.2.w2.scale"), std::string::npos);
  EXPECT_EQ(finding.message.find("experts.3.w2.scale"), std::string::npos);
}

TEST(ReadModel, AnUnknownDialectIsRefusedWithTheLeavesSeen) {
  const TempFolder folder;
  TinyOptions options = eight_experts();
  options.edits = {test::rename(".w1.", ".first."), test::rename(".w2.", ".second."),
                   test::rename(".w3.", ".third.")};
  const Checkpoint checkpoint = tiny_checkpoint(folder, options);
  const Error error = refusal_of([&] { (void)read_model(checkpoint); });
  EXPECT_EQ(error.code(), ErrorCode::input);
  EXPECT_EQ(code_of(error), "MOXIE-M002");
  EXPECT_NE(error.findings()[0].got.find("first.weight"), std::string::npos);
  EXPECT_NE(error.findings()[0].hint.find("deepseek-v4"), std::string::npos);
}

// Experts of another type, four times as narrow as they should be, and a config that is silent.
TinyOptions undeclared(DType dtype) {
  TinyOptions options{.layers = 1};
  options.edits = {test::leave_out(".scale"), [dtype](test::TinyTensor& tensor) {
                     tensor.dtype = dtype;
                     tensor.shape.back() /= 2;
                     return true;
                   }};
  Json config = tiny_config(options);
  config.erase("quantization_config");
  config.erase("expert_dtype");
  options.config = config;
  return options;
}

TEST(ReadModel, ExpertsOfAnUnknownTypeAreAFindingAndNoFormat) {
  const TempFolder folder;
  const MoeModel model = read_model(tiny_checkpoint(folder, undeclared(DType::u16)));
  EXPECT_FALSE(model.format.has_value());
  EXPECT_TRUE(model.layers.empty());
  ASSERT_EQ(model.findings.size(), 1U);
  EXPECT_EQ(model.findings[0].code, "MOXIE-M010");
  EXPECT_EQ(model.findings[0].severity, Severity::warning);
}

TEST(ReadModel, Bf16ExpertsAreDenseAndTheirShapeIsChecked) {
  const TempFolder folder;
  const MoeModel model = read_model(tiny_checkpoint(folder, undeclared(DType::bf16)));
  EXPECT_FALSE(model.format.has_value());
  EXPECT_TRUE(model.layers.empty());
  EXPECT_TRUE(model.findings.empty());
  ASSERT_EQ(model.dense.size(), 1U);
  EXPECT_EQ(model.dense[0].format, DenseFormat::bf16);
  ASSERT_FALSE(model.dense[0].problems.empty());
  EXPECT_EQ(model.dense[0].problems[0].code, "MOXIE-M005");
  EXPECT_EQ(model.dense[0].problems[0].where.layer, 0);
}

TEST(ReadModel, TensorsDecideWhenTheConfigDeclaresNothing) {
  const TempFolder folder;
  TinyOptions options{.dialect = TinyDialect::modelopt};
  Json config = tiny_config(options);
  config.erase("quantization_config");
  options.config = config;
  const MoeModel model = read_model(tiny_checkpoint(folder, options));
  EXPECT_FALSE(model.config.format.has_value());
  EXPECT_EQ(model.format, BlockFormat::nvfp4);
  EXPECT_EQ(model.dialect, "modelopt");
  EXPECT_NO_THROW((void)model.require_layer(0));
}

TEST(ReadModel, LayersWithoutTensorsAreCounted) {
  const TempFolder folder;
  TinyOptions options{.layers = 2};
  options.config = tiny_config(options).set("num_hidden_layers", 5);
  const MoeModel model = read_model(tiny_checkpoint(folder, options));
  EXPECT_EQ(model.layers.size(), 2U);
  ASSERT_EQ(model.findings.size(), 1U) << text_of(model.findings);
  EXPECT_EQ(model.findings[0].code, "MOXIE-M012");
  EXPECT_EQ(model.findings[0].where.layer, 2);
  EXPECT_EQ(model.findings[0].got, "2");
  EXPECT_EQ(code_of(refusal_of([&] { (void)model.require_layer(2); })), "MOXIE-M011");
}

// an absent shard stops the layers that depend on it and no other.
TEST(ReadModel, AnAbsentShardIsAProblemOfItsLayerOnly) {
  struct Naming {
    TinyDialect dialect;
    const char* prefix;
    std::array<std::string, 3> projections;
  };
  for (const Naming& naming :
       {Naming{TinyDialect::deepseek_v4, "", {}}, Naming{TinyDialect::deepseek_v4_nvfp4, "", {}},
        Naming{TinyDialect::modelopt, "", {}}, Naming{TinyDialect::compressed_nvfp4, "", {}},
        Naming{TinyDialect::compressed_mxfp4, "", {}}, Naming{TinyDialect::quark, "", {}},
        Naming{TinyDialect::modelopt,
               "model.layers.{}.block_sparse_moe.experts",
               {"w1", "w3", "w2"}}}) {
    for (const int absent : {0, 1, 2}) {
      const TempFolder folder;
      const TinyOptions options{.dialect = naming.dialect,
                                .layers = 3,
                                .prefix = naming.prefix,
                                .projections = naming.projections,
                                .shards = TinyShards::indexed};
      const auto path = test::write_tiny(folder.path() / "model", options);
      const std::string shard = "model-" + std::to_string(absent) + ".safetensors";
      std::filesystem::remove(path / shard);
      const MoeModel model = read_model(open_checkpoint(path));
      ASSERT_EQ(model.layers.size(), 3U) << naming.prefix << " without shard " << absent;
      for (const LayerExperts& layer : model.layers) {
        if (layer.layer != absent) {
          EXPECT_EQ(text_of(layer.problems), "");
          continue;
        }
        const Error error = refusal_of([&] { (void)model.require_layer(absent); });
        EXPECT_EQ(error.code(), ErrorCode::input);
        ASSERT_EQ(error.findings().size(), 1U) << text_of(error.findings());
        EXPECT_EQ(code_of(error), "MOXIE-C010");
        EXPECT_NE(error.findings()[0].where.file.find(shard), std::string::npos);
        EXPECT_EQ(error.findings()[0].where.layer, absent);
      }
    }
  }
}

TEST(ReadModel, AShardThatHoldsAPartOfALayerIsCounted) {
  const TempFolder folder;
  TinyOptions options{.layers = 1, .shards = TinyShards::indexed};
  options.edits = {test::leave_out("experts.1.w1.weight"), test::leave_out("experts.1.w1.scale")};
  options.extra = {
      {"layers.0.ffn.experts.1.w1.weight", DType::i8, {96, 32}, std::string(3072, 'a')},
      {"layers.0.ffn.experts.1.w1.scale", DType::f8_e8m0, {96, 2}, std::string(192, 'a')}};
  options.edits = {[moved = 0](test::TinyTensor& tensor) mutable {
    return tensor.name.find("experts.1.w1") == std::string::npos || ++moved > 2;
  }};
  const auto path = test::write_tiny(folder.path() / "model", options);
  std::filesystem::remove(path / "model-1.safetensors");
  const MoeModel model = read_model(open_checkpoint(path));
  ASSERT_EQ(model.layers.at(0).problems.size(), 1U) << text_of(model.layers[0].problems);
  EXPECT_EQ(model.layers[0].problems[0].code, "MOXIE-C010");
  EXPECT_NE(model.layers[0].problems[0].message.find("2 tensors"), std::string::npos);
}

TEST(ReadModel, AWholeModelWithoutShardsStillHasItsConfig) {
  const TempFolder folder;
  const TinyOptions options{.shards = TinyShards::indexed};
  const auto path = test::write_tiny(folder.path() / "model", options);
  for (const char* shard : {"model-0.safetensors", "model-1.safetensors"})
    std::filesystem::remove(path / shard);
  const MoeModel model = read_model(open_checkpoint(path));
  EXPECT_EQ(model.format, BlockFormat::mxfp4);
  for (const int layer : {0, 1})
    EXPECT_EQ(code_of(refusal_of([&] { (void)model.require_layer(layer); })), "MOXIE-C010");
}

TEST(ReadModel, LayersInDifferentFormatsAreAFinding) {
  const TempFolder folder;
  TinyOptions options{.dialect = TinyDialect::deepseek_v4_nvfp4, .layers = 2};
  TinyOptions native{.layers = 2};
  options.edits = {[](test::TinyTensor& t) { return t.name.starts_with("layers.0."); }};
  native.edits = {[](test::TinyTensor& t) { return t.name.starts_with("layers.1."); }};
  const auto path = test::write_tiny(folder.path() / "model", options);
  const auto other = test::write_tiny(folder.path() / "native", native);
  std::filesystem::copy(other / "model.safetensors", path / "more.safetensors");
  const MoeModel model = read_model(open_checkpoint(path));
  EXPECT_EQ(model.format, BlockFormat::nvfp4);
  EXPECT_TRUE(has_code(model.findings, "MOXIE-M009")) << text_of(model.findings);
  EXPECT_EQ(model.require_layer(0).format, BlockFormat::nvfp4);
  EXPECT_EQ(model.require_layer(1).format, BlockFormat::mxfp4);
}

// What the config does not name is never dropped silently.
TEST(ReadModel, ALayerWithMoreExpertsThanTheConfigSaysIsRefused) {
  const TempFolder folder;
  TinyOptions options{.experts = 4, .layers = 1};
  options.config = tiny_config(options).set("n_routed_experts", 3);
  const MoeModel model = read_model(tiny_checkpoint(folder, options));
  const Error error = refusal_of([&] { (void)model.require_layer(0); });
  EXPECT_EQ(error.code(), ErrorCode::input);
  EXPECT_EQ(code_of(error), "MOXIE-M003");
  EXPECT_EQ(error.findings()[0].got, "expert 3");
}

TEST(ReadModel, LayersThatTheConfigDoesNotNameAreAWarning) {
  const TempFolder folder;
  TinyOptions options{.layers = 3};
  options.config = tiny_config(options).set("num_hidden_layers", 1);
  const MoeModel model = read_model(tiny_checkpoint(folder, options));
  EXPECT_EQ(model.layers.size(), 1U);
  ASSERT_EQ(model.findings.size(), 1U);
  EXPECT_EQ(model.findings[0].code, "MOXIE-M015");
  EXPECT_EQ(model.findings[0].got, "layers.1.ffn.experts, layers.2.ffn.experts");
}

// A bias, an input scale of a smoothing method: what is not understood may change the result.
TEST(ReadModel, AnExpertTensorThatTheDialectDoesNotKnowIsRefusedByName) {
  for (const char* leaf : {"w2.bias", "w4.weight", "w1.weight_scale_2", "w1.pre_quant_scale"}) {
    const TempFolder folder;
    TinyOptions options{.layers = 1};
    options.extra = {{"layers.0.ffn.experts.1." + std::string(leaf), DType::f32, {1}, "abcd"}};
    const MoeModel model = read_model(tiny_checkpoint(folder, options));
    const Error error = refusal_of([&] { (void)model.require_layer(0); });
    EXPECT_EQ(code_of(error), "MOXIE-M013");
    EXPECT_EQ(error.findings()[0].got, leaf);
  }
}

TEST(ReadModel, TwoGroupsThatClaimOneLayerAreRefusedWithBothPrefixes) {
  const TempFolder folder;
  TinyOptions options{.layers = 1};
  options.extra = {
      {"aaa.layers.0.ffn.experts.0.w1.weight", DType::i8, {96, 32}, std::string(96 * 32, 'a')}};
  const MoeModel model = read_model(tiny_checkpoint(folder, options));
  const Error error = refusal_of([&] { (void)model.require_layer(0); });
  EXPECT_TRUE(test::has_code(error.findings(), "MOXIE-M014")) << error.what();
}

TEST(ReadModel, OneLargeExpertIdOfABlockMakesNoRoomForAllBelowIt) {
  const TempFolder folder;
  TinyOptions options{.layers = 1};
  options.extra = {{"mtp.0.ffn.experts.65535.w1.weight", DType::i8, {1}, "a"},
                   {"mtp.0.ffn.experts.65535.w1.scale", DType::f8_e8m0, {1}, "a"}};
  const MoeModel model = read_model(tiny_checkpoint(folder, options));
  ASSERT_EQ(model.layers.size(), 2U);
  EXPECT_LE(model.layers[1].experts.size(), 2U);
  EXPECT_EQ(code_of(refusal_of([&] { (void)model.require_layer(1); })), "MOXIE-M003");
}

TEST(ReadModel, SharedExpertsAndRoutersAreNoRoutedExperts) {
  const TempFolder folder;
  TinyOptions options{.layers = 1};
  options.extra = {{"layers.0.ffn.shared_experts.w1.weight", DType::u8, {1}, "a"},
                   {"layers.0.ffn.gate.weight", DType::u8, {1}, "b"}};
  const MoeModel model = read_model(tiny_checkpoint(folder, options));
  EXPECT_EQ(model.layers.size(), 1U);
  EXPECT_EQ(text_of(model.findings), "");
}

}  // namespace
}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// compressed-tensors in both formats: names, reciprocal scalars, and what its config declares.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>

#include "formats/block_format.hpp"
#include "model/canonical.hpp"
#include "support/refusal.hpp"

namespace moxie {
namespace {

using test::code_of;
using test::expect_layer;
using test::has_code;
using test::refusal_of;
using test::TempFolder;
using test::text_of;
using test::tiny_checkpoint;
using test::TinyDialect;
using test::TinyOptions;

constexpr TinyDialect kBoth[] = {TinyDialect::compressed_nvfp4, TinyDialect::compressed_mxfp4};
const std::string kUp = "model.layers.0.mlp.experts.0.up_proj.";

struct Naming {
  const char* prefix;
  std::array<std::string, 3> projections;
  bool gated = true;
};

TEST(CompressedTensors, IsReadIntoGateUpAndDownUnderEveryFamilysNames) {
  for (const TinyDialect dialect : kBoth) {
    for (const Naming& naming :
         {Naming{"model.layers.{}.mlp.experts", {"gate_proj", "up_proj", "down_proj"}},
          Naming{"language_model.model.layers.{}.mlp.experts",
                 {"gate_proj", "up_proj", "down_proj"}},
          Naming{"model.layers.{}.block_sparse_moe.experts", {"w1", "w3", "w2"}},
          Naming{"layers.{}.ffn.experts", {"w1", "w3", "w2"}},
          Naming{"backbone.layers.{}.mixer.experts", {"", "up_proj", "down_proj"}, false}}) {
      const TempFolder folder;
      const TinyOptions options{.dialect = dialect,
                                .layers = 11,
                                .gated = naming.gated,
                                .prefix = naming.prefix,
                                .projections = naming.projections};
      const MoeModel model = read_model(tiny_checkpoint(folder, options));
      SCOPED_TRACE(naming.prefix);
      EXPECT_EQ(model.dialect, "compressed-tensors");
      EXPECT_EQ(model.format, test::is_nvfp4(dialect) ? BlockFormat::nvfp4 : BlockFormat::mxfp4);
      EXPECT_EQ(text_of(model.findings), "");
      ASSERT_EQ(model.layers.size(), 11U);
      for (const LayerExperts& layer : model.layers)
        expect_layer(layer, options, naming.projections);
    }
  }
}

// The byte and the type that has a name are the same scale.
TEST(CompressedTensors, Mxfp4ScalesMayHaveTheirOwnType) {
  const TempFolder folder;
  const TinyOptions options{.dialect = TinyDialect::compressed_mxfp4,
                            .edits = {[](test::TinyTensor& tensor) {
                              if (tensor.name.ends_with("scale")) tensor.dtype = DType::f8_e8m0;
                              return true;
                            }}};
  const MoeModel model = read_model(tiny_checkpoint(folder, options));
  expect_layer(model.require_layer(0), options, {"gate_proj", "up_proj", "down_proj"});
  EXPECT_EQ(model.format, BlockFormat::mxfp4);
}

// pit10: 2688 under the inverse name is 1/2688 under the direct one; code 7 under scale 448 is 1.
TEST(CompressedTensors, R09_TheReciprocalOfAStoredGlobalMultiplies) {
  const TempFolder folder;
  const MoeModel inverse =
      read_model(tiny_checkpoint(folder,
                                 {.dialect = TinyDialect::compressed_nvfp4,
                                  .edits = {test::set_scalar(kUp + "weight_global_scale", 2688.0F),
                                            test::set_scalar(kUp + "input_global_scale", 256.0F)}},
                                 "inverse"));
  const MoeModel direct = read_model(
      tiny_checkpoint(folder,
                      {.dialect = TinyDialect::modelopt,
                       .edits = {test::set_scalar(kUp + "weight_scale_2", 0.00037202382F),
                                 test::set_scalar(kUp + "input_scale", 1.0F / 256.0F)}},
                      "direct"));
  for (const MoeModel* model : {&inverse, &direct}) {
    const Projection& up = model->require_layer(0).experts[0].up;
    const double global = read_scalar(model->checkpoint, up.dequant_mul);
    EXPECT_NEAR(dequantise(7, 0x7E, BlockFormat::nvfp4, global), 1.0, 0x1p-23) << model->dialect;
    EXPECT_EQ(read_scalar(model->checkpoint, up.act_dequant_mul), 0x1p-8F) << model->dialect;
  }
}

// One fp32 rounding: no other float is nearer to the quotient.
TEST(CompressedTensors, R09_TheReciprocalIsRoundedOnce) {
  const auto seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int i = 0; i < 1000; ++i) {
    const float stored = std::ldexp(1.0F + static_cast<float>(random() % (1U << 23)) * 0x1p-23F,
                                    static_cast<int>(random() % 40) - 20);
    const float got = ScalarRef{.tensor = nullptr, .reciprocal = true}.multiplier(stored);
    const double exact = 1.0 / static_cast<double>(stored);
    for (const float other : {std::nextafter(got, 0.0F), std::nextafter(got, INFINITY)}) {
      EXPECT_LE(std::abs(got - exact), std::abs(other - exact)) << stored;
    }
    EXPECT_EQ(ScalarRef{}.multiplier(stored), stored);
  }
}

TEST(CompressedTensors, GateAndUpKeepTheirOwnGlobals) {
  const TempFolder folder;
  const std::string expert = "model.layers.0.mlp.experts.1.";
  const MoeModel model = read_model(tiny_checkpoint(
      folder, {.dialect = TinyDialect::compressed_nvfp4,
               .edits = {test::set_scalar(expert + "gate_proj.weight_global_scale", 4.0F),
                         test::set_scalar(expert + "up_proj.weight_global_scale", 0.125F),
                         test::set_scalar(expert + "down_proj.weight_global_scale", 32.0F)}}));
  const ExpertTensors& tensors = model.require_layer(0).experts[1];
  EXPECT_EQ(read_scalar(model.checkpoint, tensors.gate.dequant_mul), 0.25F);
  EXPECT_EQ(read_scalar(model.checkpoint, tensors.up.dequant_mul), 8.0F);
  EXPECT_EQ(read_scalar(model.checkpoint, tensors.down.dequant_mul), 0.03125F);
}

// pit13: neither 1/0 nor 1/Inf becomes a multiplier.
TEST(CompressedTensors, AGlobalWithoutAUsableReciprocalIsRefusedByName) {
  for (const float value :
       {0.0F, -0.0F, -2.0F, INFINITY, -INFINITY, std::numeric_limits<float>::quiet_NaN(),
        std::numeric_limits<float>::denorm_min(), 0x1p-128F}) {
    const TempFolder folder;
    const MoeModel model = read_model(
        tiny_checkpoint(folder, {.dialect = TinyDialect::compressed_nvfp4,
                                 .edits = {test::set_scalar(kUp + "weight_global_scale", value)}}));
    const ScalarRef scalar = model.require_layer(0).experts[0].up.dequant_mul;
    const Error error = refusal_of([&] { (void)read_scalar(model.checkpoint, scalar); });
    EXPECT_EQ(error.code(), ErrorCode::input);
    EXPECT_EQ(code_of(error), "MOXIE-M007") << value;
    EXPECT_EQ(error.findings()[0].where.tensor, kUp + "weight_global_scale");
  }
  for (const float value : {0x1p-127F, 0x1p127F, std::numeric_limits<float>::max()}) {
    const TempFolder folder;
    const MoeModel model = read_model(
        tiny_checkpoint(folder, {.dialect = TinyDialect::compressed_nvfp4,
                                 .edits = {test::set_scalar(kUp + "weight_global_scale", value)}}));
    const ScalarRef scalar = model.require_layer(0).experts[0].up.dequant_mul;
    EXPECT_EQ(read_scalar(model.checkpoint, scalar), 1.0F / value);
  }
}

TEST(CompressedTensors, AnAbsentScalarIsNoNumber) {
  const TempFolder folder;
  const MoeModel model = read_model(
      tiny_checkpoint(folder, {.dialect = TinyDialect::compressed_nvfp4, .input_scales = false}));
  const ScalarRef& scalar = model.require_layer(0).experts[0].up.act_dequant_mul;
  EXPECT_FALSE(scalar.present());
  EXPECT_EQ(code_of(refusal_of([&] { (void)read_scalar(model.checkpoint, scalar); })),
            "MOXIE-M006");
}

TEST(CompressedTensors, AGlobalUnderTheDirectNameIsNotTakenForAReciprocal) {
  const TempFolder folder;
  const MoeModel model = read_model(
      tiny_checkpoint(folder, {.dialect = TinyDialect::compressed_nvfp4,
                               .edits = {test::rename("weight_global_scale", "weight_scale_2")}}));
  EXPECT_TRUE(has_code(model.layers.at(0).problems, "MOXIE-M004"));
}

TEST(CompressedTensors, ConfigAndTensorsOfAnotherFormatAreAFindingAndTheTensorsWin) {
  for (const TinyDialect dialect : kBoth) {
    const TempFolder folder;
    TinyOptions options{.dialect = dialect};
    const TinyDialect other = test::is_nvfp4(dialect) ? kBoth[1] : kBoth[0];
    options.config = tiny_config(TinyOptions{.dialect = other});
    const MoeModel model = read_model(tiny_checkpoint(folder, options));
    ASSERT_EQ(model.findings.size(), 1U) << text_of(model.findings);
    EXPECT_EQ(model.findings[0].code, "MOXIE-M003");
    EXPECT_EQ(model.findings[0].severity, Severity::warning);
    EXPECT_EQ(model.format, test::is_nvfp4(dialect) ? BlockFormat::nvfp4 : BlockFormat::mxfp4);
    expect_layer(model.require_layer(0), options, {"gate_proj", "up_proj", "down_proj"});
  }
}

// The same format, but a scalar means the opposite.
TEST(CompressedTensors, ConfigAndTensorsOfAnotherDialectAreAFindingAndTheTensorsWin) {
  for (const auto& [written, declared] :
       {std::pair{TinyDialect::compressed_nvfp4, TinyDialect::modelopt},
        std::pair{TinyDialect::modelopt, TinyDialect::compressed_nvfp4},
        std::pair{TinyDialect::compressed_mxfp4, TinyDialect::quark},
        std::pair{TinyDialect::quark, TinyDialect::compressed_mxfp4}}) {
    const TempFolder folder;
    TinyOptions options{.dialect = written};
    options.config = tiny_config(TinyOptions{.dialect = declared});
    const MoeModel model = read_model(tiny_checkpoint(folder, options));
    ASSERT_EQ(model.findings.size(), 1U) << text_of(model.findings);
    EXPECT_EQ(model.findings[0].code, "MOXIE-M003");
    EXPECT_EQ(model.findings[0].got, model.dialect);
    expect_layer(model.require_layer(0), options, {"gate_proj", "up_proj", "down_proj"});
  }
}

TEST(CompressedTensors, AConfigThatDeclaresNothingLeavesItToTheTensors) {
  for (const TinyDialect dialect : kBoth) {
    const TempFolder folder;
    TinyOptions options{.dialect = dialect};
    options.config = tiny_config(options);
    options.config->erase("quantization_config");
    const MoeModel model = read_model(tiny_checkpoint(folder, options));
    EXPECT_EQ(text_of(model.findings), "");
    EXPECT_EQ(model.dialect, "compressed-tensors");
  }
}

TEST(CompressedTensors, ATensorOfAWrongTypeIsSaidUnderTheDeclaredDialect) {
  const TempFolder folder;
  const MoeModel model =
      read_model(tiny_checkpoint(folder, {.dialect = TinyDialect::compressed_nvfp4,
                                          .layers = 1,
                                          .edits = {[](test::TinyTensor& tensor) {
                                            if (!tensor.name.ends_with("weight_scale")) return true;
                                            tensor.dtype = DType::f8_e5m2;
                                            return true;
                                          }}}));
  EXPECT_EQ(model.layers.at(0).dialect, "compressed-tensors");
  ASSERT_TRUE(has_code(model.layers[0].problems, "MOXIE-M005"));
  EXPECT_EQ(model.layers[0].problems[0].expected, "F8_E4M3 [96, 4]");
}

// The integer formats of compressed-tensors share the codes' name.
TEST(CompressedTensors, PackedIntegersAreNoFp4) {
  const TempFolder folder;
  TinyOptions options{.dialect = TinyDialect::compressed_mxfp4,
                      .edits = {[](test::TinyTensor& tensor) {
                        if (!tensor.name.ends_with("weight_packed")) return true;
                        tensor.dtype = DType::i32;
                        tensor.shape[1] /= 4;
                        return true;
                      }}};
  options.config = tiny_config(options);
  options.config->set(
      "quantization_config",
      Json::object().set("quant_method", "compressed-tensors").set("format", "pack-quantized"));
  const MoeModel model = read_model(tiny_checkpoint(folder, options));
  EXPECT_TRUE(model.layers.empty());
  EXPECT_TRUE(has_code(model.findings, "MOXIE-M010"));
}

TEST(CompressedTensors, NothingOnDiskIsExpectedUnderTheDeclaredNames) {
  const TempFolder folder;
  TinyOptions options{.dialect = TinyDialect::compressed_nvfp4};
  options.extra = {{"lm_head.weight", DType::bf16, {1, 1}, "ab"}};
  options.edits = {[](test::TinyTensor& tensor) { return tensor.name == "lm_head.weight"; }};
  const auto folder_path = test::write_tiny(folder.path() / "model", options);
  const Error error = refusal_of([&] { read_model(open_checkpoint(folder_path)); });
  EXPECT_EQ(code_of(error), "MOXIE-M004");
  EXPECT_TRUE(error.findings()[0].expected.starts_with(
      "model.layers.0.mlp.experts.0.up_proj.weight_packed"))
      << error.findings()[0].expected;
}

// Kimi-K3: sizes under text_config, and experts that see a latent width.
TEST(CompressedTensors, ExpertsOfALatentWidthAreReadAtThatWidth) {
  const TempFolder folder;
  TinyOptions options{.dialect = TinyDialect::compressed_mxfp4,
                      .hidden = 32,
                      .inter = 96,
                      .layers = 2,
                      .prefix = "language_model.model.layers.{}.mlp.experts"};
  Json text;
  text.set("model_type", "kimi_linear")
      .set("hidden_size", 64)
      .set("routed_expert_hidden_size", 32)
      .set("moe_intermediate_size", 96)
      .set("num_experts", options.experts)
      .set("num_experts_per_token", 2)
      .set("num_hidden_layers", 2)
      .set("quantization_config", test::tiny_quantization(options.dialect));
  options.config = Json::object().set("model_type", "kimi_k3").set("text_config", std::move(text));
  const MoeModel model = read_model(tiny_checkpoint(folder, options));
  EXPECT_EQ(text_of(model.findings), "");
  EXPECT_EQ(model.config.hidden, 32U);
  expect_layer(model.require_layer(1), options, {"gate_proj", "up_proj", "down_proj"});
}

}  // namespace
}  // namespace moxie

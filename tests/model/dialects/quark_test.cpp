// SPDX-License-Identifier: Apache-2.0
// Quark's MXFP4, which has ModelOpt's names and neither its format nor its scalars.
#include <gtest/gtest.h>

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

test::TinyEdit retype_scales(DType dtype) {
  return [dtype](test::TinyTensor& tensor) {
    if (tensor.name.ends_with("weight_scale")) tensor.dtype = dtype;
    return true;
  };
}

TEST(Quark, ScalesAreBytesOrHaveTheirOwnTypeUnderEitherNaming) {
  for (const DType dtype : {DType::u8, DType::f8_e8m0}) {
    for (const auto& projections :
         {std::array<std::string, 3>{"gate_proj", "up_proj", "down_proj"}, {"w1", "w3", "w2"}}) {
      const TempFolder folder;
      const TinyOptions options{.dialect = TinyDialect::quark,
                                .projections = projections,
                                .edits = {retype_scales(dtype)}};
      const MoeModel model = read_model(tiny_checkpoint(folder, options));
      EXPECT_EQ(model.dialect, "quark");
      EXPECT_EQ(model.format, BlockFormat::mxfp4);
      EXPECT_EQ(text_of(model.findings), "");
      for (const LayerExperts& layer : model.layers) expect_layer(layer, options, projections);
    }
  }
}

// Without a config that helps, `weight` and `weight_scale` are told apart by the scales' type.
TEST(Quark, IsToldFromModeloptByTheTypeOfTheScales) {
  for (const TinyDialect dialect : {TinyDialect::quark, TinyDialect::modelopt}) {
    const TempFolder folder;
    TinyOptions options{.dialect = dialect};
    options.config = tiny_config(options);
    options.config->erase("quantization_config");
    const MoeModel model = read_model(tiny_checkpoint(folder, options));
    EXPECT_EQ(model.dialect, dialect == TinyDialect::quark ? "quark" : "modelopt");
    expect_layer(model.require_layer(0), options, {"gate_proj", "up_proj", "down_proj"});
  }
}

// NVFP4 whose scales were written as bytes has a global: 16 values under an exponent are not read.
TEST(Quark, ByteScalesBesideAGlobalAreNotMxfp4) {
  const TempFolder folder;
  const MoeModel model = read_model(tiny_checkpoint(
      folder, {.dialect = TinyDialect::modelopt, .edits = {retype_scales(DType::u8)}}));
  EXPECT_EQ(model.layers.at(0).dialect, "modelopt");
  ASSERT_TRUE(has_code(model.layers[0].problems, "MOXIE-M005"));
  EXPECT_EQ(model.layers[0].problems[0].expected, "F8_E4M3 [96, 4]");
}

TEST(Quark, OneScaleOfAnotherTypeInAModeloptCheckpointDoesNotChangeTheDialect) {
  const TempFolder folder;
  const MoeModel model = read_model(tiny_checkpoint(
      folder, {.dialect = TinyDialect::modelopt,
               .edits = {test::retype("model.layers.0.mlp.experts.0.gate_proj.weight_scale",
                                      DType::u8, {96, 4})}}));
  EXPECT_EQ(model.layers.at(0).dialect, "modelopt");
  ASSERT_EQ(model.layers[0].problems.size(), 1U) << text_of(model.layers[0].problems);
  EXPECT_EQ(model.layers[0].problems[0].code, "MOXIE-M005");
}

TEST(Quark, AStoredActivationScaleIsRefusedByName) {
  const TempFolder folder;
  TinyOptions options{.dialect = TinyDialect::quark, .layers = 1};
  options.extra = {{"model.layers.0.mlp.experts.1.up_proj.input_scale", DType::f32, {}, "abcd"}};
  const MoeModel model = read_model(tiny_checkpoint(folder, options));
  const Error error = test::refusal_of([&] { (void)model.require_layer(0); });
  EXPECT_EQ(test::code_of(error), "MOXIE-M013");
  EXPECT_EQ(error.findings()[0].got, "up_proj.input_scale");
}

// packed bytes are expected, floats are never cast into them.
TEST(Quark, R11_UnquantisedExpertsUnderItsConfigAreRefused) {
  const TempFolder folder;
  const MoeModel model = read_model(tiny_checkpoint(
      folder, {.dialect = TinyDialect::quark,
               .layers = 1,
               .edits = {test::leave_out("weight_scale"), [](test::TinyTensor& tensor) {
                           tensor.dtype = DType::bf16;
                           tensor.shape[1] *= 2;
                           tensor.bytes.resize(4 * tensor.bytes.size(), '\x3C');
                           return true;
                         }}}));
  ASSERT_EQ(model.layers.size(), 1U);
  EXPECT_TRUE(has_code(model.layers[0].problems, "MOXIE-M004"));
  ASSERT_TRUE(has_code(model.layers[0].problems, "MOXIE-M005"));
  EXPECT_EQ(model.layers[0].problems[0].got, "BF16 [96, 64]");
}

}  // namespace
}  // namespace moxie

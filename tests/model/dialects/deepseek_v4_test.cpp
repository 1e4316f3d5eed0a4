// SPDX-License-Identifier: Apache-2.0
// The native layout: w1, w3, w2 with one E8M0 scale per 32 and no global.
#include <gtest/gtest.h>

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
using test::TinyOptions;

TEST(DeepseekV4, GateIsW1UpIsW3AndDownIsW2) {
  const TempFolder folder;
  const TinyOptions options{.hidden = 64, .inter = 96, .experts = 3, .layers = 2};
  const MoeModel model = read_model(tiny_checkpoint(folder, options));
  EXPECT_EQ(model.dialect, "deepseek-v4");
  EXPECT_EQ(model.format, BlockFormat::mxfp4);
  EXPECT_EQ(text_of(model.findings), "");
  ASSERT_EQ(model.layers.size(), 2U);
  for (int i = 0; i < 2; ++i) {
    const LayerExperts& layer = model.require_layer(i);
    EXPECT_EQ(layer.layer, i);
    EXPECT_EQ(layer.prefix, "layers." + std::to_string(i) + ".ffn.experts");
    EXPECT_EQ(layer.dialect, "deepseek-v4");
    EXPECT_EQ(layer.format, BlockFormat::mxfp4);
    EXPECT_FALSE(layer.mtp);
    expect_layer(layer, options, {"w1", "w3", "w2"});
  }
}

// A cast from I8 to a number would lose the upper nibble's sign bit; the carrier's name is nothing
// but a name.
TEST(DeepseekV4, TheCarrierMayBeU8AndTheScaleAPlainByte) {
  const TempFolder folder;
  const TinyOptions options{.edits = {[](test::TinyTensor& tensor) {
                              tensor.dtype = DType::u8;
                              return true;
                            }}};
  expect_layer(read_model(tiny_checkpoint(folder, options)).require_layer(0), options,
               {"w1", "w3", "w2"});
}

TEST(DeepseekV4, AFourBitTypeHasTheLogicalShape) {
  const TempFolder folder;
  const std::string name = "layers.0.ffn.experts.1.w3.weight";
  const TinyOptions options{
      .hidden = 64, .inter = 96, .edits = {test::retype(name, DType::f4, {96, 64})}};
  const MoeModel model = read_model(tiny_checkpoint(folder, options));
  expect_layer(model.require_layer(0), options, {"w1", "w3", "w2"});
  const RowsView& codes = model.layers[0].experts[1].up.codes;
  EXPECT_EQ(codes.rows, 96U);
  EXPECT_EQ(codes.row_bytes, 32U);
}

TEST(DeepseekV4, AFourBitTypeWithThePackedShapeIsRefused) {
  const TempFolder folder;
  const std::string name = "layers.0.ffn.experts.1.w3.weight";
  const TinyOptions options{
      .hidden = 64, .inter = 96, .edits = {test::retype(name, DType::f4, {96, 32})}};
  const MoeModel model = read_model(tiny_checkpoint(folder, options));
  EXPECT_TRUE(has_code(model.layers[0].problems, "MOXIE-M005"));
  EXPECT_TRUE(model.layers[1].problems.empty());
}

// a cast of floats to packed bytes exists nowhere, so their type stops the load.
TEST(DeepseekV4, Bf16WeightsUnderADeclaredFp4FormatAreRefused) {
  const TempFolder folder;
  const TinyOptions options{
      .hidden = 32,
      .inter = 4,
      .experts = 1,
      .layers = 1,
      .edits = {test::leave_out(".scale"),
                test::retype("layers.0.ffn.experts.0.w1.weight", DType::bf16, {4, 32})}};
  const MoeModel model = read_model(tiny_checkpoint(folder, options));
  const Error error = refusal_of([&] { (void)model.require_layer(0); });
  EXPECT_EQ(error.code(), ErrorCode::input);
  const Finding& finding = error.findings().front();
  EXPECT_EQ(finding.code, "MOXIE-M005");
  EXPECT_EQ(finding.where.tensor, "layers.0.ffn.experts.0.w1.weight");
  EXPECT_EQ(finding.where.expert, 0U);
  EXPECT_NE(finding.expected.find("[4, 16]"), std::string::npos) << finding.expected;
  EXPECT_EQ(finding.got, "BF16 [4, 32]");
  // The scales that the format needs are named as missing.
  EXPECT_NE(text_of(error.findings()).find("layers.0.ffn.experts.0.w1.scale"), std::string::npos);
}

TEST(DeepseekV4, EveryWrongTypeOrShapeIsNamedUpToALimit) {
  struct Case {
    const char* leaf;
    DType dtype;
    Shape shape;
  };
  for (const Case& wrong :
       {Case{"w1.weight", DType::i8, {96, 33}}, Case{"w1.weight", DType::i8, {95, 32}},
        Case{"w1.weight", DType::i8, {96, 64}}, Case{"w1.weight", DType::i16, {96, 16}},
        Case{"w1.weight", DType::i8, {1, 96, 32}}, Case{"w2.weight", DType::i8, {96, 32}},
        Case{"w1.scale", DType::f8_e8m0, {96, 4}}, Case{"w1.scale", DType::f8_e4m3, {96, 2}},
        Case{"w1.scale", DType::f32, {96, 2}}}) {
    const TempFolder folder;
    const std::string name = "layers.0.ffn.experts.2." + std::string(wrong.leaf);
    const TinyOptions options{.hidden = 64,
                              .inter = 96,
                              .layers = 1,
                              .edits = {test::retype(name, wrong.dtype, wrong.shape)}};
    const MoeModel model = read_model(tiny_checkpoint(folder, options));
    const Error error = refusal_of([&] { (void)model.require_layer(0); });
    ASSERT_EQ(error.findings().size(), 1U) << text_of(error.findings());
    EXPECT_EQ(code_of(error), "MOXIE-M005");
    EXPECT_EQ(error.findings()[0].where.tensor, name);
    EXPECT_EQ(error.findings()[0].where.layer, 0);
    EXPECT_EQ(error.findings()[0].where.expert, 2U);
  }
  const TempFolder folder;
  const TinyOptions all{.experts = 8, .layers = 1, .edits = {[](test::TinyTensor& tensor) {
                                                     if (tensor.name.ends_with(".weight"))
                                                       tensor.dtype = DType::f8_e4m3;
                                                     return true;
                                                   }}};
  const MoeModel model = read_model(tiny_checkpoint(folder, all));
  EXPECT_EQ(model.layers[0].problems.size(), 9U);
  EXPECT_NE(model.layers[0].problems.back().message.find("16 more"), std::string::npos);
}

}  // namespace
}  // namespace moxie

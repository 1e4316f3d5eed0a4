// SPDX-License-Identifier: Apache-2.0
// Experts stacked in one tensor, gate and up row by row, with biases; under both namings.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "model/canonical.hpp"
#include "support/refusal.hpp"
#include "support/stacked_checkpoint.hpp"

namespace moxie {
namespace {

using test::code_of;
using test::has_code;
using test::oss_checkpoint;
using test::OssNaming;
using test::OssSizes;
using test::OssWeights;
using test::TempFolder;
using test::text_of;
using test::TinyTensor;

constexpr OssNaming kNamings[] = {OssNaming::published, OssNaming::original};
constexpr ProjectionKind kKinds[] = {ProjectionKind::gate, ProjectionKind::up,
                                     ProjectionKind::down};

std::uint64_t fresh_seed() {
  const std::uint64_t seed = std::random_device{}();
  testing::Test::RecordProperty("seed", std::to_string(seed));
  return seed;
}

std::string row_of(const Checkpoint& checkpoint, const RowsView& view, std::uint64_t row) {
  std::string bytes(view.row_bytes, '\xEE');
  read_row(checkpoint, view, row, 0, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

float bias_of(const Checkpoint& checkpoint, const RowsView& view, std::uint64_t row) {
  float value = 0;
  std::memcpy(&value, row_of(checkpoint, view, row).data(), sizeof value);
  return value;
}

// Every row of every expert against what was stacked.
void expect_weights(const MoeModel& model, const OssWeights& weights) {
  const LayerExperts& layer = model.require_layer(0);
  ASSERT_EQ(layer.experts.size(), weights.sizes().experts);
  for (std::uint64_t expert = 0; expert < layer.experts.size(); ++expert) {
    for (const ProjectionKind kind : kKinds) {
      const auto& part = weights.part(expert, kind);
      const Projection& projection = layer.experts[expert][kind];
      ASSERT_EQ(projection.codes.rows, part.rows);
      ASSERT_EQ(projection.block_scales.rows, part.rows);
      ASSERT_EQ(projection.bias.rows, part.rows);
      EXPECT_FALSE(projection.dequant_mul.present());
      for (std::uint64_t row = 0; row < part.rows; ++row) {
        const std::uint64_t width = part.columns;
        ASSERT_EQ(row_of(model.checkpoint, projection.codes, row),
                  part.codes.substr(row * width / 2, width / 2))
            << name_of(kind) << " expert " << expert << " row " << row;
        ASSERT_EQ(row_of(model.checkpoint, projection.block_scales, row),
                  part.scales.substr(row * width / 32, width / 32))
            << name_of(kind) << " expert " << expert << " row " << row;
        ASSERT_EQ(bias_of(model.checkpoint, projection.bias, row), decode_bf16(part.bias[row]));
      }
    }
  }
}

TEST(GptOss, RowsOfGateAndUpTakeTurnsInCodesScalesAndBiases) {  // pit39, pit47
  const std::uint64_t seed = fresh_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  const OssWeights weights = OssWeights::random({}, seed);
  for (const OssNaming naming : kNamings) {
    const TempFolder folder;
    const MoeModel model = read_model(oss_checkpoint(folder, weights, naming));
    EXPECT_EQ(model.dialect, "gpt-oss");
    EXPECT_EQ(model.format, BlockFormat::mxfp4);
    EXPECT_EQ(text_of(model.findings), "");
    EXPECT_TRUE(model.layers.at(0).stacked);
    EXPECT_TRUE(model.config.biases);
    EXPECT_EQ(model.config.activation, Activation::oai_swiglu);
    EXPECT_EQ(model.config.activation_limit, 7.0);
    expect_weights(model, weights);
  }
}

TEST(GptOss, APartOfARowStartsAtAnyByte) {
  const OssWeights weights = OssWeights::random({}, 1);
  const TempFolder folder;
  const MoeModel model = read_model(oss_checkpoint(folder, weights));
  const RowsView& codes = model.require_layer(0).experts[1].up.codes;
  std::string bytes(5, '\0');
  read_row(model.checkpoint, codes, 7, 11, std::as_writable_bytes(std::span(bytes)));
  EXPECT_EQ(bytes, row_of(model.checkpoint, codes, 7).substr(11, 5));
}

TEST(GptOss, BiasesMayBeF32) {
  const OssWeights weights = OssWeights::random({.experts = 1}, 2);
  const TempFolder folder;
  const auto widen = [](TinyTensor& tensor) {
    if (!tensor.name.ends_with("_bias")) return true;
    std::string wide;
    for (std::size_t at = 0; at < tensor.bytes.size(); at += 2)
      wide += std::string(2, '\0') + tensor.bytes.substr(at, 2);
    tensor.dtype = DType::f32;
    tensor.bytes = wide;
    return true;
  };
  expect_weights(read_model(oss_checkpoint(folder, weights, OssNaming::published, {widen})),
                 weights);
}

// The problems of layer 0 of a checkpoint with these changes.
std::vector<Finding> problems_of(const std::vector<test::TinyEdit>& edits,
                                 const std::vector<TinyTensor>& extra = {}) {
  const TempFolder folder;
  const OssWeights weights = OssWeights::random({}, 3);
  const MoeModel model =
      read_model(oss_checkpoint(folder, weights, OssNaming::published, edits, extra));
  if (model.layers.empty()) return {};
  EXPECT_EQ(test::refusal_of([&] { (void)model.require_layer(0); }).code(), ErrorCode::input);
  return model.layers[0].problems;
}

const std::string kPrefix = "model.layers.0.mlp.experts.";

TEST(GptOss, R13_OneTensorMissingIsNamedAndCounted) {
  for (const char* leaf : {"gate_up_proj_blocks", "gate_up_proj_scales", "gate_up_proj_bias",
                           "down_proj_blocks", "down_proj_scales", "down_proj_bias"}) {
    const auto problems = problems_of({test::leave_out(leaf)});
    ASSERT_TRUE(has_code(problems, "MOXIE-M004")) << leaf << ": " << text_of(problems);
    EXPECT_NE(text_of(problems).find(leaf), std::string::npos) << text_of(problems);
  }
}

TEST(GptOss, R13_AWrongShapeIsRefusedByName) {
  const auto expect_wrong = [](const std::string& leaf, DType dtype, const Shape& shape) {
    const auto problems = problems_of({test::retype(kPrefix + leaf, dtype, shape)});
    ASSERT_TRUE(has_code(problems, "MOXIE-M005")) << leaf << ": " << text_of(problems);
    const Finding& wrong = *std::ranges::find(problems, "MOXIE-M005", &Finding::code);
    EXPECT_EQ(wrong.where.tensor, kPrefix + leaf);
    EXPECT_EQ(wrong.got, std::string(name_of(dtype)) + " " + to_string(shape));
  };
  expect_wrong("gate_up_proj_blocks", DType::u8, {3, 192, 32});     // [E, 2I, H/2]
  expect_wrong("gate_up_proj_blocks", DType::u8, {3, 2, 192, 16});  // transposed
  expect_wrong("gate_up_proj_scales", DType::u8, {3, 192, 4});
  expect_wrong("gate_up_proj_scales", DType::f8_e4m3, {3, 192, 2});
  expect_wrong("down_proj_blocks", DType::u8, {3, 64, 2, 24});
  expect_wrong("gate_up_proj_bias", DType::bf16, {3, 96});
  expect_wrong("gate_up_proj_bias", DType::f16, {3, 192});
  expect_wrong("down_proj_bias", DType::bf16, {64, 3});
}

TEST(GptOss, AnotherNumberOfExpertsThanTheConfigsIsRefused) {
  for (const std::uint64_t experts : {2U, 4U}) {
    const TempFolder folder;
    const OssWeights weights = OssWeights::random({.experts = experts}, 4);
    (void)oss_checkpoint(folder, weights);
    std::ofstream(folder.path() / "model" / "config.json")
        << test::oss_config({}, OssNaming::published).dump();
    const MoeModel model = read_model(open_checkpoint(folder.path() / "model"));
    ASSERT_EQ(model.layers.size(), 1U);
    EXPECT_TRUE(has_code(model.layers[0].problems, "MOXIE-M005"));
    EXPECT_EQ(has_code(model.layers[0].problems, "MOXIE-M003"), experts == 4);
  }
}

// stacked experts that were not quantised, under a config that says they are.
TEST(GptOss, R11_UnquantisedStackedExpertsAreRefused) {
  const TempFolder folder;
  const OssWeights weights = OssWeights::random({}, 5);
  const auto unquantised = [](TinyTensor& tensor) {
    if (tensor.name.ends_with("_scales")) return false;
    if (!tensor.name.ends_with("_blocks")) return true;
    tensor.name.resize(tensor.name.size() - std::string("_blocks").size());
    tensor.shape = {tensor.shape[0], tensor.shape[2] * 32, tensor.shape[1]};
    tensor.dtype = DType::bf16;
    tensor.bytes = std::string(4 * tensor.bytes.size(), '\x3C');
    return true;
  };
  const Error error = test::refusal_of([&] {
    const MoeModel model =
        read_model(oss_checkpoint(folder, weights, OssNaming::published, {unquantised}));
    (void)model.require_layer(0);
  });
  EXPECT_EQ(error.code(), ErrorCode::input) << error.what();
  EXPECT_TRUE(code_of(error) == "MOXIE-M002" || code_of(error) == "MOXIE-M004") << error.what();
  EXPECT_NE(std::string(error.what()).find("gate_up_proj"), std::string::npos) << error.what();
}

TEST(GptOss, PerExpertTensorsBesideStackedOnesAreRefused) {
  const TinyTensor stray{
      kPrefix + "1.gate_proj.weight", DType::u8, {96, 32}, std::string(96 * 32, '\x22')};
  const auto problems = problems_of({}, {stray});
  ASSERT_TRUE(has_code(problems, "MOXIE-M013")) << text_of(problems);
  EXPECT_NE(text_of(problems).find("gate_proj.weight"), std::string::npos) << text_of(problems);
}

TEST(GptOss, BothNamingsOfOneLayerAreRefused) {
  const OssWeights weights = OssWeights::random({}, 3);
  const auto problems = problems_of({}, weights.tensors(OssNaming::original));
  EXPECT_TRUE(has_code(problems, "MOXIE-M014")) << text_of(problems);
}

TEST(GptOss, RouterTensorsAreFoundUnderBothNamings) {
  const OssWeights weights = OssWeights::random({}, 6);
  for (const OssNaming naming : kNamings) {
    const TempFolder folder;
    const std::string router =
        naming == OssNaming::original ? "block.0.mlp.gate." : "model.layers.0.mlp.router.";
    const MoeModel model = read_model(
        oss_checkpoint(folder, weights, naming, {},
                       {{router + "weight", DType::bf16, {3, 64}, std::string(3 * 64 * 2, '\0')},
                        {router + "bias", DType::bf16, {3}, std::string(6, '\0')}}));
    const LayerExperts& layer = model.require_layer(0);
    ASSERT_NE(layer.router.weight, nullptr);
    ASSERT_NE(layer.router.bias, nullptr);
    EXPECT_EQ(layer.router.weight->name, router + "weight");
    EXPECT_EQ(layer.router.bias->name, router + "bias");
  }
}

}  // namespace
}  // namespace moxie

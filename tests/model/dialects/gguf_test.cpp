// SPDX-License-Identifier: Apache-2.0
// Stacked experts of a GGUF file: what they are, and what stops them from being read.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "checkpoint/gguf_writer.hpp"
#include "model/canonical.hpp"
#include "support/refusal.hpp"
#include "support/temp_folder.hpp"

namespace moxie {
namespace {

using test::text_of;

using Edit = std::function<bool(TensorEntry&)>;  // false: leave the tensor out

struct FileOptions {
  bool nvfp4 = false;
  std::string architecture = "qwen3moe";
  std::uint64_t hidden = 64;
  std::uint64_t inter = 64;
  std::vector<TensorEntry> more{};
  Edit edit = [](TensorEntry& /*entry*/) { return true; };
};

constexpr std::uint64_t kExperts = 3;

// Byte p of a tensor is p mod 251.
MoeModel model_of(const test::TempFolder& folder, const FileOptions& options) {
  const std::string& arch = options.architecture;
  const auto number = [&](const char* leaf, std::uint64_t value) {
    return GgufPairs::value_type{arch + "." + leaf, static_cast<std::uint32_t>(value)};
  };
  const GgufPairs metadata = {{"general.architecture", arch},
                              number("block_count", 1),
                              number("embedding_length", options.hidden),
                              number("expert_feed_forward_length", options.inter),
                              number("expert_count", kExperts),
                              number("expert_used_count", 2)};
  std::vector<TensorEntry> entries = options.more;
  const DType blocks = options.nvfp4 ? DType::nvfp4_blocks : DType::mxfp4_blocks;
  const std::uint64_t h = options.hidden;
  const std::uint64_t i = options.inter;
  entries.push_back({"blk.0.ffn_gate_exps.weight", blocks, {kExperts, i, h}});
  entries.push_back({"blk.0.ffn_up_exps.weight", blocks, {kExperts, i, h}});
  entries.push_back({"blk.0.ffn_down_exps.weight", blocks, {kExperts, h, i}});
  std::erase_if(entries, [&](TensorEntry& entry) { return !options.edit(entry); });
  const auto path = folder.path() / "m.gguf";
  GgufWriter writer(path, metadata, entries);
  for (const TensorEntry& entry : entries) {
    std::vector<std::byte> bytes(entry.bytes());
    for (std::size_t p = 0; p < bytes.size(); ++p) bytes[p] = static_cast<std::byte>(p % 251);
    writer.write(bytes);
    writer.finish_tensor();
  }
  writer.commit();
  return read_model(open_checkpoint(path));
}

Error layer_refusal(const FileOptions& options) {
  const test::TempFolder folder;
  const MoeModel model = model_of(folder, options);
  return test::refusal_of([&] { (void)model.require_layer(0); });
}

Edit retype(const char* name, DType dtype) {
  return [=](TensorEntry& entry) {
    if (entry.name == name) entry.dtype = dtype;
    return true;
  };
}

// Extents and offsets counted by hand: row r of expert e begins at (e * rows + r) * row bytes.
TEST(Gguf, RowsOfAnExpertLieOneAfterAnotherInItsPartOfTheTensor) {
  const test::TempFolder folder;
  const MoeModel model = model_of(folder, {.hidden = 64, .inter = 96});
  EXPECT_EQ(model.dialect, "gguf");
  EXPECT_EQ(model.format, BlockFormat::mxfp4);
  EXPECT_EQ(text_of(model.findings), "");
  const LayerExperts& layer = model.require_layer(0);
  EXPECT_TRUE(layer.stacked);
  std::vector<std::byte> scales(2);
  read_row(model.checkpoint, layer.experts[2].gate.block_scales, 5, 0, scales);
  const std::uint64_t at = (2 * 96 + 5) * 34;
  EXPECT_EQ(scales[0], static_cast<std::byte>(at % 251));
  EXPECT_EQ(scales[1], static_cast<std::byte>((at + 17) % 251));
  std::vector<std::byte> codes(1);
  read_row(model.checkpoint, layer.experts[1].down.codes, 7, 16, codes);  // elements 32, 33
  const std::uint64_t block = (64 + 7) * 51 + 17;                         // second block of the row
  const unsigned low = (block + 1) % 251 & 15U;
  const unsigned high = (block + 2) % 251 & 15U;
  EXPECT_EQ(codes[0], static_cast<std::byte>(low | high << 4U));
}

TEST(Gguf, Nvfp4ReadsItsSuperBlocksAndOneMultiplierPerExpert) {
  const test::TempFolder folder;
  const MoeModel model = model_of(
      folder, {.nvfp4 = true, .more = {{"blk.0.ffn_up_exps.scale", DType::f32, {kExperts}}}});
  EXPECT_EQ(model.format, BlockFormat::nvfp4);
  const LayerExperts& layer = model.require_layer(0);
  EXPECT_EQ(layer.experts[2].up.dequant_mul.index, 2U);
  float stored = 0;
  const unsigned char bytes[] = {8, 9, 10, 11};
  std::memcpy(&stored, bytes, sizeof stored);
  EXPECT_EQ(stored_scalar(model.checkpoint, layer.experts[2].up.dequant_mul), stored);
  EXPECT_TRUE(layer.experts[2].gate.dequant_mul.one) << "absent means 1";
  EXPECT_EQ(read_scalar(model.checkpoint, layer.experts[2].gate.dequant_mul), 1.0F);
  EXPECT_FALSE(layer.experts[2].up.act_dequant_mul.present());
  std::vector<std::byte> scales(4);
  read_row(model.checkpoint, layer.experts[1].gate.block_scales, 3, 0, scales);
  for (std::uint64_t i = 0; i < 4; ++i)
    EXPECT_EQ(scales[i], static_cast<std::byte>(((64 + 3) * 36 + i) % 251));
}

TEST(Gguf, FindsTheRouterBesideTheExperts) {
  const test::TempFolder folder;
  const MoeModel model =
      model_of(folder, {.architecture = "glm4moe",
                        .more = {{"blk.0.ffn_gate_inp.weight", DType::f32, {kExperts, 64}},
                                 {"blk.0.exp_probs_b.bias", DType::f32, {kExperts}},
                                 {"blk.0.ffn_gate_tid2eid.weight", DType::i32, {9, 2}},
                                 {"blk.0.ffn_gate_shexp.weight", DType::bf16, {64, 64}},
                                 {"blk.0.attn_q.weight", DType::bf16, {64, 64}}}});
  EXPECT_EQ(text_of(model.findings), "");
  const RouterTensors& router = model.require_layer(0).router;
  ASSERT_NE(router.weight, nullptr);
  EXPECT_EQ(router.weight->dtype, DType::f32);
  EXPECT_EQ(router.weight->shape, (Shape{kExperts, 64}));
  EXPECT_NE(router.bias, nullptr);
  EXPECT_NE(router.token_table, nullptr);
}

TEST(Gguf, ATensorOfAnotherTypeOrShapeIsRefusedByName) {
  const char* const down = "blk.0.ffn_down_exps.weight";
  for (const DType dtype : {DType::nvfp4_blocks, DType::f32, DType::bf16}) {
    const Error error = layer_refusal({.edit = retype(down, dtype)});
    EXPECT_EQ(test::code_of(error), "MOXIE-M005");
    EXPECT_EQ(error.findings()[0].where.tensor, down);
    EXPECT_EQ(error.findings()[0].expected, "MXFP4 [3, 64, 64]");
  }
  const Error error = layer_refusal({.edit = [&](TensorEntry& entry) {
    if (entry.name == down) entry.shape = {kExperts, 64, 128};
    return true;
  }});
  EXPECT_EQ(test::code_of(error), "MOXIE-M005");
}

TEST(Gguf, AMissingProjectionIsRefusedByName) {
  const Error error = layer_refusal(
      {.edit = [](TensorEntry& entry) { return entry.name != "blk.0.ffn_gate_exps.weight"; }});
  EXPECT_EQ(test::code_of(error), "MOXIE-M004");
  EXPECT_NE(std::string(error.what()).find("blk.0.ffn_gate_exps.weight"), std::string::npos);
}

// A tensor that would change the result and is not read stops the layer.
TEST(Gguf, WhatIsNotReadIsRefused) {
  const struct {
    TensorEntry entry;
    bool nvfp4;
  } cases[] = {
      {{"blk.0.ffn_up_exps.bias", DType::f32, {kExperts, 64}}, false},
      {{"blk.0.ffn_up_exps.scale", DType::f32, {kExperts}}, false},
      {{"blk.0.ffn_up_exps.input_scale", DType::f32, {kExperts}}, false},
      {{"blk.0.ffn_up_exps.zero", DType::f32, {kExperts}}, true},
      {{"blk.0.ffn_gate_up_exps.weight", DType::mxfp4_blocks, {kExperts, 128, 64}}, false},
  };
  for (const auto& it : cases) {
    const Error error = layer_refusal({.nvfp4 = it.nvfp4, .more = {it.entry}});
    EXPECT_EQ(test::code_of(error), "MOXIE-M013") << it.entry.name;
    EXPECT_NE(it.entry.name.find(error.findings()[0].got), std::string::npos);
  }
}

TEST(Gguf, BiasesOfGptOssAreRequiredAndRead) {
  const Error error = layer_refusal({.architecture = "gpt-oss"});
  EXPECT_EQ(test::code_of(error), "MOXIE-M004");
  const test::TempFolder folder;
  const MoeModel model =
      model_of(folder, {.architecture = "gpt-oss",
                        .inter = 32,
                        .more = {{"blk.0.ffn_gate_exps.bias", DType::f32, {kExperts, 32}},
                                 {"blk.0.ffn_up_exps.bias", DType::f32, {kExperts, 32}},
                                 {"blk.0.ffn_down_exps.bias", DType::f32, {kExperts, 64}}}});
  const LayerExperts& layer = model.require_layer(0);
  std::vector<std::byte> value(4);
  read_row(model.checkpoint, layer.experts[2].down.bias, 5, 0, value);
  EXPECT_EQ(value[0], static_cast<std::byte>((2 * 64 + 5) * 4 % 251));
}

TEST(Gguf, AMultiplierThatIsNoNumberPerExpertIsRefused) {
  for (const Shape& shape : {Shape{1}, Shape{kExperts, 1}, Shape{}}) {
    const Error error =
        layer_refusal({.nvfp4 = true, .more = {{"blk.0.ffn_up_exps.scale", DType::f32, shape}}});
    EXPECT_EQ(test::code_of(error), "MOXIE-M005") << to_string(shape);
  }
}

// The config says 32, which no super-block divides; the file can only hold another width.
TEST(Gguf, Nvfp4WithAWidthThatIsNoMultipleOfItsSuperBlockIsRefused) {
  const auto widen = [](TensorEntry& entry) {
    if (entry.name == "blk.0.ffn_down_exps.weight") {
      entry.shape = {kExperts, 32, 64};
    } else {
      entry.shape = {kExperts, 64, 64};
    }
    return true;
  };
  const Error error = layer_refusal({.nvfp4 = true, .hidden = 32, .edit = widen});
  EXPECT_EQ(test::code_of(error), "MOXIE-M005");
}

TEST(Gguf, ExpertsInAnotherBlockTypeAreInNoKnownFormat) {
  const test::TempFolder folder;
  const MoeModel model = model_of(folder, {.edit = [](TensorEntry& entry) {
                                    entry.dtype = DType::bf16;
                                    return true;
                                  }});
  EXPECT_TRUE(model.layers.empty());
  EXPECT_TRUE(test::has_code(model.findings, "MOXIE-M010")) << text_of(model.findings);
}

// A folder with one such file and nothing else is that file.
TEST(Gguf, AFolderWithOneFileAndNoConfigIsThatFile) {
  const test::TempFolder folder;
  (void)model_of(folder, {});
  EXPECT_EQ(read_model(open_checkpoint(folder.path())).dialect, "gguf");
  std::filesystem::copy(folder.path() / "m.gguf", folder.path() / "n.gguf");
  const Error error = test::refusal_of([&] { (void)open_checkpoint(folder.path()); });
  EXPECT_EQ(test::code_of(error), "MOXIE-C001");
  EXPECT_EQ(error.findings()[0].got, "m.gguf, n.gguf");
}

}  // namespace
}  // namespace moxie

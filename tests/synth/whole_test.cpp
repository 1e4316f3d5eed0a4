// SPDX-License-Identifier: Apache-2.0
// What a whole checkpoint consists of: its tensors, files and config, and what is refused.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>

#include "moxie/model.hpp"
#include "synth/whole_tensors.hpp"
#include "whole_model.hpp"

namespace moxie {
namespace {

using test::json_list;
using test::narrow_v4;
using test::small_v4_1;
using test::synthesised;
using test::TempFolder;
using test::whole_options;

constexpr BlockFormat kFormats[] = {BlockFormat::mxfp4, BlockFormat::nvfp4};

std::string text_of(DType dtype, const Shape& shape) {
  return std::string(name_of(dtype)) + " " + to_string(shape);
}
using Listing = std::map<std::string, std::string>;

Listing listing_of(const Checkpoint& checkpoint) {
  Listing listing;
  for (const TensorInfo& tensor : checkpoint.tensors())
    listing.emplace(tensor.name, text_of(tensor.dtype, tensor.shape));
  return listing;
}

V4Config config_of(const Checkpoint& checkpoint) {
  const auto config = read_config(checkpoint.config(), checkpoint.quant_config()).v4;
  EXPECT_TRUE(config.has_value());
  return config.value_or(V4Config{});
}

// The list that the model reader makes of the written config.
Listing listing_of(const V4Config& config, BlockFormat format) {
  Listing listing;
  const auto add = [&](const std::vector<ModelTensor>& tensors) {
    for (const ModelTensor& tensor : tensors)
      EXPECT_TRUE(listing.emplace(tensor.name, text_of(tensor.dtype, tensor.shape)).second);
  };
  add(top_tensors(config));
  for (std::uint64_t layer = 0; layer < config.layers + config.drafts; ++layer) {
    add(layer_tensors(config, layer));
    add(routed_tensors(config, layer, format));
  }
  return listing;
}

TEST(SynthWhole, WritesExactlyTheTensorsThatItsConfigLists) {
  for (const test::NamedConfig& model : test::whole_models()) {
    for (const BlockFormat format : kFormats) {
      SCOPED_TRACE(model.name + " " + std::string(name_of(format)));
      const TempFolder folder;
      const auto checkpoint = synthesised(folder, whole_options(model.config, format));
      EXPECT_TRUE(checkpoint.findings().empty());
      EXPECT_EQ(listing_of(checkpoint), listing_of(config_of(checkpoint), format));
    }
  }
}

TEST(SynthWhole, IsReadWithItsDraftBlocks) {
  const std::map<std::string, std::size_t> drafts = {
      {"tiny", 1}, {"flash", 1}, {"pro", 1}, {"flash-0731", 3}, {"v4.1", 3}, {"v4.1-small", 3}};
  for (const test::NamedConfig& named : test::whole_models()) {
    SCOPED_TRACE(named.name);
    const TempFolder folder;
    const MoeModel model =
        read_model(synthesised(folder, whole_options(named.config, BlockFormat::nvfp4)));
    EXPECT_TRUE(model.findings.empty());
    ASSERT_EQ(model.layers.size(), 4 + drafts.at(named.name));
    for (const LayerExperts& layer : model.layers) {
      EXPECT_TRUE(layer.problems.empty()) << layer.prefix;
      EXPECT_EQ(layer.mtp, layer.layer >= 4) << layer.prefix;
      EXPECT_EQ(layer.format, layer.mtp ? BlockFormat::mxfp4 : BlockFormat::nvfp4) << layer.prefix;
      EXPECT_NE(layer.router.weight, nullptr) << layer.prefix;
    }
  }
}

TEST(SynthWhole, OfAModelsOwnSizeHasThePublishedTotals) {
  const auto expect_totals = [](std::string_view name, BlockFormat format, std::uint64_t tensors,
                                std::uint64_t bytes) {
    SCOPED_TRACE(name);
    SynthOptions options = whole_options(synth_config(name), format);
    const ModelConfig model = read_config(options.config, {});
    options.num_layers = model.num_layers;
    options.experts = model.experts;
    const synth::Recipe recipe = synth::make_recipe(options);
    std::uint64_t count = 0;
    for (std::uint64_t shard = 0; shard < synth::whole_shards(recipe); ++shard)
      count += synth::tensors_of_shard(recipe, shard, count).size();
    EXPECT_EQ(count, tensors);
    EXPECT_EQ(synth::whole_bytes(recipe), bytes);
  };
  expect_totals("deepseek-v4-flash", BlockFormat::mxfp4, 69'187, 159'609'485'896);
  expect_totals("deepseek-v4-pro", BlockFormat::mxfp4, 145'116, 864'704'792'696);
  expect_totals("deepseek-v4-flash", BlockFormat::nvfp4, 135'235, 168'266'793'544);
  expect_totals("deepseek-v4.1-flash", BlockFormat::mxfp4, 96'085, 510'286'023'000);
}

TEST(SynthWhole, HasAFileForEachLayerThenEachDraftThenTheRest) {
  const TempFolder folder;
  const auto checkpoint = synthesised(folder, whole_options(test::narrow_0731()));
  std::map<std::string, std::string> kinds;  // file to what its names begin with
  std::map<std::string, bool> experts;       // whether the file is past its first expert
  for (const TensorInfo& tensor : checkpoint.tensors()) {
    const bool in_block = tensor.name.starts_with("layers.") || tensor.name.starts_with("mtp.");
    const std::string kind =
        in_block ? tensor.name.substr(0, tensor.name.find('.', tensor.name.find('.') + 1)) : "";
    const std::string file = checkpoint.files()[tensor.file].path.filename().string();
    EXPECT_EQ(kinds.emplace(file, kind).first->second, kind) << tensor.name;
    const bool is_expert = tensor.name.find(".experts.") != std::string::npos;
    EXPECT_TRUE(is_expert || !experts[file]) << tensor.name << " is behind the experts";
    experts[file] = is_expert;
  }
  std::map<std::string, std::string> expected;
  const char* blocks[] = {"layers.0", "layers.1", "layers.2", "layers.3",
                          "mtp.0",    "mtp.1",    "mtp.2",    ""};
  for (int i = 0; i < 8; ++i)
    expected["model-0000" + std::to_string(i + 1) + "-of-00008.safetensors"] = blocks[i];
  EXPECT_EQ(kinds, expected);
}

TEST(SynthWhole, ConfigSaysWhatIsWritten) {
  const TempFolder folder;
  SynthOptions options = whole_options(test::narrow_v4_1());
  options.num_layers = 3;
  const auto checkpoint = synthesised(folder, options);
  const Json& config = checkpoint.config();
  const Json& text = *config.find("text_config");
  EXPECT_EQ(*text.find("compress_ratios"), json_list({0, 0, 2, 0, 0, 0}));
  EXPECT_EQ(*text.find("kv_source_layer_ids"), json_list({2}));
  EXPECT_EQ(*text.find("index_source_layer_ids"), json_list({2}));
  EXPECT_EQ(text.find("candidate_source_layer_id"), nullptr);
  EXPECT_EQ(*text.find("engram_layer_ids"), json_list({1}));
  EXPECT_EQ(*text.find("engram_num_embeddings"), json_list({65'536}));
  EXPECT_EQ(text.find("engram_vocab_size")->as_unsigned(), 65'536U / 24);
  EXPECT_EQ(*text.find("dspark_target_layer_ids"), json_list({0, 1, 2}));
  EXPECT_EQ(text.find("dspark_n_routed_experts")->as_unsigned(), 3U);
  EXPECT_EQ(text.find("num_nextn_predict_layers")->as_unsigned(), 3U);
  EXPECT_EQ(config.find("vision_config"), nullptr);
}

TEST(SynthWhole, OfV41HasVisionAndWholeEngramsAtItsOwnSizeAlone) {
  const TempFolder folder;
  SynthOptions options = whole_options(small_v4_1());
  const auto own = synthesised(folder, options, "own");
  ASSERT_NE(own.find("vision.blocks.1.attn.wqkv.weight"), nullptr);
  EXPECT_EQ(own.find("layers.1.engram.embed.weight")->shape, (Shape{70'001, 8}));
  EXPECT_EQ(own.find("layers.3.engram.embed.weight")->shape, (Shape{90, 8}));
  for (const std::string_view key : {"text_config", "vision_config"})
    EXPECT_EQ(*own.config().find(key), *small_v4_1().find(key)) << key;

  options.experts = 2;
  const auto reduced = synthesised(folder, options, "reduced");
  EXPECT_EQ(reduced.find("vision.norm.weight"), nullptr);
  EXPECT_EQ(reduced.find("aligner.w1.weight"), nullptr);
  EXPECT_EQ(reduced.find("layers.1.engram.embed.weight")->shape, (Shape{65'536, 8}));
  EXPECT_EQ(reduced.find("layers.3.engram.embed.weight")->shape, (Shape{90, 8}));
}

TEST(SynthWhole, TakesOtherWidthsEverywhere) {
  const TempFolder folder;
  SynthOptions options = whole_options(narrow_v4("deepseek-v4-flash"));
  options.hidden = 224;
  options.inter = 32;
  const auto checkpoint = synthesised(folder, options);
  EXPECT_EQ(checkpoint.find("embed.weight")->shape, (Shape{40, 224}));
  EXPECT_EQ(checkpoint.find("layers.2.attn.compressor.wkv.weight")->shape, (Shape{96, 224}));
  EXPECT_EQ(checkpoint.find("mtp.0.e_proj.scale")->shape, (Shape{2, 2}));
  EXPECT_EQ(checkpoint.find("layers.0.ffn.shared_experts.w2.weight")->shape, (Shape{224, 32}));
  EXPECT_EQ(listing_of(checkpoint), listing_of(config_of(checkpoint), BlockFormat::mxfp4));
}

// The finding of a refusal that wrote nothing.
Finding refusal_of(const SynthOptions& options) {
  const TempFolder folder;
  try {
    synthesise(folder.path() / "model", options);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported) << error.what();
    EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
    EXPECT_EQ(error.findings().front().code, "MOXIE-P010");
    return error.findings().front();
  }
  ADD_FAILURE() << "not refused";
  return {};
}

TEST(SynthWhole, IsRefusedForOtherFamiliesDialectsAndFormats) {
  for (const std::string_view name : {"gpt-oss-20b", "kimi-k2", "qwen3-moe"}) {
    SynthOptions options = whole_options(synth_config(name));
    options.format.reset();
    EXPECT_TRUE(refusal_of(options).got.starts_with("model_type ")) << name;
  }
  SynthOptions options = whole_options(synth_config("tiny"), BlockFormat::nvfp4);
  options.dialect = DialectKind::modelopt;
  EXPECT_EQ(refusal_of(options).got, "modelopt");
  options = whole_options(synth_config("tiny"));
  options.format.reset();
  options.dense = DenseFormat::bf16;
  EXPECT_EQ(refusal_of(options).got, "bf16");
}

TEST(SynthWhole, IsRefusedWithTheNamesOfKeysThatTheConfigLacks) {
  SynthOptions options = whole_options(synth_config("tiny"));
  options.config.set("q_lora_rank", 0);
  options.config.erase("hc_mult");
  EXPECT_EQ(refusal_of(options).got, "none that can be used for q_lora_rank, hc_mult");
  options.config = synth_config("tiny");
  options.config.set("compress_ratios", json_list({0, 4}));
  EXPECT_EQ(refusal_of(options).got, "none that can be used for compress_ratios");
  options.config = synth_config("tiny");
  options.config.set("o_groups", 3);
  EXPECT_EQ(refusal_of(options).got, "none that can be used for o_groups");
  options.config = test::narrow_0731();
  options.config.erase("dspark_markov_rank");
  EXPECT_EQ(refusal_of(options).got, "none that can be used for dspark_markov_rank");
  const auto without = [](std::string_view key) {
    Json config = small_v4_1();
    Json text = *config.find("text_config");
    text.erase(key);
    config.set("text_config", std::move(text));
    return config;
  };
  for (const std::string_view key :
       {"kv_source_layer_ids", "index_source_layer_ids", "engram_num_embeddings"}) {
    options.config = without(key);
    EXPECT_EQ(refusal_of(options).got, "none that can be used for " + std::string(key));
  }
}

TEST(SynthWhole, ThatNoDiskHoldsIsRefusedBeforeTheFirstByte) {
  const TempFolder folder;
  SynthOptions options = whole_options(synth_config("tiny"));
  options.config.set("num_attention_heads", 262'144)
      .set("head_dim", 262'144)
      .set("o_lora_rank", 262'144);
  try {
    synthesise(folder.path() / "model", options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.findings().front().code, "MOXIE-E002");
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(SynthWhole, ThatIsInterruptedLeavesNothingAndOtherwiseTellsOfEveryByte) {
  for (const int allowed : {0, 2, 6, 1000}) {
    const TempFolder folder;
    SynthOptions options = whole_options(synth_config("tiny"));
    int calls = 0;
    std::uint64_t last = 0;
    options.progress = [&](std::uint64_t done, std::uint64_t total) {
      last = done;
      EXPECT_LE(done, total);
      return calls++ < allowed;
    };
    try {
      const SynthReport report = synthesise(folder.path() / "model", options);
      EXPECT_EQ(last, report.bytes);
      EXPECT_EQ(allowed, 1000);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::interrupted);
      EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << allowed << " calls";
      EXPECT_NE(allowed, 1000);
    }
  }
}

}  // namespace
}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// The list of a checkpoint's tensors against the published totals; nothing is written.
#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <string>

#include "moxie/model.hpp"
#include "moxie/synth.hpp"

namespace moxie {
namespace {

struct Totals {
  std::uint64_t tensors = 0;
  std::uint64_t elements = 0;
  std::uint64_t bytes = 0;

  friend bool operator==(const Totals&, const Totals&) = default;
};
void PrintTo(const Totals& totals, std::ostream* out) {
  *out << totals.tensors << " tensors, " << totals.elements << " elements, " << totals.bytes
       << " bytes";
}

// Visits every tensor of a whole checkpoint.
template <class Visit>
void each_tensor(const V4Config& config, BlockFormat format, const Visit& visit) {
  for (const ModelTensor& tensor : top_tensors(config)) visit(tensor);
  for (std::uint64_t layer = 0; layer < config.layers + config.drafts; ++layer) {
    for (const ModelTensor& tensor : layer_tensors(config, layer)) visit(tensor);
    for (const ModelTensor& tensor : routed_tensors(config, layer, format)) visit(tensor);
  }
}

Totals totals_of(const V4Config& config, BlockFormat format = BlockFormat::mxfp4) {
  Totals totals;
  std::set<std::string> names;
  each_tensor(config, format, [&](const ModelTensor& tensor) {
    std::uint64_t elements = 1;
    for (const std::uint64_t extent : tensor.shape) elements *= extent;
    EXPECT_TRUE(names.insert(tensor.name).second) << tensor.name;
    ++totals.tensors;
    totals.elements += elements;
    totals.bytes += elements * bits_of(tensor.dtype) / 8;
  });
  return totals;
}

V4Config config_of(const Json& json) {
  const std::optional<V4Config> config = read_config(json, Json()).v4;
  EXPECT_TRUE(config.has_value());
  return config.value_or(V4Config{});
}
V4Config published(std::string_view name) { return config_of(synth_config(name)); }

// The later V4-Flash differs in its draft blocks alone.
V4Config flash_0731() {
  Json json = synth_config("deepseek-v4-flash");
  Json ratios = *json.find("compress_ratios");
  ratios.push_back(0);
  ratios.push_back(0);
  json.set("compress_ratios", std::move(ratios))
      .set("dspark_block_size", 5)
      .set("dspark_markov_rank", 256);
  return config_of(json);
}

TEST(V4Tensors, HaveThePublishedCountsElementsAndBytes) {
  EXPECT_EQ(totals_of(published("deepseek-v4-flash")),
            (Totals{69'187, 158'069'433'298, 159'609'485'896}));
  EXPECT_EQ(totals_of(published("deepseek-v4-pro")),
            (Totals{145'116, 861'608'274'846, 864'704'792'696}));
  EXPECT_EQ(totals_of(flash_0731()), (Totals{72'317, 165'265'454'782, 166'878'536'440}));
}

TEST(V4Tensors, OfV41CountWithAndWithoutTheVisionModel) {
  V4Config config = published("deepseek-v4.1-flash");
  EXPECT_EQ(totals_of(config), (Totals{96'085, 508'182'659'298, 510'286'023'000}));
  config.vision_layers = 0;
  EXPECT_EQ(totals_of(config), (Totals{95'819, 507'697'390'818, 509'315'486'040}));
}

TEST(V4Tensors, OfTheNvfp4ReQuantisationsCountFourPerProjection) {
  EXPECT_EQ(totals_of(published("deepseek-v4-flash"), BlockFormat::nvfp4),
            (Totals{135'235, 166'726'542'802, 168'266'793'544}));
  EXPECT_EQ(totals_of(published("deepseek-v4-pro"), BlockFormat::nvfp4),
            (Totals{285'660, 909'964'546'206, 913'061'485'688}));
}

// 29 + 6 E, four more with a compressor, seven more with an indexer; a draft block ten more.
TEST(V4Tensors, OfALayerFollowItsKind) {
  const V4Config config = published("deepseek-v4-flash");
  const auto count = [&](std::uint64_t layer) {
    return layer_tensors(config, layer).size() +
           routed_tensors(config, layer, BlockFormat::mxfp4).size();
  };
  EXPECT_EQ(count(0), 29U + 6 * 256);        // window alone, hash
  EXPECT_EQ(count(2), 29U + 6 * 256 + 11);   // ratio 4, hash
  EXPECT_EQ(count(3), 29U + 6 * 256 + 4);    // ratio 128
  EXPECT_EQ(count(43), 29U + 6 * 256 + 10);  // draft
  EXPECT_EQ(top_tensors(config).size(), 6U);
}

TEST(V4Tensors, OfAConfigWithoutASizeAreNotGuessed) {
  for (const std::string_view key :
       {"num_attention_heads", "head_dim", "qk_rope_head_dim", "q_lora_rank", "o_groups",
        "o_lora_rank", "n_shared_experts", "hc_mult", "index_n_heads", "index_head_dim",
        "compress_ratios", "vocab_size"}) {
    Json json = synth_config("tiny");
    json.erase(key);
    EXPECT_FALSE(read_config(json, Json()).v4.has_value()) << key;
  }
  EXPECT_FALSE(read_config(synth_config("gpt-oss-20b"), Json()).v4.has_value());
}

// A scale row or column travels with the weights that it belongs to.
TEST(V4Tensors, ScalesAreCutWhereTheirWeightsAre) {
  for (const std::string_view name : {"deepseek-v4-flash", "deepseek-v4.1-flash", "tiny"}) {
    const V4Config config = published(name);
    for (const ModelTensor& weight : layer_tensors(config, 0)) {
      if (!weight.name.ends_with(".weight") || weight.dtype != DType::f8_e4m3 || !weight.cut)
        continue;
      const std::string scale_name = weight.name.substr(0, weight.name.size() - 6) + "scale";
      bool found = false;
      for (const ModelTensor& scale : layer_tensors(config, 0)) {
        if (scale.name != scale_name) continue;
        found = true;
        ASSERT_TRUE(scale.cut.has_value());
        EXPECT_EQ(scale.cut->axis, weight.cut->axis);
        EXPECT_EQ(dimension_of(scale.cut->unit), dimension_of(weight.cut->unit));
        // The same number of elements of the axis per tile of entries.
        EXPECT_EQ(weight.cut->entries * scale.cut->elems,
                  weight.cut->elems * scale.cut->entries * config.tile);
      }
      EXPECT_TRUE(found) << scale_name;
    }
  }
}

}  // namespace
}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// The named configs.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "moxie/synth.hpp"

namespace moxie {
namespace {

std::uint64_t number(const Json& config, std::string_view key) {
  const Json* value = config.find(key);
  return value != nullptr ? value->as_unsigned(~0ULL) : ~0ULL;
}

TEST(SynthConfigs, HaveOneRatioPerLayerAndOneForTheDraftBlock) {
  for (const std::string_view model : {"deepseek-v4-flash", "deepseek-v4-pro", "tiny"}) {
    const Json config = synth_config(model);
    const auto& ratios = config.find("compress_ratios")->elements();
    EXPECT_EQ(ratios.size(), number(config, "num_hidden_layers") + 1) << model;
    EXPECT_EQ(ratios.back().as_unsigned(), 0U) << model;
  }
}

TEST(SynthConfigs, CountTheLayersOfEachKindAsPublished) {
  const auto count = [](std::string_view model, std::uint64_t ratio) {
    const Json config = synth_config(model);
    auto ratios = config.find("compress_ratios")->elements();
    ratios.pop_back();
    return std::ranges::count(ratios, ratio, [](const Json& json) { return json.as_unsigned(); });
  };
  EXPECT_EQ(count("deepseek-v4-flash", 0), 2);
  EXPECT_EQ(count("deepseek-v4-flash", 4), 21);
  EXPECT_EQ(count("deepseek-v4-flash", 128), 20);
  EXPECT_EQ(count("deepseek-v4-pro", 0), 0);
  EXPECT_EQ(count("deepseek-v4-pro", 4), 30);
  EXPECT_EQ(count("deepseek-v4-pro", 128), 31);
}

TEST(SynthConfigs, TinyKeepsTheGeometryOfTheFamily) {
  const Json config = synth_config("tiny");
  EXPECT_EQ(config.find("model_type")->as_string(), "deepseek_v4");
  EXPECT_EQ(number(config, "hidden_size"), 256U);
  EXPECT_EQ(number(config, "moe_intermediate_size"), 640U);
  EXPECT_EQ(number(config, "n_routed_experts"), 8U);
  EXPECT_EQ(number(config, "num_experts_per_tok"), 2U);
  EXPECT_EQ(number(config, "num_hash_layers"), 1U);
  EXPECT_EQ(number(config, "vocab_size"), 320U);
}

TEST(SynthConfigs, RefuseAnUnknownNameAndListTheKnownOnes) {
  try {
    synth_config("deepseek-v5");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::usage);
    EXPECT_EQ(error.findings().front().code, "MOXIE-U003");
    EXPECT_NE(std::string(error.what()).find("deepseek-v4-flash"), std::string::npos);
  }
}

}  // namespace
}  // namespace moxie

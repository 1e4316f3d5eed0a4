// SPDX-License-Identifier: Apache-2.0
// What a config says about groups of experts and normalised weights, and which groups can not be.
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "moxie/model.hpp"
#include "support/refusal.hpp"

namespace moxie {
namespace {

using test::code_of;
using test::refusal_of;

// A config of 16 experts with 4 per token and these fields.
ModelConfig read(std::string_view model_type, const std::string& fields) {
  const std::string text = R"({"model_type": ")" + std::string(model_type) +
                           R"(", "hidden_size": 1, "moe_intermediate_size": 1,
      "n_routed_experts": 16, "num_experts": 16, "num_experts_per_tok": 4,
      "num_experts_per_token": 4, "num_hidden_layers": 1,
      "layers_block_type": ["moe"])" +
                           (fields.empty() ? "" : ", " + fields) + "}";
  return read_config(Json::parse(text, "test"), {});
}

TEST(ExpertGroups, AreReadUnderEveryFamilysNames) {
  for (const char* family :
       {"deepseek_v3", "deepseek_v32", "kimi_k2", "glm_moe_dsa", "nemotron_h"}) {
    const ModelConfig config = read(family, R"("n_group": 8, "topk_group": 2)");
    EXPECT_EQ(config.expert_groups, 8U) << family;
    EXPECT_EQ(config.kept_groups, 2U) << family;
  }
  const ModelConfig kimi = read("kimi_linear", R"("num_expert_group": 4, "topk_group": 3,
      "n_group": 8)");
  EXPECT_EQ(kimi.expert_groups, 4U);
  EXPECT_EQ(kimi.kept_groups, 3U);
}

TEST(ExpertGroups, AbsentOrNullOrOneIsNoSelectionByGroups) {
  for (const char* fields : {"", R"("n_group": null, "topk_group": null)", R"("n_group": 1)",
                             R"("n_group": 1, "topk_group": 1)"}) {
    const ModelConfig config = read("deepseek_v3", fields);
    EXPECT_EQ(config.expert_groups, 1U) << fields;
    EXPECT_EQ(config.kept_groups, 1U) << fields;
  }
}

TEST(ExpertGroups, FamiliesWithoutThemDoNotReadThem) {
  for (const char* family : {"deepseek_v4", "qwen3_moe"}) {
    const ModelConfig config = read(family, R"("n_group": 8, "topk_group": 2)");
    EXPECT_EQ(config.expert_groups, 1U) << family;
    EXPECT_EQ(config.kept_groups, 1U) << family;
  }
}

TEST(ExpertGroups, WhatCanNotBeIsRefusedByKey) {
  struct Row {
    const char* fields;
    const char* key;
  };
  for (const auto& [fields, key] : {
           Row{R"("n_group": 0, "topk_group": 1)", "n_group"},
           Row{R"("n_group": 17, "topk_group": 1)", "n_group"},
           Row{R"("n_group": "8", "topk_group": 1)", "n_group"},
           Row{R"("n_group": 5, "topk_group": 5)", "n_group"},     // 16 is no multiple
           Row{R"("n_group": 16, "topk_group": 8)", "n_group"},    // groups of one
           Row{R"("n_group": 4)", "topk_group"},                   // how many are kept?
           Row{R"("topk_group": 1)", "n_group"},                   // of how many?
           Row{R"("n_group": 4, "topk_group": 0)", "topk_group"},  // none
           Row{R"("n_group": 4, "topk_group": 5)", "topk_group"},  // more than there are
           Row{R"("n_group": 1, "topk_group": 2)", "topk_group"},
           Row{R"("n_group": 8, "topk_group": 1)", "topk_group"},  // two experts for four choices
       }) {
    const Error error = refusal_of([&] { read("deepseek_v3", fields); });
    EXPECT_EQ(code_of(error), "MOXIE-M001") << fields;
    EXPECT_EQ(error.code(), ErrorCode::input) << fields;
    EXPECT_NE(error.findings().front().message.find(key), std::string::npos)
        << fields << ": " << error.what();
  }
}

TEST(NormTopk, IsReadUnderEveryFamilysNameAndHasItsDefault) {
  for (const char* family :
       {"deepseek_v4", "deepseek_v3", "kimi_k2", "glm_moe_dsa", "qwen3_moe", "nemotron_h"}) {
    // Qwen3's own code does not normalise unless the config says so.
    EXPECT_EQ(read(family, "").norm_topk, std::string(family) != "qwen3_moe") << family;
    EXPECT_TRUE(read(family, R"("norm_topk_prob": true)").norm_topk) << family;
    EXPECT_FALSE(read(family, R"("norm_topk_prob": false)").norm_topk) << family;
    const Error error = refusal_of([&] { read(family, R"("norm_topk_prob": 1)"); });
    EXPECT_EQ(code_of(error), "MOXIE-M001");
    EXPECT_NE(std::string(error.what()).find("norm_topk_prob"), std::string::npos);
  }
  EXPECT_FALSE(read("kimi_linear", R"("moe_renormalize": false)").norm_topk);
}

}  // namespace
}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// Expert tensors are found by the shape of their names.
#include "model/expert_names.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/tiny_checkpoint.hpp"

namespace moxie {
namespace {

class ExpertNamesTest : public testing::Test {
 protected:
  ExpertNames names_in(const std::vector<std::string>& names) {
    std::vector<test::TinyTensor> tensors;
    for (const std::string& name : names) tensors.push_back({name, DType::u8, {1}, "x"});
    test::write_tensors(folder_.path() / "model.safetensors", tensors);
    checkpoint_ = open_checkpoint(folder_.path() / "model.safetensors");
    return find_expert_names(*checkpoint_);
  }

  test::TempFolder folder_;
  std::optional<Checkpoint> checkpoint_;
};

TEST_F(ExpertNamesTest, AGroupHasItsLayerItsLeavesAndItsLargestExpert) {
  const ExpertNames names =
      names_in({"layers.12.ffn.experts.7.w1.weight", "layers.12.ffn.experts.7.w1.scale",
                "layers.12.ffn.experts.3.w1.weight"});
  ASSERT_EQ(names.groups.size(), 1U);
  const auto& [prefix, group] = *names.groups.begin();
  EXPECT_EQ(prefix, "layers.12.ffn.experts");
  EXPECT_EQ(group.number, 12);
  EXPECT_FALSE(group.mtp);
  EXPECT_EQ(group.expert_end, 8U);
  EXPECT_EQ(group.leaves, (std::map<std::string, DType, std::less<>>{{"w1.weight", DType::u8},
                                                                     {"w1.scale", DType::u8}}));
  EXPECT_EQ(names.main_prefix, "layers.{}.ffn.experts");
  EXPECT_TRUE(names.unmatched.empty());
}

TEST_F(ExpertNamesTest, PredictionBlocksAreApartAndNeverTheMainPrefix) {
  const ExpertNames names =
      names_in({"mtp.1.ffn.experts.0.w1.weight", "mtp.layers.0.mlp.experts.0.up_proj.weight",
                "model.layers.5.mlp.experts.0.up_proj.weight"});
  ASSERT_EQ(names.groups.size(), 3U);
  EXPECT_TRUE(names.groups.at("mtp.1.ffn.experts").mtp);
  EXPECT_EQ(names.groups.at("mtp.1.ffn.experts").number, 1);
  EXPECT_TRUE(names.groups.at("mtp.layers.0.mlp.experts").mtp);
  EXPECT_EQ(names.groups.at("mtp.layers.0.mlp.experts").number, 0);
  EXPECT_FALSE(names.groups.at("model.layers.5.mlp.experts").mtp);
  EXPECT_EQ(names.main_prefix, "model.layers.{}.mlp.experts");
}

TEST_F(ExpertNamesTest, NamesOfAnotherShapeAreKeptForTheMessage) {
  const ExpertNames names = names_in(
      {"experts.gate_up_fused", "model.layers.0.mlp.experts.gate_up_proj",
       "model.layers.0.mlp.experts.0.up_proj.weight", "model.layers.0.mlp.experts.down_proj",
       "block.0.experts.0.w1.weight", "model.layers.0.mlp.experts.99999999999999999999999.w1",
       "model.layers.0.mlp.experts.4", "model.layers.0.mlp.myexperts.4.w1"});
  EXPECT_EQ(names.groups.size(), 1U);
  EXPECT_EQ(names.groups.begin()->second.expert_end, 1U);
  EXPECT_EQ(names.unmatched,
            (std::vector<std::string_view>{
                "experts.gate_up_fused", "model.layers.0.mlp.experts.gate_up_proj",
                "model.layers.0.mlp.experts.down_proj", "block.0.experts.0.w1.weight",
                "model.layers.0.mlp.experts.99999999999999999999999.w1",
                "model.layers.0.mlp.experts.4", "model.layers.0.mlp.myexperts.4.w1"}));
}

TEST_F(ExpertNamesTest, AtMostEightOddNamesAreKept) {
  std::vector<std::string> odd;
  for (int i = 0; i < 20; ++i) odd.push_back("layers.0.experts.fused" + std::to_string(i));
  EXPECT_EQ(names_in(odd).unmatched.size(), 8U);
}

TEST_F(ExpertNamesTest, SharedExpertsAndOtherTensorsAreSkipped) {
  const ExpertNames names =
      names_in({"layers.0.ffn.shared_experts.w1.weight", "layers.0.ffn.shared_expert.0.w1",
                "layers.0.ffn.gate.weight", "embed.weight"});
  EXPECT_TRUE(names.groups.empty());
  EXPECT_TRUE(names.unmatched.empty());
  EXPECT_TRUE(names.main_prefix.empty());
}

// An id that no model has must not make a group of that many experts.
TEST_F(ExpertNamesTest, AnExpertIdThatNoModelHasIsUnmatched) {
  const ExpertNames names = names_in({"layers.0.experts.18446744073709551615.w1.weight"});
  EXPECT_TRUE(names.groups.empty());
  EXPECT_EQ(names.unmatched.size(), 1U);
}

}  // namespace
}  // namespace moxie

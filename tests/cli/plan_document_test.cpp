// SPDX-License-Identifier: Apache-2.0
// The plan's document against the figures of the contract: DeepSeek-V4-Flash on three ranks.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "cli/command.hpp"
#include "moxie/synth.hpp"

namespace moxie {
namespace {

using test::expect_document;
using test::expect_members;
using test::Kind;
using test::Words;

// A folder with the published config and no tensor.
class FlashPlan : public testing::Test {
 protected:
  FlashPlan()
      : config_(folder_.write("flash.json", synth_config("deepseek-v4-flash").dump()).string()) {}

  Json plan(const Words& options = {}) const {
    return expect_document(Words{"plan", config_, "--tp", "3"} + options);
  }

  test::TempFolder folder_;
  std::string config_;
};

std::uint64_t number(const Json& object, const char* key) {
  const Json* value = object.find(key);
  return value == nullptr ? ~std::uint64_t{0} : value->as_unsigned(~std::uint64_t{0});
}

TEST_F(FlashPlan, HasTheAxisOfTheContract) {
  const Json document = plan({"--kernel-align", "128"});
  const auto& axes = document.find("axes")->elements();
  ASSERT_EQ(axes.size(), 5U);
  const Json& axis = axes[0];
  EXPECT_EQ(test::keys_of(axis),
            (std::vector<std::string>{"axis", "original", "virtual", "local", "kernel", "unit",
                                      "overhead_pct", "kernel_overhead_pct"}));
  EXPECT_EQ(axis.find("axis")->as_string(), "moe_inter");
  EXPECT_EQ(number(axis, "original"), 2048U);
  EXPECT_EQ(number(axis, "virtual"), 2112U);
  EXPECT_EQ(number(axis, "local"), 704U);
  EXPECT_EQ(number(axis, "kernel"), 768U);
  EXPECT_EQ(number(axis, "unit"), 32U);
  EXPECT_NEAR(axis.find("overhead_pct")->as_double(), 3.1, 0.05);
  EXPECT_NEAR(axis.find("kernel_overhead_pct")->as_double(), 12.5, 0.05);
  EXPECT_FALSE(document.find("identity")->as_bool(true));
}

TEST_F(FlashPlan, HasTheOtherAxesInOrder) {
  const Json document = plan();
  struct Expected {
    const char* axis;
    std::uint64_t original, virtual_global, local, kernel, unit, backend_only;
  };
  const std::vector<Expected> expected = {{"heads", 64, 72, 24, 32, 8, 8},
                                          {"output_groups", 8, 9, 3, 3, 1, 0},
                                          {"shared_inter", 2048, 2304, 768, 768, 128, 0},
                                          {"vocab", 129280, 129408, 43136, 43136, 192, 0}};
  const auto& axes = document.find("axes")->elements();
  ASSERT_EQ(axes.size(), 1 + expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const Json& axis = axes[i + 1];
    SCOPED_TRACE(expected[i].axis);
    EXPECT_EQ(test::keys_of(axis),
              (std::vector<std::string>{"axis", "original", "virtual", "local", "kernel", "unit",
                                        "backend_only", "overhead_pct", "kernel_overhead_pct"}));
    EXPECT_EQ(axis.find("axis")->as_string(), expected[i].axis);
    EXPECT_EQ(number(axis, "original"), expected[i].original);
    EXPECT_EQ(number(axis, "virtual"), expected[i].virtual_global);
    EXPECT_EQ(number(axis, "local"), expected[i].local);
    EXPECT_EQ(number(axis, "kernel"), expected[i].kernel);
    EXPECT_EQ(number(axis, "unit"), expected[i].unit);
    EXPECT_EQ(number(axis, "backend_only"), expected[i].backend_only);
  }
}

TEST_F(FlashPlan, InNvfp4HasTheFinerUnit) {
  Json open = synth_config("deepseek-v4-flash");
  open.erase("expert_dtype");
  const std::string config = folder_.write("open.json", open.dump()).string();
  const Json document = expect_document({"plan", config, "--tp", "3", "--format", "nvfp4"});
  const Json& axis = document.find("axes")->elements().at(0);
  EXPECT_EQ(number(axis, "virtual"), 2064U);
  EXPECT_EQ(number(axis, "local"), 688U);
  EXPECT_EQ(number(axis, "unit"), 16U);
}

struct Slice {
  std::string tensor;
  std::string unit;
  std::uint64_t src, count, dst;
};

void expect_slices(const Json& rank, const std::vector<Slice>& expected) {
  const auto& slices = rank.find("slices")->elements();
  ASSERT_EQ(slices.size(), expected.size());
  for (std::size_t i = 0; i < slices.size(); ++i) {
    SCOPED_TRACE(expected[i].tensor);
    std::vector<std::string> keys = {"tensor", "unit", "src", "count", "dst", "zero"};
    if (expected[i].tensor == "attn_sink") keys.emplace_back("tail");
    EXPECT_EQ(test::keys_of(slices[i]), keys);
    EXPECT_EQ(slices[i].find("tensor")->as_string(), expected[i].tensor);
    EXPECT_EQ(slices[i].find("unit")->as_string(), expected[i].unit);
    EXPECT_EQ(number(slices[i], "src"), expected[i].src);
    EXPECT_EQ(number(slices[i], "count"), expected[i].count);
    EXPECT_EQ(number(slices[i], "dst"), expected[i].dst);
    EXPECT_EQ(number(slices[i], "zero"), expected[i].dst - expected[i].count);
  }
}

TEST_F(FlashPlan, CutsEveryTensorInItsOwnUnit) {
  const Json document = plan({"--kernel-align", "128"});
  const auto& ranks = document.find("ranks")->elements();
  ASSERT_EQ(ranks.size(), 3U);
  const std::uint64_t rows[] = {704, 704, 640};
  const std::uint64_t groups[] = {3, 3, 2};  // output groups of 8 heads
  const std::uint64_t tiles[] = {6, 6, 4};   // of the shared expert's 2048 columns
  const std::uint64_t words[] = {43136, 43136, 43008};
  for (std::uint64_t rank = 0; rank < 3; ++rank) {
    SCOPED_TRACE(rank);
    const Json& planned = ranks[rank];
    EXPECT_EQ(number(planned, "rank"), rank);
    EXPECT_EQ(number(planned, "tp_rank"), rank);
    EXPECT_EQ(number(planned, "ep_rank"), 0U);
    const auto& experts = planned.find("experts")->elements();
    ASSERT_EQ(experts.size(), 2U);
    EXPECT_EQ(experts[0].as_unsigned(1), 0U);
    EXPECT_EQ(experts[1].as_unsigned(), 256U);
    const std::uint64_t row = 704 * rank;
    const std::uint64_t count = rows[rank];
    expect_slices(planned, {{"gate", "row", row, count, 768},
                            {"up", "row", row, count, 768},
                            {"down", "byte", row / 2, count / 2, 384},
                            {"gate_scale", "row", row, count, 768},
                            {"up_scale", "row", row, count, 768},
                            {"down_scale", "group", row / 32, count / 32, 24},
                            {"wq_b", "row", 12288 * rank, 4096 * groups[rank], 12288},
                            {"wq_b_scale", "tile_row", 96 * rank, 32 * groups[rank], 96},
                            {"attn_sink", "row", 24 * rank, 8 * groups[rank], 32},
                            {"wo_a", "row", 3072 * rank, 1024 * groups[rank], 3072},
                            {"wo_a_scale", "tile_row", 24 * rank, 8 * groups[rank], 24},
                            {"wo_b", "column", 3072 * rank, 1024 * groups[rank], 3072},
                            {"wo_b_scale", "tile_column", 24 * rank, 8 * groups[rank], 24},
                            {"shared_gate", "row", 768 * rank, 128 * tiles[rank], 768},
                            {"shared_gate_scale", "tile_row", 6 * rank, tiles[rank], 6},
                            {"shared_up", "row", 768 * rank, 128 * tiles[rank], 768},
                            {"shared_up_scale", "tile_row", 6 * rank, tiles[rank], 6},
                            {"shared_down", "column", 768 * rank, 128 * tiles[rank], 768},
                            {"shared_down_scale", "tile_column", 6 * rank, tiles[rank], 6},
                            {"embed", "row", 43136 * rank, words[rank], 43136},
                            {"head", "row", 43136 * rank, words[rank], 43136}});
    // 3 projections of 4096 x 768 in MXFP4, 256 experts, 43 layers.
    const std::uint64_t layer = 256ULL * 3 * (4096 * 768 / 2 + 4096 * 768 / 32);
    EXPECT_EQ(number(planned, "bytes_layer"), layer);
    EXPECT_EQ(number(planned, "bytes_total"), layer * 43);
  }
}

TEST_F(FlashPlan, HasTheMembersOfTheContractInItsOrder) {
  const Json document = plan();
  expect_members(document, {{"model", Kind::text},
                            {"format", Kind::text},
                            {"tp", Kind::number},
                            {"ep", Kind::number},
                            {"target", Kind::text},
                            {"act_format", Kind::text},
                            {"identity", Kind::boolean},
                            {"axes", Kind::list},
                            {"ranks", Kind::list},
                            {"kernels", Kind::object},
                            {"workspace_bytes", Kind::number_or_null},
                            {"findings", Kind::list}});
  std::vector<std::string> keys = test::keys_of(document);
  std::size_t at = 0;
  for (const char* key : {"schema", "model", "format", "tp", "ep", "target", "act_format",
                          "identity", "axes", "ranks", "kernels", "workspace_bytes", "findings"}) {
    const auto found = std::ranges::find(keys, key) - keys.begin();
    EXPECT_GE(static_cast<std::size_t>(found), at) << key;
    at = static_cast<std::size_t>(found);
  }
  EXPECT_EQ(keys.back(), "findings");
  expect_members(*document.find("kernels"), {{"route", Kind::text}, {"experts", Kind::text}});
}

TEST_F(FlashPlan, IsAnIdentityWhenNoAxisIsPaddedVirtually) {
  for (const char* ranks : {"1", "2", "4", "8"}) {
    const Json document =
        expect_document({"plan", config_, "--tp", ranks, "--kernel-align", "3072"});
    EXPECT_TRUE(document.find("identity")->as_bool()) << ranks;  // kernel padding is told apart
    EXPECT_GT(document.find("axes")->elements().at(0).find("kernel_overhead_pct")->as_double(), 0);
  }
}

TEST_F(FlashPlan, ForAnEngineSaysWhatIsVetted) {  // T1
  const Words pair = {"--attention", "FLASHINFER_MLA_SPARSE_DSV4", "--moe", "flashinfer_cutlass"};
  const Json document = plan(Words{"--target", "sm120", "--why"} + pair);
  EXPECT_EQ(number(document.find("axes")->elements().at(0), "kernel"), 768U);
  EXPECT_EQ(document.find("kernels")->find("experts")->as_string(), "flashinfer_cutlass");
  EXPECT_TRUE(document.find("why")->elements().at(0).find("chosen")->as_bool());
  test::expect_refusal(4, "MOXIE-P017",
                       Words{"plan", config_, "--tp", "3", "--target", "sm90"} + pair);
  test::expect_refusal(2, "MOXIE-U001", {"plan", config_, "--attention", "FLASHMLA"});
  test::expect_refusal(2, "MOXIE-U001", {"plan", config_, "--moe", "flashinfer_cutlass"});
}

TEST_F(FlashPlan, NumbersRanksByGroupThenPart) {
  const Json document = expect_document({"plan", config_, "--tp", "3", "--ep", "2"});
  const auto& ranks = document.find("ranks")->elements();
  ASSERT_EQ(ranks.size(), 6U);
  for (std::uint64_t rank = 0; rank < 6; ++rank) {
    EXPECT_EQ(number(ranks[rank], "rank"), rank);
    EXPECT_EQ(number(ranks[rank], "ep_rank"), rank / 3);
    EXPECT_EQ(number(ranks[rank], "tp_rank"), rank % 3);
    EXPECT_EQ(ranks[rank].find("experts")->elements().at(0).as_unsigned(1), rank / 3 * 128);
  }
}

TEST_F(FlashPlan, StartsAndEndsBeforeAPersonNotices) {
  std::vector<double> seconds;
  for (int run = 0; run < 7; ++run) {
    const auto start = std::chrono::steady_clock::now();
    test::expect_success({"plan", config_, "--tp", "3"});
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::ranges::nth_element(seconds, seconds.begin() + 3);
  RecordProperty("median_ms", static_cast<int>(seconds[3] * 1000));
  EXPECT_LT(seconds[3], 0.3);  // 0.1 is the aim; the machine may be busy
}

}  // namespace
}  // namespace moxie

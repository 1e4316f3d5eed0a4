// SPDX-License-Identifier: Apache-2.0
// Every published config is planned on any number of ranks, or says that its experts are in no FP4
// format.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "moxie/plan.hpp"
#include "support/refusal.hpp"

namespace moxie {
namespace {

namespace fs = std::filesystem;

fs::path configs() {
  const char* shared = std::getenv("MOXIE_SHARED_DIR");  // NOLINT(concurrency-mt-unsafe)
  return fs::path(shared != nullptr ? shared : MOXIE_SHARED_DIR) / "data" / "configs";
}

TEST(PublishedPlans, CoverTheAxisOnAnyNumberOfRanksOrSayThatThereIsNoFp4) {
  if (!fs::exists(configs())) GTEST_SKIP() << configs() << " is not here";
  std::size_t planned = 0;
  std::size_t without = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(configs())) {
    const std::string stem = entry.path().stem().string();
    if (entry.path().extension() != ".json" || stem.ends_with(".hf_quant_config")) continue;
    const MoeModel model = read_model(open_checkpoint(entry.path()));
    for (const unsigned tp : {1U, 2U, 3U, 4U, 5U, 6U, 7U, 8U, 16U}) {
      SCOPED_TRACE(stem + " tp " + std::to_string(tp));
      const PlanOptions options{.tp = tp, .kernel_align = 128};
      if (!model.format) {
        const Error error = test::refusal_of([&] { (void)make_plan(model, options); });
        EXPECT_EQ(test::code_of(error), "MOXIE-P005");
        EXPECT_NE(error.findings()[0].hint.find("--format"), std::string::npos);
        continue;
      }
      const ShardPlan plan = make_plan(model, options);
      std::uint64_t rows = 0;
      for (const RankPlan& rank : plan.ranks) {
        EXPECT_EQ(rank.slice.rows.src.value, rows);
        rows += rank.slice.rows.count.value;
        EXPECT_EQ(rank.slice.rows.dst.value % 128, 0U);
      }
      EXPECT_EQ(rows, model.config.inter);
    }
    ++(model.format ? planned : without);
  }
  EXPECT_EQ(planned, 25U);
  EXPECT_EQ(without, 8U);
}

// Widths that no kernel of 128 rows reads as they are: the plan says by how much they grow.
TEST(PublishedPlans, ExplainThePaddingOfWidthsBetweenTheKernelsSteps) {
  if (!fs::exists(configs())) GTEST_SKIP() << configs() << " is not here";
  struct Row {
    const char* file;
    unsigned tp;
    std::uint64_t local, kernel;
  };
  for (const Row& row :
       {Row{"DeepSeek-V4.1-Flash", 8, 288, 384}, Row{"gpt-oss-20b", 4, 736, 768},
        Row{"gpt-oss-120b", 4, 736, 768}, Row{"gpt-oss-20b", 8, 384, 384},
        Row{"DeepSeek-V4-Pro", 16, 192, 256}, Row{"Gemma-4-26B-A4B-NVFP4", 2, 352, 384}}) {
    SCOPED_TRACE(std::string(row.file) + " tp " + std::to_string(row.tp));
    const MoeModel model =
        read_model(open_checkpoint(configs() / (std::string(row.file) + ".json")));
    const ShardPlan plan = make_plan(model, {.tp = row.tp, .kernel_align = 128});
    const AxisPlan& axis = plan.inter();
    EXPECT_EQ(axis.local.value, row.local);
    EXPECT_EQ(axis.kernel.value, row.kernel);
    const double percent =
        100.0 *
        (static_cast<double>(row.tp * row.kernel) / static_cast<double>(model.config.inter) - 1);
    EXPECT_DOUBLE_EQ(axis.kernel_overhead_pct, percent);
    for (const RankPlan& rank : plan.ranks)
      EXPECT_EQ(rank.slice.rows.zero().value, row.kernel - rank.slice.rows.count.value);
  }
}

}  // namespace
}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// Clean sets pass without a finding, and the proof says exactly what was proven.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "packed_folder.hpp"
#include "support/refusal.hpp"

namespace moxie {
namespace {

namespace fs = std::filesystem;

using test::PackedFolder;
using test::tiny_options;

void expect_clean(const VerifyReport& report) {
  EXPECT_TRUE(report.passed);
  for (const Finding& finding : report.findings) ADD_FAILURE() << to_string(finding);
}

const Json& at(const Json& json, std::string_view key) {
  const Json* value = json.find(key);
  if (value == nullptr) throw std::runtime_error("no key " + std::string(key));
  return *value;
}

class VerifyClean : public testing::TestWithParam<std::tuple<BlockFormat, FileLayout>> {};

// pit69: what was compared is all there is, once for every rank that should have it.
TEST_P(VerifyClean, SetsOfEveryGridPassAndEveryByteIsCounted) {
  const auto [format, layout] = GetParam();
  test::TinyOptions options = tiny_options(format);
  options.experts = 5;
  std::vector<PlanOptions> grids;
  for (const unsigned tp : {1U, 3U, 5U}) grids.push_back({.tp = tp});  // 5: an empty rank in MXFP4
  grids.push_back({.tp = 2, .ep = 3, .kernel_align = 128});
  for (const PlanOptions& grid : grids) {
    const PackedFolder set(options, grid, layout);
    SCOPED_TRACE(test::describe(set.plan()));
    const VerifyReport report = set.verify();
    expect_clean(report);
    EXPECT_EQ(report.ranks, grid.tp * grid.ep);
    EXPECT_EQ(report.layers, std::vector<int>{0});
    EXPECT_EQ(report.files, grid.tp * grid.ep);
    EXPECT_EQ(report.tensors, 5 * set.plan().layout.segments.size());
    std::uint64_t real = 0;
    std::uint64_t copies = 0;  // of scalars, which every tensor-parallel rank holds
    for (const TensorInfo& tensor : set.model()->checkpoint.tensors()) {
      real += tensor.bytes;
      if (tensor.shape.empty()) copies += tensor.bytes * (grid.tp - 1);
    }
    EXPECT_EQ(report.real_bytes, real);
    std::uint64_t all = 0;
    for (const RankPlan& rank : set.plan().ranks) {
      all += rank.experts.count() * (layout == FileLayout::kernel ? set.plan().layout.stride
                                                                  : set.plan().layout.expert_bytes);
    }
    EXPECT_EQ(report.tail_bytes, all - real - copies);
  }
}

INSTANTIATE_TEST_SUITE_P(Sets, VerifyClean,
                         testing::Combine(testing::ValuesIn(test::kFormats),
                                          testing::Values(FileLayout::logical, FileLayout::kernel)),
                         [](const auto& param) {
                           return std::string(name_of(std::get<0>(param.param))) + "_" +
                                  std::string(name_of(std::get<1>(param.param)));
                         });

TEST(Verify, PassesSetsOfEveryDialectAndModelsWithoutGate) {
  for (const test::TinyDialect dialect : test::kTinyDialects) {
    for (const bool gated : {true, false}) {
      if (!gated && test::is_deepseek(dialect)) continue;
      for (const FileLayout layout : {FileLayout::logical, FileLayout::kernel}) {
        test::TinyOptions options{.dialect = dialect, .layers = 1, .gated = gated};
        const PackedFolder set(options, {.tp = 3}, layout);
        const VerifyReport report = set.verify();
        expect_clean(report);
        EXPECT_EQ(report.tensors, 3 * set.plan().layout.segments.size());
      }
    }
  }
}

// R-10, C17: an absent activation scale is absent in logical files and NaN in blobs; both are
// right.
TEST(Verify, PassesASetWhoseSourceLacksAnActivationScale) {
  for (const FileLayout layout : {FileLayout::logical, FileLayout::kernel}) {
    test::TinyOptions options = tiny_options(BlockFormat::nvfp4);
    options.edits = {test::leave_out("experts.1.w2.input_scale")};
    const PackedFolder set(options, {.tp = 2}, layout);
    const VerifyReport report = set.verify();
    expect_clean(report);
    EXPECT_EQ(report.tensors, 3U * 12 - 1);
  }
}

TEST(Verify, PassesASetOfSomeLayersPackedRankByRank) {
  test::TinyOptions options = tiny_options(BlockFormat::mxfp4);
  options.layers = 3;
  options.mtp_blocks = 1;
  const test::TinyModel model(options);
  const ShardPlan plan = test::plan_of(*model, 3);
  for (const unsigned rank : {2U, 0U, 1U}) {
    pack_to_folder(*model, plan, {.out = model / "packed", .ranks = {rank}, .layers = {0, 2, 3}});
  }
  const VerifyReport report = verify_packed(model / "packed", *model);
  EXPECT_TRUE(report.passed);
  ASSERT_EQ(report.findings.size(), 1U);  // layer 1 is not in the set
  EXPECT_EQ(report.findings[0].code, "MOXIE-V008");
  EXPECT_EQ(report.layers, (std::vector<int>{0, 2, 3}));
  EXPECT_EQ(report.files, 9U);
}

// pit12: a checkpoint of both formats is packed one format at a time.
TEST(Verify, PassesTheBlocksOfTheOtherFormat) {
  test::TinyOptions options = tiny_options(BlockFormat::nvfp4);
  options.layers = 1;
  options.mtp_blocks = 1;  // MXFP4
  const test::TinyModel model(options);
  const ShardPlan plan = make_plan(*model, {.tp = 2, .format = BlockFormat::mxfp4});
  EXPECT_EQ(plan.format, BlockFormat::mxfp4);
  pack_to_folder(*model, plan, {.out = model / "packed", .layers = {1}});
  const VerifyReport report = verify_packed(model / "packed", *model);
  EXPECT_TRUE(report.passed);
  EXPECT_EQ(report.layers, std::vector<int>{1});
  EXPECT_GT(report.real_bytes, 0U);
}

TEST(Verify, WritesAProofOfPlanRanksAndFiles) {
  test::TinyOptions options = tiny_options(BlockFormat::mxfp4);
  options.layers = 2;
  const PackedFolder set(options, {.tp = 2});
  EXPECT_FALSE(fs::exists(set.proof()));
  const VerifyReport report = set.verify();
  const Json proof = Json::parse(test::read_bytes(set.proof()), "proof");
  ASSERT_EQ(proof.members().size(), 3U);
  EXPECT_EQ(at(proof, "plan_hash").as_string(), report.plan_hash);
  const Json plan = Json::parse(test::read_bytes(set.path() / "moxie-plan.json"), "plan");
  EXPECT_EQ(at(plan, "plan_hash").as_string(), report.plan_hash);
  EXPECT_EQ(at(proof, "ranks").dump_compact(), "[0,1]");
  ASSERT_EQ(at(proof, "files").members().size(), 5U);
  const std::string config = test::read_bytes(set.path() / "config.json");
  EXPECT_EQ(at(at(at(proof, "files"), "config.json"), "xxh3_128").as_string(), hash_hex(config));
  for (const unsigned rank : {0U, 1U}) {
    for (const int layer : {0, 1}) {
      const std::string bytes = test::read_bytes(set.file(rank, layer));
      const Json& record =
          at(at(proof, "files"), fs::relative(set.file(rank, layer), set.path()).string());
      EXPECT_EQ(at(record, "bytes").as_unsigned(), bytes.size());
      EXPECT_EQ(at(record, "xxh3_128").as_string(), hash_hex(bytes));
    }
  }
  set.verify();
  EXPECT_EQ(Json::parse(test::read_bytes(set.proof()), "proof"), proof) << "the same again";
}

TEST(Verify, ProgressRisesToItsTotalAndCanStopTheWork) {
  const PackedFolder set(tiny_options(BlockFormat::mxfp4), {.tp = 2});
  std::uint64_t last = 0;
  unsigned calls = 0;
  const auto watch = [&](std::uint64_t done, std::uint64_t total) {
    EXPECT_GE(done, last);
    EXPECT_LE(done, total);
    last = done;
    ++calls;
    return true;
  };
  expect_clean(verify_packed(set.path(), *set.model(), watch));
  EXPECT_GT(calls, 1U);
  fs::remove(set.proof());
  const Error error = test::refusal_of(
      [&] { verify_packed(set.path(), *set.model(), [](auto, auto) { return false; }); });
  EXPECT_EQ(error.code(), ErrorCode::interrupted);
  EXPECT_FALSE(fs::exists(set.proof()));
}

}  // namespace
}  // namespace moxie

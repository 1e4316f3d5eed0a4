// SPDX-License-Identifier: Apache-2.0
// What handles say of themselves, and how long they live.
#include <gtest/gtest.h>

#include "capi/c_rig.hpp"
#include "support/packed_model.hpp"

namespace moxie {
namespace {

using test::RigModel;

std::filesystem::path path_of(const RigModel& model) { return model->checkpoint.path(); }

TEST(CAbi, AModelTellsItsWidthsAndItsLayers) {
  const RigModel model({});
  const test::ModelHandle handle = test::opened(path_of(model));
  moxie_model_info info{.struct_size = sizeof(moxie_model_info)};
  ASSERT_EQ(test::said(moxie_describe_model(handle.get(), &info)), "ok");
  EXPECT_EQ(info.struct_size, sizeof(moxie_model_info));
  EXPECT_EQ(info.packed, 0U);
  EXPECT_EQ(info.hidden, 160U);
  EXPECT_EQ(info.inter, 352U);
  EXPECT_EQ(info.experts, 7U);
  EXPECT_EQ(info.top_k, model->config.top_k);
  ASSERT_EQ(info.layers, 1U);
  std::int32_t layer = -1;
  ASSERT_EQ(test::said(moxie_model_layer(handle.get(), 0, &layer)), "ok");
  EXPECT_EQ(layer, model->layers.front().layer);
}

TEST(CAbi, AConfigAloneIsPlannedAndHasNoLayerToPrepare) {
  const RigModel model({});
  const test::ModelHandle handle = test::opened(path_of(model) / "config.json");
  moxie_model_info info{.struct_size = sizeof(moxie_model_info)};
  ASSERT_EQ(test::said(moxie_describe_model(handle.get(), &info)), "ok");
  EXPECT_EQ(info.layers, 0U);
  moxie_plan_options options = test::plan_options();
  options.target = "sm90";  // no device is needed to plan for one
  options.format = "mxfp4";
  EXPECT_NE(test::planned(handle.get(), options), nullptr);
}

TEST(CAbi, APlanTellsItsRanksAndItsDocument) {
  const RigModel model({});
  moxie_plan_options options = test::plan_options();
  options.tp = 3;
  options.ep = 2;
  const test::PlanHandle plan = test::planned(test::opened(path_of(model)).get(), options);
  const ShardPlan expected = make_plan(*model, {.tp = 3, .ep = 2});
  moxie_plan_info info{.struct_size = sizeof(moxie_plan_info)};
  ASSERT_EQ(test::said(moxie_describe_plan(plan.get(), &info)), "ok");
  EXPECT_EQ(info.ranks, 6U);
  EXPECT_EQ(info.hidden, 160U);
  EXPECT_EQ(info.experts, 7U);
  EXPECT_EQ(info.kernel_inter, expected.inter().kernel.value);
  EXPECT_EQ(info.blob_bytes, expected.layout.stride);
  for (const RankPlan& rank : expected.ranks) {
    moxie_rank_info told{.struct_size = sizeof(moxie_rank_info), .reserved = 9};
    ASSERT_EQ(test::said(moxie_describe_rank(plan.get(), rank.rank, &told)), "ok");
    EXPECT_EQ(told.tp_rank, rank.tp_rank);
    EXPECT_EQ(told.ep_rank, rank.ep_rank);
    EXPECT_EQ(told.reserved, 0U);
    EXPECT_EQ(told.first_expert, rank.experts.range()->first);
    EXPECT_EQ(told.end_expert, rank.experts.range()->end);
    EXPECT_EQ(told.bytes, rank.bytes_layer);
  }
  const char* text = nullptr;
  ASSERT_EQ(test::said(moxie_plan_json(plan.get(), &text)), "ok");
  Json document = Json::parse(text, "plan");
  ASSERT_NE(document.find("findings"), nullptr);
  EXPECT_TRUE(document.find("findings")->is_array());
  document.erase("findings");
  EXPECT_EQ(document, to_json(expected));
}

TEST(CAbi, TheDocumentHoldsTheFindingsOfOpeningAndOfPlanning) {
  test::TinyOptions tiny = test::tiny_options(BlockFormat::mxfp4);
  tiny.layers = 2;
  const test::TinyModel model(tiny);
  moxie_plan_options options = test::plan_options();
  options.tp = 5;  // three groups of 32: two ranks own nothing
  const test::PlanHandle plan = test::planned(test::opened(model / "model").get(), options);
  const char* text = nullptr;
  ASSERT_EQ(test::said(moxie_plan_json(plan.get(), &text)), "ok");
  std::vector<std::string> codes;
  const Json document = Json::parse(text, "plan");
  for (const Json& finding : document.find("findings")->elements())
    codes.push_back(finding.find("code")->as_string());
  std::vector<std::string> expected;
  for (const Finding& finding : model->checkpoint.findings()) expected.push_back(finding.code);
  for (const Finding& finding : model->findings) expected.push_back(finding.code);
  expected.insert(expected.end(), 2, "MOXIE-P007");
  EXPECT_EQ(codes, expected);
}

TEST(CAbi, PlansAndLayersOutliveWhatTheyWereMadeFrom) {
  const RigModel model({});
  test::ModelHandle handle = test::opened(path_of(model));
  test::PlanHandle plan = test::planned(handle.get());
  handle.reset();
  const test::LayerHandle layer = test::prepared(plan.get());
  plan.reset();
  const Probe probe = test::probe_of(*model, 2, model->config.top_k);
  const MoeLayer expected = test::layer_of(*model, make_plan(*model, {}), spec_of(model->config));
  EXPECT_EQ(test::bits_of(test::c_forward(layer.get(), probe)),
            test::bits_of(test::run_layer(expected, probe)));
}

TEST(CAbi, DestroyingNothingDoesNothing) {
  moxie_layer_destroy(nullptr);
  moxie_plan_destroy(nullptr);
  moxie_model_destroy(nullptr);
}

TEST(CAbi, WorkspaceGrowsWithTokensAndIsThatOfTheCppApi) {
  const RigModel model({});
  const test::LayerHandle layer =
      test::prepared(test::planned(test::opened(path_of(model)).get()).get());
  std::uint64_t before = 0;
  for (const std::uint64_t tokens : {0U, 1U, 64U, 513U}) {
    std::uint64_t bytes = 0;
    ASSERT_EQ(test::said(moxie_workspace_size(layer.get(), tokens, &bytes)), "ok");
    EXPECT_EQ(bytes, workspace_size(make_plan(*model, {}), spec_of(model->config), tokens));
    EXPECT_GE(bytes, before);
    before = bytes;
  }
}

}  // namespace
}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// Plans with nvfp4 activations: where their global scales come from, by default and by choice.
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "plan/plan_model.hpp"
#include "support/refusal.hpp"

namespace moxie {
namespace {

using test::expect_refusal;
using test::plan_model;

MoeModel model_of(BlockFormat format, bool input_scales) {
  MoeModel model = plan_model({}, format);
  model.config.input_scales = input_scales;
  return model;
}

constexpr PlanOptions kNvfp4 = {.act_format = ActFormat::nvfp4};

PlanOptions with(ActScale scale) {
  PlanOptions options = kNvfp4;
  options.act_scale = scale;
  return options;
}

TEST(PlanActScale, IsTheCheckpointsWhereTheConfigDeclaresIt) {
  const MoeModel stored = model_of(BlockFormat::nvfp4, true);
  EXPECT_EQ(make_plan(stored, kNvfp4).act_scale, ActScale::checkpoint);
  EXPECT_EQ(make_plan(stored, with(ActScale::checkpoint)).act_scale, ActScale::checkpoint);
  for (const MoeModel& model :
       {model_of(BlockFormat::nvfp4, false), model_of(BlockFormat::mxfp4, false),
        model_of(BlockFormat::mxfp4, true)}) {
    for (const PlanOptions& options : {kNvfp4, with(ActScale::checkpoint)}) {
      const Error error = test::refusal_of([&] { (void)make_plan(model, options); });
      EXPECT_EQ(error.code(), ErrorCode::unsupported);
      EXPECT_EQ(test::code_of(error), "MOXIE-P012");
      EXPECT_NE(error.findings()[0].hint.find("--act-scale"), std::string::npos);
    }
  }
}

TEST(PlanActScale, OtherPoliciesSuitEveryFormatOfTheWeights) {
  for (const BlockFormat format : test::kFormats) {
    for (const bool stored : {true, false}) {
      for (const ActScale scale : {ActScale::warmup, ActScale::dynamic, ActScale::row}) {
        const ShardPlan plan = make_plan(model_of(format, stored), with(scale));
        EXPECT_EQ(plan.act_scale, scale);
        EXPECT_EQ(plan.act_margin, 8);
        EXPECT_EQ(plan.kernel, "cpu.portable.experts");
      }
    }
  }
}

TEST(PlanActScale, OptionsThatNothingConsumesAreAUsageError) {
  const MoeModel model = model_of(BlockFormat::nvfp4, true);
  for (const ActFormat format : {ActFormat::bf16, ActFormat::fp8, ActFormat::fp8x2,
                                 ActFormat::mxfp8, ActFormat::int8, ActFormat::int8x2}) {
    expect_refusal(
        [&] { (void)make_plan(model, {.act_format = format, .act_scale = ActScale::row}); },
        ErrorCode::usage, "MOXIE-P011");
    expect_refusal([&] { (void)make_plan(model, {.act_format = format, .act_margin = 8}); },
                   ErrorCode::usage, "MOXIE-P011");
  }
  for (const ActScale scale : {ActScale::checkpoint, ActScale::dynamic, ActScale::row}) {
    PlanOptions options = with(scale);
    options.act_margin = 8;
    expect_refusal([&] { (void)make_plan(model, options); }, ErrorCode::usage, "MOXIE-P011");
  }
  for (const double margin : {0.0, -8.0, 0.99, 1e300, std::numeric_limits<double>::quiet_NaN(),
                              std::numeric_limits<double>::infinity()}) {
    PlanOptions options = with(ActScale::warmup);
    options.act_margin = margin;
    expect_refusal([&] { (void)make_plan(model, options); }, ErrorCode::usage, "MOXIE-P001");
  }
}

// Documents of other formats are what they were: their text is hashed.
TEST(PlanActScale, StandsInTheDocumentOfNvfp4Alone) {
  const MoeModel model = model_of(BlockFormat::nvfp4, true);
  for (const ActFormat format : {ActFormat::bf16, ActFormat::fp8, ActFormat::fp8x2,
                                 ActFormat::mxfp8, ActFormat::int8, ActFormat::int8x2}) {
    const Json json = to_json(make_plan(model, {.act_format = format}));
    EXPECT_EQ(json.find("act_scale"), nullptr);
    EXPECT_EQ(json.find("act_margin"), nullptr);
  }
  for (const ActScale scale :
       {ActScale::checkpoint, ActScale::warmup, ActScale::dynamic, ActScale::row}) {
    PlanOptions options = with(scale);
    if (scale == ActScale::warmup) options.act_margin = 2.5;
    const ShardPlan plan = make_plan(model, options);
    const Json json = to_json(plan);
    EXPECT_EQ(json.find("act_scale")->as_string(), name_of(scale));
    EXPECT_EQ(json.find("act_margin") != nullptr, scale == ActScale::warmup);
    const ShardPlan back = plan_from_json(Json::parse(json.dump(), "plan"), "plan");
    EXPECT_EQ(back.act_scale, scale);
    EXPECT_EQ(back.act_margin, plan.act_margin);
    EXPECT_EQ(to_json(back).dump(), json.dump());
  }
}

TEST(PlanActScale, AnEditedDocumentIsRefused) {
  const MoeModel model = model_of(BlockFormat::mxfp4, false);
  const Json warmup = to_json(make_plan(model, with(ActScale::warmup)));
  const auto expect_refused = [](const Json& json) {
    expect_refusal([&] { (void)plan_from_json(json, "plan"); }, ErrorCode::input, "MOXIE-K006");
  };
  expect_refused(Json(warmup).set("act_scale", "checkpoint"));  // MXFP4 stores none
  expect_refused(Json(warmup).set("act_scale", "best"));
  for (const Json& margin : {Json(0), Json(0.5), Json("8"), Json(nullptr), Json(1e300)})
    expect_refused(Json(warmup).set("act_margin", margin));
  for (const char* key : {"act_scale", "act_margin"}) {
    Json without = warmup;
    without.erase(key);
    expect_refused(without);
  }
}

}  // namespace
}  // namespace moxie

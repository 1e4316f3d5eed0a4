// SPDX-License-Identifier: Apache-2.0
// The plan's document reads back as the same plan, and a document that was edited is refused.
#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>

#include "plan/plan_model.hpp"
#include "support/forced_kernels.hpp"
#include "support/refusal.hpp"

namespace moxie {
namespace {

using test::code_of;
using test::plan_model;
using test::refusal_of;

ShardPlan small_plan(BlockFormat format, bool gated = true, const Placement& placement = {}) {
  const MoeModel model =
      plan_model({.hidden = 64, .inter = 96, .experts = 5, .layers = 2, .gated = gated}, format);
  return make_plan(model, {.tp = 2, .ep = 2, .kernel_align = 128, .placement = placement});
}

Json whole(const ShardPlan& plan) { return to_json(plan).set("layout", to_json(plan.layout)); }

// Every document that differs from `json` in one place. `edit` gives the replacements of a value
// that holds no others; each comes with the path of its place.
using Edit = std::function<std::vector<Json>(const Json&)>;
using Visit = std::function<void(const Json&, const std::string&)>;

void each_edit(const Json& json, const Edit& edit, const std::string& path, const Visit& visit) {
  if (json.is_object()) {
    for (const JsonMember& member : json.members()) {
      each_edit(member.value, edit, path + "." + member.key,
                [&](const Json& value, const auto& at) {
                  Json copy = json;
                  visit(copy.set(member.key, value), at);
                });
    }
  } else if (json.is_array()) {
    for (std::size_t i = 0; i < json.elements().size(); ++i) {
      each_edit(json.elements()[i], edit, path + "." + std::to_string(i),
                [&](const Json& value, const auto& at) {
                  Json::Array elements = json.elements();
                  elements[i] = value;
                  visit(Json(elements), at);
                });
    }
  } else {
    for (const Json& value : edit(json)) visit(value, path);
  }
}

std::vector<Json> other_values(const Json& value) {
  if (value.is_bool()) return {Json(!value.as_bool()), Json(0)};
  if (value.is_null()) return {Json("cpu.portable.route"), Json(-1)};
  if (value.is_string()) return {Json(value.as_string() + "x"), Json(""), Json(nullptr), Json(1)};
  const bool whole_number = value.number_text().find('.') == std::string::npos;
  if (!whole_number) return {Json(value.as_double() + 1.0), Json(value.as_double() - 1.0)};
  const std::uint64_t number = value.as_unsigned();
  std::vector<Json> values = {Json(number + 1), Json("1"), Json(nullptr), Json(0.5),
                              Json(~std::uint64_t{0})};
  values.push_back(number == 0 ? Json(-1) : Json(number - 1));
  return values;
}

TEST(PlanJson, HoldsTheFieldsOfTheContract) {
  const ShardPlan plan = make_plan(plan_model(test::published("V4-Flash"), BlockFormat::mxfp4),
                                   {.tp = 3, .kernel_align = 128});
  const Json json = to_json(plan);
  std::vector<std::string> keys;
  for (const JsonMember& member : json.members()) keys.push_back(member.key);
  EXPECT_EQ(keys,
            (std::vector<std::string>{"schema", "model", "format", "tp", "ep", "target",
                                      "act_format", "identity", "hidden", "experts", "layers",
                                      "gated", "axes", "ranks", "kernels", "workspace_bytes"}));
  EXPECT_EQ(json.find("axes")->elements()[0].dump_compact(),
            R"({"axis":"moe_inter","original":2048,"virtual":2112,"local":704,"kernel":768,)"
            R"("unit":32,"overhead_pct":3.1,"kernel_overhead_pct":12.5})");
  const Json& rank = json.find("ranks")->elements()[2];
  EXPECT_EQ(rank.find("experts")->dump_compact(), "[0,256]");
  EXPECT_EQ(rank.find("slices")->dump_compact(),
            R"([{"tensor":"gate","unit":"row","src":1408,"count":640,"dst":768,"zero":128},)"
            R"({"tensor":"up","unit":"row","src":1408,"count":640,"dst":768,"zero":128},)"
            R"({"tensor":"down","unit":"byte","src":704,"count":320,"dst":384,"zero":64},)"
            R"({"tensor":"gate_scale","unit":"row","src":1408,"count":640,"dst":768,"zero":128},)"
            R"({"tensor":"up_scale","unit":"row","src":1408,"count":640,"dst":768,"zero":128},)"
            R"({"tensor":"down_scale","unit":"group","src":44,"count":20,"dst":24,"zero":4}])");
  EXPECT_TRUE(json.find("workspace_bytes")->is_null());
  EXPECT_EQ(json.find("schema")->as_string(), "moxie.plan/1");
}

TEST(PlanJson, ReadsBackAsTheSamePlan) {
  for (const BlockFormat format : test::kFormats) {
    for (const bool gated : {true, false}) {
      const ShardPlan plan = small_plan(format, gated);
      for (const Json& document : {to_json(plan), whole(plan)}) {
        const ShardPlan back =
            plan_from_json(Json::parse(document.dump(), "plan"), "moxie-plan.json");
        EXPECT_EQ(to_json(back).dump(), to_json(plan).dump());
        EXPECT_EQ(back.layout, plan.layout);
        EXPECT_DOUBLE_EQ(back.inter().overhead_pct, plan.inter().overhead_pct);
        EXPECT_DOUBLE_EQ(back.inter().kernel_overhead_pct, plan.inter().kernel_overhead_pct);
        ASSERT_EQ(back.ranks.size(), plan.ranks.size());
        for (std::size_t i = 0; i < plan.ranks.size(); ++i)
          EXPECT_EQ(back.ranks[i].slice, plan.ranks[i].slice);
      }
    }
  }
}

TEST(PlanJson, EveryGoldenShapeReadsBack) {
  for (const char* model : {"V4-Flash", "V4-Pro", "V4.1-Flash", "gpt-oss"}) {
    for (const BlockFormat format : test::kFormats) {
      for (const unsigned tp : {1U, 3U, 7U, 16U, 64U}) {
        const ShardPlan plan = make_plan(plan_model(test::published(model), format), {.tp = tp});
        const Json document = Json::parse(whole(plan).dump(), "plan");
        EXPECT_EQ(to_json(plan_from_json(document, "plan")).dump(), to_json(plan).dump());
      }
    }
  }
}

// Nothing in the document repeats these, so that another value is another plan; the hash of a
// packed set covers them.
const std::set<std::string> kFree = {".model", ".workspace_bytes"};

TEST(PlanJson, EveryEditedValueIsRefused) {
  const Placement map{.kind = PlacementKind::file, .map = {{4, 0, 2}, {1, 3, 0}}};
  const Json documents[] = {
      whole(small_plan(BlockFormat::mxfp4)), whole(small_plan(BlockFormat::nvfp4)),
      whole(small_plan(BlockFormat::mxfp4, true, {PlacementKind::interleaved})),
      whole(small_plan(BlockFormat::mxfp4, true, map))};
  for (const Json& document : documents) {
    std::size_t edits = 0;
    std::set<std::string> accepted;
    each_edit(document, other_values, "", [&](const Json& edited, const std::string& path) {
      ++edits;
      try {
        const ShardPlan plan = plan_from_json(edited, "moxie-plan.json");
        accepted.insert(path);
        EXPECT_TRUE(kFree.contains(path)) << path << ": " << edited.dump_compact();
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::input) << path << ": " << error.what();
        EXPECT_EQ(code_of(error), "MOXIE-K006") << path;
        EXPECT_EQ(error.findings()[0].where.file, "moxie-plan.json");
      }
    });
    EXPECT_GT(edits, 700U);
    EXPECT_EQ(accepted, (std::set<std::string>{".model"}));
  }
}

TEST(PlanJson, AnotherActivationFormatOfTheSameKernelIsAnotherPlan) {
  const test::PortableKernel forced;
  Json document = whole(small_plan(BlockFormat::mxfp4));
  for (const ActFormat format : {ActFormat::fp8, ActFormat::fp8x2, ActFormat::int8}) {
    document.set("act_format", name_of(format));
    EXPECT_EQ(plan_from_json(document, "plan").act_format, format);
  }
  // It would need a policy of scales.
  EXPECT_EQ(code_of(refusal_of(
                [&] { (void)plan_from_json(document.set("act_format", "nvfp4"), "plan"); })),
            "MOXIE-K006");
}

TEST(PlanJson, OtherLegalNamesAreRefusedWhereTheyDoNotFit) {
  const Json document = whole(small_plan(BlockFormat::mxfp4));
  for (const auto& [key, name] : {std::pair{"format", "nvfp4"}, std::pair{"target", "sm90"},
                                  std::pair{"schema", "moxie.plan/2"}}) {
    Json edited = document;
    const Error error = refusal_of([&] { (void)plan_from_json(edited.set(key, name), "plan"); });
    EXPECT_EQ(error.code(), ErrorCode::input) << key;
    EXPECT_EQ(code_of(error), "MOXIE-K006") << key;
  }
}

TEST(PlanJson, EveryAbsentMemberIsRefusedByName) {
  const Json document = whole(small_plan(BlockFormat::nvfp4));
  const auto refuse = [](const Json& edited, const std::string& path) {
    const Error error = refusal_of([&] { (void)plan_from_json(edited, "plan"); });
    EXPECT_EQ(error.code(), ErrorCode::input) << path;
    EXPECT_EQ(code_of(error), "MOXIE-K006") << path;
  };
  for (const JsonMember& member : document.members()) {
    if (member.key == "layout") continue;  // follows from the rest
    Json edited = document;
    edited.erase(member.key);
    refuse(edited, member.key);
  }
  for (const char* list : {"axes", "ranks"}) {
    for (const JsonMember& member : document.find(list)->elements()[0].members()) {
      Json::Array elements = document.find(list)->elements();
      elements[0].erase(member.key);
      refuse(Json(document).set(list, Json(elements)), std::string(list) + "." + member.key);
    }
    Json::Array fewer = document.find(list)->elements();
    fewer.pop_back();
    refuse(Json(document).set(list, Json(fewer)), list);
    Json::Array more = document.find(list)->elements();
    more.push_back(more.front());
    refuse(Json(document).set(list, Json(more)), list);
  }
  for (const JsonMember& member : document.find("layout")->members()) {
    Json layout = *document.find("layout");
    layout.erase(member.key);
    refuse(Json(document).set("layout", layout), "layout." + member.key);
  }
  for (const char* text : {"{}", "[]", "null", "3", "\"plan\""})
    refuse(Json::parse(text, "t"), text);
}

TEST(PlanJson, WhatOtherStagesAddIsLeftAlone) {
  const ShardPlan plan = small_plan(BlockFormat::mxfp4);
  Json layout = to_json(plan.layout).set("files", "logical");
  const Json document = to_json(plan)
                            .set("findings", Json::array())
                            .set("plan_hash", "0123")
                            .set("layout", std::move(layout));
  EXPECT_EQ(to_json(plan_from_json(document, "plan")).dump(), to_json(plan).dump());
}

TEST(PlanJson, AWorkspaceIsKept) {
  Json document = to_json(small_plan(BlockFormat::mxfp4));
  EXPECT_EQ(plan_from_json(document.set("workspace_bytes", 4096), "plan").workspace_bytes, 4096U);
}

}  // namespace
}  // namespace moxie

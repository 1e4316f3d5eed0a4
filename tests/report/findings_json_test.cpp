// SPDX-License-Identifier: Apache-2.0
// Findings and refusals as JSON.
#include <gtest/gtest.h>

#include "moxie/report.hpp"

namespace moxie {
namespace {

TEST(FindingsJson, NamesEveryPlaceThatApplies) {
  const Finding finding{.code = "MOXIE-C003",
                        .message = "wrong dtype",
                        .where = {.file = "a.safetensors",
                                  .tensor = "x",
                                  .layer = 3,
                                  .expert = 2,
                                  .rank = 1U,
                                  .axis = "moe_inter"},
                        .expected = "U8",
                        .got = "I8",
                        .hint = "convert it"};
  EXPECT_EQ(to_json(finding).dump_compact(),
            R"({"code":"MOXIE-C003","severity":"error","message":"wrong dtype",)"
            R"("where":{"file":"a.safetensors","tensor":"x","layer":3,"expert":2,"rank":1,)"
            R"("axis":"moe_inter"},"expected":"U8","got":"I8","hint":"convert it"})");
}

TEST(FindingsJson, LeavesOutPlacesThatDoNotApplyAndKeepsAllOtherKeys) {
  const Finding finding{
      .code = "MOXIE-C009", .severity = Severity::warning, .message = "m", .where = {.layer = 0}};
  EXPECT_EQ(to_json(finding).dump_compact(),
            R"({"code":"MOXIE-C009","severity":"warning","message":"m","where":{"layer":0},)"
            R"("expected":"","got":"","hint":""})");
  EXPECT_EQ(to_json(Finding{.code = "A"}).find("where")->dump_compact(), "{}");
}

TEST(FindingsJson, ARefusalHoldsItsSchemaAndItsFindings) {
  const Json json = refusal_json("moxie.plan/1", {{.code = "MOXIE-P014", .message = "no kernel"}});
  EXPECT_EQ(json.members().size(), 3U);
  EXPECT_EQ(json.members()[0].key, "schema");
  EXPECT_EQ(json.find("schema")->as_string(), "moxie.plan/1");
  EXPECT_FALSE(json.find("ok")->as_bool(true));
  ASSERT_EQ(json.find("findings")->elements().size(), 1U);
  EXPECT_EQ(json.find("findings")->elements()[0].find("code")->as_string(), "MOXIE-P014");
  EXPECT_EQ(to_json(std::vector<Finding>{}).dump_compact(), "[]");
}

}  // namespace
}  // namespace moxie

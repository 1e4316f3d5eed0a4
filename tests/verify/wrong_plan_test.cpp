// SPDX-License-Identifier: Apache-2.0
// Plans that were edited, and models that are not the set's.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "packed_folder.hpp"
#include "support/forced_kernels.hpp"
#include "support/refusal.hpp"

namespace moxie {
namespace {

namespace fs = std::filesystem;

using test::count_of;
using test::PackedFolder;
using test::tiny_options;

// Adds one to every number of a document in turn.
void for_each_number(const Json& json, const std::function<void(const Json&)>& changed) {
  if (json.is_number()) {
    changed(Json(json.as_unsigned() + 1));
    return;
  }
  for (std::size_t i = 0; i < json.elements().size(); ++i) {
    for_each_number(json.elements()[i], [&](const Json& number) {
      Json::Array elements = json.elements();
      elements[i] = number;
      changed(Json(std::move(elements)));
    });
  }
  for (const JsonMember& member : json.members()) {
    for_each_number(member.value, [&](const Json& number) {
      Json copy = json;
      changed(copy.set(member.key, number));
    });
  }
}

// pit68, pit69: the plan is a claim. An edit is found by its hash at the latest.
TEST(VerifyPlan, NoNumberOfThePlanCanBeEdited) {
  const PackedFolder set(tiny_options(BlockFormat::nvfp4), {.tp = 2, .kernel_align = 64});
  const fs::path path = set.path() / "moxie-plan.json";
  const Json plan = Json::parse(test::read_bytes(path), "plan");
  unsigned numbers = 0;
  for_each_number(plan, [&](const Json& edited) {
    ++numbers;
    set.write(path, edited.dump());
    try {
      const VerifyReport report = set.verify();
      EXPECT_FALSE(report.passed);
      EXPECT_EQ(report.findings.front().code, "MOXIE-V005");
    } catch (const Error& error) {
      EXPECT_TRUE(error.code() == ErrorCode::input || error.code() == ErrorCode::verdict);
    }
  });
  EXPECT_GT(numbers, 100U);
}

TEST(VerifyPlan, EditedWordOrHashIsFound) {
  const test::PortableKernel forced;
  const PackedFolder set(tiny_options(BlockFormat::mxfp4), {.tp = 2});
  const fs::path path = set.path() / "moxie-plan.json";
  const Json plan = Json::parse(test::read_bytes(path), "plan");
  for (const auto& [key, value] : std::vector<std::pair<const char*, const char*>>{
           {"act_format", "fp8"}, {"plan_hash", "00000000000000000000000000000000"}}) {
    Json edited = plan;
    set.write(path, edited.set(key, value).dump());
    const VerifyReport report = set.verify();
    EXPECT_FALSE(report.passed);
    EXPECT_EQ(count_of(report, "MOXIE-V005"), key == std::string("plan_hash") ? 3U : 1U);
  }
}

TEST(VerifyPlan, AnotherModelIsNoProofAndLeavesTheOneThereIs) {
  const PackedFolder set(tiny_options(BlockFormat::nvfp4), {.tp = 2});
  set.verify();
  test::TinyOptions other_experts = tiny_options(BlockFormat::nvfp4);
  other_experts.experts = 4;
  test::TinyOptions other_family = tiny_options(BlockFormat::nvfp4);
  other_family.dialect = test::TinyDialect::modelopt;
  for (const test::TinyOptions& options :
       {tiny_options(BlockFormat::nvfp4, 112), tiny_options(BlockFormat::nvfp4, 96, 32),
        tiny_options(BlockFormat::mxfp4), other_experts, other_family}) {
    const test::TinyModel other(options);
    const Error error = test::refusal_of([&] { verify_packed(set.path(), *other); });
    EXPECT_EQ(error.code(), ErrorCode::verdict);
    EXPECT_EQ(test::code_of(error), "MOXIE-V007");
    EXPECT_TRUE(fs::exists(set.proof()));
  }
}

TEST(VerifyPlan, FolderThatIsNoPackedSetIsRefusedAndLeftAlone) {
  const test::TinyModel model(BlockFormat::mxfp4);
  model.folder().write("other/moxie-proof.json", "{}");
  for (const char* folder : {"model", "absent", "other"}) {
    const Error error = test::refusal_of([&] { verify_packed(model / folder, *model); });
    EXPECT_EQ(error.code(), ErrorCode::input);
    EXPECT_EQ(test::code_of(error), "MOXIE-K005");
  }
  EXPECT_TRUE(fs::exists(model / "other/moxie-proof.json"));
}

TEST(VerifyPlan, NameThatTheSystemRefusesIsAnEnvironmentError) {
  const test::TinyModel model(BlockFormat::mxfp4);
  const Error error =
      test::refusal_of([&] { verify_packed(model / std::string(300, 'x'), *model); });
  EXPECT_EQ(error.code(), ErrorCode::environment);
}

// A layer that the source does not have can not be proven.
TEST(VerifyPlan, LayerThatTheSourceLacksIsRefused) {
  const PackedFolder set(test::two_layers(), {.tp = 2});
  test::TinyOptions options = test::two_layers();
  options.edits = {test::leave_out("layers.1.ffn.experts.0.w1.weight")};
  const test::TinyModel source(options);
  const Error error = test::refusal_of([&] { verify_packed(set.path(), *source); });
  EXPECT_EQ(error.code(), ErrorCode::input);
  EXPECT_EQ(test::code_of(error), "MOXIE-M004");
}

}  // namespace
}  // namespace moxie

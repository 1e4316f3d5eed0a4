// SPDX-License-Identifier: Apache-2.0
// A model that is whole anywhere is packed whole, or it is said why not.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "moxie/pack.hpp"
#include "pack/whole_expectations.hpp"
#include "support/packed_model.hpp"
#include "support/refusal.hpp"
#include "support/whole_checkpoint.hpp"

namespace moxie {
namespace {

namespace fs = std::filesystem;

using test::narrow_v4;
using test::plan_of;
using test::refusal_of;
using test::WholeCheckpoint;

bool is_around(const std::string& name) {
  return !test::is_routed(name) && name.find(".ffn.gate.") == std::string::npos;
}

// Of one layer, all that is neither of experts nor of the router.
test::TinyEdit change_around(std::string prefix, bool keep_under_another_name) {
  return [prefix = std::move(prefix), keep_under_another_name](test::TinyTensor& tensor) {
    if (!tensor.name.starts_with(prefix) || !is_around(tensor.name)) return true;
    tensor.name = "model." + tensor.name;
    return keep_under_another_name;
  };
}

std::set<std::string> listed_of(const V4Config& config, std::uint64_t layer) {
  std::set<std::string> names;
  for (const ModelTensor& tensor : layer_tensors(config, layer)) {
    if (is_around(tensor.name)) names.insert(tensor.name);
  }
  return names;
}

// A checkpoint whose config.json says something else than what its tensors were made for.
class Edited {
 public:
  Edited(test::WholeOptions options, const Json& config) {
    test::write_whole(path(), options);
    std::ofstream(path() / "config.json") << config.dump();
    model_ = read_model(open_checkpoint(path()));
  }

  const MoeModel& operator*() const { return *model_; }
  fs::path operator/(std::string_view name) const { return folder_.path() / name; }

 private:
  fs::path path() const { return folder_.path() / "model"; }

  test::TempFolder folder_;
  std::optional<MoeModel> model_;
};

TEST(PackCompleteness, ALayerWithNothingAroundItsExpertsIsRefusedWhereOthersHaveThat) {
  for (const bool renamed : {false, true}) {
    const WholeCheckpoint model(
        {.config = narrow_v4({}, {0, 0, 0}), .edits = {change_around("layers.1.", renamed)}});
    for (const std::vector<int>& layers : {std::vector<int>{}, {1}}) {
      const Error error = refusal_of([&] {
        pack_to_folder(*model, plan_of(*model, 2), {.out = model / "out", .layers = layers});
      });
      EXPECT_EQ(error.code(), ErrorCode::input);
      std::set<std::string> absent;
      for (const Finding& finding : error.findings()) {
        EXPECT_EQ(finding.code, "MOXIE-K013") << error.what();
        absent.insert(finding.where.tensor);
      }
      EXPECT_EQ(absent, listed_of(model.config(), 1));
      EXPECT_FALSE(fs::exists(model / "out"));
    }
    EXPECT_NO_THROW(
        pack_to_folder(*model, plan_of(*model, 2), {.out = model / "out", .layers = {0}}));
  }
}

TEST(PackCompleteness, AMainLayerOfWhichNothingIsThereIsNamed) {
  const WholeCheckpoint model(
      {.config = narrow_v4({}, {0, 0, 0}), .layers = std::vector<std::uint64_t>{0, 2}});
  const Error error =
      refusal_of([&] { pack_to_folder(*model, plan_of(*model, 2), {.out = model / "out"}); });
  EXPECT_EQ(test::code_of(error), "MOXIE-K013");
  EXPECT_EQ(error.findings().front().where.layer, 1);
}

TEST(PackCompleteness, ADraftBlockOfWhichNothingIsThereIsAWarning) {
  const WholeCheckpoint model({.config = narrow_v4(), .layers = std::vector<std::uint64_t>{0}});
  const PackReport report = pack_to_folder(*model, plan_of(*model, 2), {.out = model / "out"});
  ASSERT_EQ(report.findings.size(), 1U);
  EXPECT_EQ(report.findings.front().code, "MOXIE-K017");
  EXPECT_EQ(report.findings.front().severity, Severity::warning);
  EXPECT_EQ(report.findings.front().where.layer, 1);
  EXPECT_TRUE(pack_to_folder(*model, plan_of(*model, 2), {.out = model / "main", .drafts = false})
                  .findings.empty());
}

TEST(PackCompleteness, ADraftBlocksShardThatIsNotOnDiskIsNamed) {
  const test::TempFolder folder;
  test::write_whole(folder.path() / "model", {.config = narrow_v4(), .index = true});
  fs::remove(folder.path() / "model" / "model-1.safetensors");
  const MoeModel model = read_model(open_checkpoint(folder.path() / "model"));
  const Error error = refusal_of(
      [&] { pack_to_folder(model, plan_of(model, 2), {.out = folder.path() / "packed"}); });
  for (const Finding& finding : error.findings()) {
    EXPECT_EQ(finding.code, "MOXIE-C010") << error.what();
    EXPECT_TRUE(finding.where.file.ends_with("model-1.safetensors")) << finding.where.file;
  }
}

struct BadKey {
  const char* key;
  Json value;
  const char* got;
};

TEST(PackCompleteness, AConfigThatDoesNotSizeTheModelIsRefusedByKeyAndPacksNamedLayers) {
  for (const BadKey& bad : {BadKey{"o_lora_rank", Json(), "none"},
                            {"o_groups", Json(0), "0"},
                            {"o_groups", Json(5), "5"},
                            {"vocab_size", Json(std::uint64_t{1} << 40), "1099511627776"},
                            {"compress_ratios", Json::array(), "[]"},
                            {"compress_ratios", Json(), "none"}}) {
    SCOPED_TRACE(bad.key);
    const Edited model({.config = narrow_v4()}, narrow_v4().set(bad.key, bad.value));
    const Error error =
        refusal_of([&] { pack_to_folder(*model, plan_of(*model, 2), {.out = model / "out"}); });
    EXPECT_EQ(error.code(), ErrorCode::input);
    ASSERT_EQ(error.findings().size(), 1U) << error.what();
    const Finding& finding = error.findings().front();
    EXPECT_EQ(finding.code, "MOXIE-K015");
    EXPECT_NE(finding.message.find(bad.key), std::string::npos) << finding.message;
    EXPECT_EQ(finding.got, bad.got);
    EXPECT_FALSE(finding.expected.empty());
    EXPECT_NE(finding.hint.find("--layers 0"), std::string::npos) << finding.hint;
    EXPECT_FALSE(fs::exists(model / "out"));
    const PackReport report =
        pack_to_folder(*model, plan_of(*model, 2), {.out = model / "out", .layers = {0}});
    ASSERT_EQ(report.findings.size(), 1U);
    EXPECT_EQ(report.findings.front().code, "MOXIE-K015");
    EXPECT_EQ(report.findings.front().severity, Severity::warning);
  }
}

TEST(PackCompleteness, TensorsUnderNamesThatAreNotTheModelsAreAWarning) {
  for (const Json& config : {narrow_v4(), narrow_v4().set("o_lora_rank", Json())}) {
    const Edited model({.config = narrow_v4(), .edits = {change_around("", true)}}, config);
    const PackReport report = pack_to_folder(*model, plan_of(*model, 2), {.out = model / "out"});
    ASSERT_FALSE(report.findings.empty());
    const Finding& finding = report.findings.back();
    EXPECT_EQ(finding.code, "MOXIE-K015");
    EXPECT_EQ(finding.severity, Severity::warning);
    EXPECT_TRUE(finding.got.starts_with("model.")) << finding.got;
  }
}

TEST(PackCompleteness, ExpertsAndRoutersAloneArePackedWithoutAWord) {
  for (const Json& config : {narrow_v4(), narrow_v4().set("o_lora_rank", Json())}) {
    const Edited model({.config = narrow_v4(), .edits = {change_around("", false)}}, config);
    const PackReport report = pack_to_folder(*model, plan_of(*model, 2), {.out = model / "out"});
    for (const Finding& finding : report.findings)
      EXPECT_EQ(finding.severity, Severity::note) << finding.message;
    EXPECT_EQ(report.layers, std::vector<int>{0});
  }
}

TEST(PackCompleteness, DraftBlocksThatTheConfigDoesNotCountAreRefused) {
  const Edited model({.config = narrow_v4({}, {0, 0, 0}).set("num_hidden_layers", 1)}, narrow_v4());
  const ShardPlan plan = plan_of(*model, 2);
  for (const std::vector<int>& layers : {std::vector<int>{}, {2}}) {
    const Error error =
        refusal_of([&] { pack_to_folder(*model, plan, {.out = model / "out", .layers = layers}); });
    EXPECT_EQ(error.code(), ErrorCode::input);
    EXPECT_EQ(test::code_of(error), "MOXIE-K016") << error.what();
    EXPECT_EQ(error.findings().front().where.layer, 2);
    EXPECT_FALSE(fs::exists(model / "out"));
  }
  pack_to_folder(*model, plan, {.out = model / "main", .drafts = false});
  EXPECT_NO_THROW((void)open_packed_folder(model / "main"));
}

// Names that no layer's number is read from: in the file of their layer, and in no other.
TEST(PackCompleteness, ExpertsUnderAnotherPrefixAreInOneFile) {
  const WholeCheckpoint model(
      {.config = narrow_v4(), .edits = {[](test::TinyTensor& tensor) {
                                if (tensor.name.starts_with("layers.0.ffn.experts."))
                                  tensor.name = "model." + tensor.name;
                                return true;
                              }}});
  pack_to_folder(*model, plan_of(*model, 2), {.out = model / "out"});
  const PackedFolder folder = open_packed_folder(model / "out");
  EXPECT_NO_THROW((void)load_packed(folder, 1, 0));
}

}  // namespace
}  // namespace moxie

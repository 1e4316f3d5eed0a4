// SPDX-License-Identifier: Apache-2.0
// What is wrong around the experts is refused, by name, and leaves nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "moxie/pack.hpp"
#include "pack/whole_expectations.hpp"
#include "support/folder_bytes.hpp"
#include "support/packed_model.hpp"
#include "support/refusal.hpp"
#include "support/whole_checkpoint.hpp"

namespace moxie {
namespace {

namespace fs = std::filesystem;

using test::code_of;
using test::folder_bytes;
using test::leave_out;
using test::narrow_v4;
using test::plan_of;
using test::refusal_of;
using test::retype;
using test::WholeCheckpoint;

// Refused before a byte is packed: nobody was told of progress, and the folder looks as before.
Error refused_at_once(const WholeCheckpoint& model, PackOptions options = {}) {
  const auto before = folder_bytes(model.folder().path());
  bool begun = false;
  options.out = model / "packed";
  options.progress = [&](std::uint64_t done, std::uint64_t) { return begun = done > 0, true; };
  const Error error = refusal_of([&] { pack_to_folder(*model, plan_of(*model, 2), options); });
  EXPECT_FALSE(begun);
  EXPECT_TRUE(folder_bytes(model.folder().path()) == before) << error.what();
  return error;
}

std::set<std::string> tensors_of(const Error& error) {
  std::set<std::string> names;
  for (const Finding& finding : error.findings()) names.insert(finding.where.tensor);
  return names;
}

TEST(PackWholeRefusal, EveryAbsentTensorIsNamed) {
  const std::set<std::string> absent = {"embed.weight", "layers.0.attn.wo_b.scale",
                                        "layers.0.attn.attn_sink", "mtp.0.hc_attn_fn"};
  test::WholeOptions options{.config = narrow_v4()};
  for (const std::string& name : absent) options.edits.push_back(leave_out(name));
  const WholeCheckpoint model(options);
  const Error error = refused_at_once(model);
  EXPECT_EQ(error.code(), ErrorCode::input);
  EXPECT_EQ(tensors_of(error), absent);
  for (const Finding& finding : error.findings()) {
    EXPECT_EQ(finding.code, "MOXIE-K013");
    EXPECT_EQ(finding.got, "none");
    EXPECT_FALSE(finding.expected.empty());
    const std::string& name = finding.where.tensor;
    EXPECT_EQ(finding.where.layer, name.starts_with("layers.") ? std::optional(0)
                                   : name.starts_with("mtp.")  ? std::optional(1)
                                                               : std::nullopt);
  }
}

TEST(PackWholeRefusal, AnAbsentTensorOfAnotherLayerThanTheNamedOnesDoesNotMatter) {
  const WholeCheckpoint model({.config = narrow_v4(), .edits = {leave_out("mtp.0.hc_attn_fn")}});
  EXPECT_EQ(pack_to_folder(*model, plan_of(*model, 2), {.out = model / "out", .layers = {0}}).files,
            2U);
}

// Draft blocks and main layers without any expert are no layers to others, and a gap here.
TEST(PackWholeRefusal, ALayerWithoutExpertsIsNamed) {
  const WholeCheckpoint model({.config = narrow_v4(), .edits = {[](test::TinyTensor& tensor) {
                                                        return !tensor.name.starts_with(
                                                            "mtp.0.ffn.experts.");
                                                      }}});
  const Error error = refused_at_once(model);
  EXPECT_EQ(code_of(error), "MOXIE-K013");
  EXPECT_EQ(error.findings().front().where.layer, 1);
}

TEST(PackWholeRefusal, AnotherTypeOrShapeIsNamedWithBoth) {
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {"layers.0.attn.wq_b.scale", "F8_E8M0 [16, 2]"},
      {"layers.0.attn.attn_sink", "F32 [16]"},
      {"head.weight", "BF16 [320, 32]"}};
  const WholeCheckpoint model({.config = narrow_v4(),
                               .edits = {retype(wrong[0].first, DType::f8_e8m0, {2, 16}),
                                         retype(wrong[1].first, DType::bf16, {16}),
                                         retype(wrong[2].first, DType::bf16, {319, 32})}});
  const Error error = refused_at_once(model);
  EXPECT_EQ(error.code(), ErrorCode::input);
  ASSERT_EQ(error.findings().size(), wrong.size());
  for (std::size_t i = 0; i < wrong.size(); ++i) {
    const Finding& finding = error.findings()[i];
    EXPECT_EQ(finding.code, "MOXIE-K013");
    EXPECT_EQ(finding.where.tensor, wrong[i].first);
    EXPECT_EQ(finding.expected, wrong[i].second);
    EXPECT_NE(finding.got, finding.expected);
    EXPECT_TRUE(finding.where.file.ends_with(".safetensors")) << finding.where.file;
  }
}

TEST(PackWholeRefusal, AShardThatIsNotOnDiskIsNamedForEachOfItsTensors) {
  const test::TempFolder folder;
  test::write_whole(folder.path() / "model", {.config = narrow_v4(), .index = true});
  fs::remove(folder.path() / "model" / "model-2.safetensors");  // what belongs to no layer
  const MoeModel model = read_model(open_checkpoint(folder.path() / "model"));
  const Error error = refusal_of(
      [&] { pack_to_folder(model, plan_of(model, 2), {.out = folder.path() / "packed"}); });
  EXPECT_EQ(error.code(), ErrorCode::input);
  EXPECT_TRUE(tensors_of(error).contains("head.weight"));
  for (const Finding& finding : error.findings()) {
    EXPECT_EQ(finding.code, "MOXIE-C010");
    EXPECT_TRUE(finding.where.file.ends_with("model-2.safetensors")) << finding.where.file;
  }
  EXPECT_FALSE(fs::exists(folder.path() / "packed"));
}

TEST(PackWholeUnlisted, StrangersArePackedWholeOnEveryRankWithAWarning) {
  const std::vector<test::TinyTensor> extra = {
      {"layers.0.attn.stranger", DType::u8, {5}, "abcde"},
      {"layers.7.ffn.beyond", DType::bf16, {1, 2}, "fghi"},  // of no layer of the model
      {"foreign.head", DType::f32, {}, "jklm"}};
  const WholeCheckpoint model({.config = narrow_v4(), .extra = extra});
  const PackReport report = pack_to_folder(*model, plan_of(*model, 3), {.out = model / "packed"});
  ASSERT_EQ(report.findings.size(), extra.size());
  for (const Finding& finding : report.findings) {
    EXPECT_EQ(finding.code, "MOXIE-K014");
    EXPECT_EQ(finding.severity, Severity::warning);
  }
  for (const unsigned rank : {0U, 1U, 2U}) {
    const Checkpoint packed = open_checkpoint(model / "packed" / test::rank_folder(rank));
    for (std::size_t i = 0; i < extra.size(); ++i) {
      const TensorInfo* tensor = packed.find(extra[i].name);
      ASSERT_NE(tensor, nullptr) << extra[i].name;
      EXPECT_EQ(tensor->dtype, extra[i].dtype);
      EXPECT_EQ(tensor->shape, extra[i].shape);
      EXPECT_TRUE(test::same_bytes(model.bytes(extra[i].name), packed.bytes(*tensor)));
      EXPECT_EQ(packed.files()[tensor->file].path.filename(),
                i == 0 ? "model-00000.safetensors" : "model-top.safetensors");
    }
  }
}

// 0xFF is the one E8M0 code that is no number. Bytes are read while packing goes on: files were
// begun, and none is left.
TEST(PackWholeRefusal, AScaleThatIsNoNumberIsNamedWithItsPlaceAndNothingIsLeft) {
  struct Bad {
    const char* tensor;
    std::size_t at;
    const char* place;
  };
  for (const Bad& bad : {Bad{"layers.0.attn.wq_b.scale", 31, "row 15, group 1"},
                         Bad{"layers.0.attn.wo_b.scale", 8, "row 1, group 0"},
                         Bad{"layers.0.attn.wq_a.scale", 3, "row 0, group 3"},
                         Bad{"mtp.0.ffn.shared_experts.w2.scale", 39, "row 0, group 39"},
                         Bad{"mtp.0.e_proj.scale", 0, "row 0, group 0"}}) {
    const WholeCheckpoint model(
        {.config = narrow_v4(), .edits = {test::poke(bad.tensor, bad.at, 0xFF)}});
    const auto before = folder_bytes(model.folder().path());
    for (const unsigned tp : {1U, 3U}) {
      const Error error = refusal_of(
          [&] { pack_to_folder(*model, plan_of(*model, tp), {.out = model / "packed"}); });
      EXPECT_EQ(error.code(), ErrorCode::input);
      EXPECT_EQ(code_of(error), "MOXIE-K003");
      EXPECT_EQ(error.findings().front().where.tensor, bad.tensor);
      EXPECT_NE(error.findings().front().message.find(bad.place), std::string::npos)
          << error.what();
      EXPECT_TRUE(folder_bytes(model.folder().path()) == before) << error.what();
    }
  }
}

// Stopped after any number of bytes, with ranks that were packed before.
TEST(PackWholeInterrupted, NothingIsLeftWhereverItIsStopped) {
  const WholeCheckpoint model({.config = narrow_v4()});
  const ShardPlan plan = plan_of(*model, 3);
  pack_to_folder(*model, plan, {.out = model / "packed", .ranks = {1}});
  const auto before = folder_bytes(model.folder().path());
  std::uint64_t all = 0;
  const auto stop_at = [&](double share) {
    PackOptions options{.out = model / "packed", .ranks = {0, 2}};
    options.progress = [&](std::uint64_t done, std::uint64_t total) {
      all = total;
      return static_cast<double>(done) < share * static_cast<double>(total);
    };
    return refusal_of([&] { pack_to_folder(*model, plan, options); });
  };
  for (const double share : {0.0, 0.3, 0.7, 1.0}) {
    EXPECT_EQ(stop_at(share).code(), ErrorCode::interrupted) << share;
    EXPECT_TRUE(folder_bytes(model.folder().path()) == before) << share;
  }
  EXPECT_GT(all, 0U);
  EXPECT_NO_THROW(pack_to_folder(*model, plan, {.out = model / "packed", .ranks = {0, 2}}));
}

}  // namespace
}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// A refusal to pack leaves things as they were.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "moxie/pack.hpp"
#include "support/folder_bytes.hpp"
#include "support/packed_model.hpp"
#include "support/refusal.hpp"

namespace moxie {
namespace {

namespace fs = std::filesystem;

using test::code_of;
using test::folder_bytes;
using test::plan_of;
using test::refusal_of;
using test::tiny_options;
using test::TinyModel;

// Packing is refused with this code, and the folder of the test looks as before.
void expect_refused_without_trace(const TinyModel& model, const ShardPlan& plan,
                                  const PackOptions& options, ErrorCode kind,
                                  std::string_view code) {
  const auto before = folder_bytes(model.folder().path());
  const Error error = refusal_of([&] { pack_to_folder(*model, plan, options); });
  EXPECT_EQ(error.code(), kind) << error.what();
  EXPECT_EQ(code_of(error), code) << error.what();
  EXPECT_TRUE(folder_bytes(model.folder().path()) == before) << error.what();
}

TEST(PackRefusal, RankThatIsPackedAlready) {
  const TinyModel model(BlockFormat::mxfp4);
  const ShardPlan plan = plan_of(*model, 2);
  pack_to_folder(*model, plan, {.out = model / "packed", .ranks = {0}});
  for (const std::vector<unsigned>& ranks : {std::vector{0U}, std::vector{1U, 0U}, {}}) {
    expect_refused_without_trace(model, plan, {.out = model / "packed", .ranks = ranks},
                                 ErrorCode::usage, "MOXIE-K001");
  }
}

TEST(PackRefusal, FolderOfAnotherPlan) {
  const TinyModel model(BlockFormat::mxfp4);
  pack_to_folder(*model, plan_of(*model, 2), {.out = model / "packed", .ranks = {0}});
  expect_refused_without_trace(model, plan_of(*model, 2, 1, 128),
                               {.out = model / "packed", .ranks = {1}}, ErrorCode::usage,
                               "MOXIE-K001");
  expect_refused_without_trace(
      model, plan_of(*model, 2),
      {.out = model / "packed", .ranks = {1}, .layout = FileLayout::kernel}, ErrorCode::usage,
      "MOXIE-K001");
}

TEST(PackRefusal, FolderThatIsNoPackedSetOrNoFolder) {
  const TinyModel model(BlockFormat::mxfp4);
  model.folder().write("foreign/notes.txt", "mine");
  model.folder().write("file", "mine");
  for (const char* out : {"foreign", "file", "model"}) {
    expect_refused_without_trace(model, plan_of(*model, 2), {.out = model / out}, ErrorCode::usage,
                                 "MOXIE-K001");
  }
}

TEST(PackRefusal, NameThatTheSystemRefuses) {
  const TinyModel model(BlockFormat::mxfp4);
  expect_refused_without_trace(model, plan_of(*model, 2),
                               {.out = model / std::string(300, 'x') / "packed"},
                               ErrorCode::environment, "MOXIE-E001");
}

// the shard is named, and how much depends on it.
TEST(PackRefusal, ShardThatIsNotOnDisk) {
  test::TinyOptions options = tiny_options(BlockFormat::mxfp4);
  options.layers = 2;
  options.shards = test::TinyShards::indexed;
  const test::TempFolder folder;
  fs::remove(test::write_tiny(folder.path() / "model", options) / "model-1.safetensors");
  const MoeModel model = read_model(open_checkpoint(folder.path() / "model"));
  const ShardPlan plan = plan_of(model, 2);
  const Error error =
      refusal_of([&] { pack_to_folder(model, plan, {.out = folder.path() / "packed"}); });
  EXPECT_EQ(error.code(), ErrorCode::input);
  EXPECT_EQ(code_of(error), "MOXIE-C010");
  EXPECT_TRUE(error.findings()[0].where.file.ends_with("model-1.safetensors")) << error.what();
  EXPECT_NE(error.findings()[0].message.find("18 tensors"), std::string::npos) << error.what();
  EXPECT_FALSE(fs::exists(folder.path() / "packed"));
  EXPECT_NO_THROW(pack_to_folder(model, plan, {.out = folder.path() / "packed", .layers = {0}}));
}

TEST(PackRefusal, RankOrLayerThatDoesNotExist) {
  const TinyModel model(BlockFormat::mxfp4);
  const ShardPlan plan = plan_of(*model, 2);
  expect_refused_without_trace(model, plan, {.out = model / "packed", .ranks = {0, 2}},
                               ErrorCode::usage, "MOXIE-K004");
  for (const int layer : {1, -1}) {
    expect_refused_without_trace(model, plan, {.out = model / "packed", .layers = {0, layer}},
                                 ErrorCode::input, "MOXIE-M011");
  }
}

// Every layer is looked at before a byte is written.
TEST(PackRefusal, LayerThatIsIncompleteOrNotThePlans) {
  test::TinyOptions options = tiny_options(BlockFormat::nvfp4);
  options.layers = 2;
  options.mtp_blocks = 1;  // native MXFP4
  options.edits = {test::leave_out("layers.1.ffn.experts.2.w3.weight")};
  const TinyModel model(options);
  const ShardPlan plan = plan_of(*model, 2);
  expect_refused_without_trace(model, plan, {.out = model / "packed"}, ErrorCode::input,
                               "MOXIE-M004");
  expect_refused_without_trace(model, plan, {.out = model / "packed", .layers = {0, 2}},
                               ErrorCode::unsupported, "MOXIE-M009");
}

TEST(PackRefusal, LayerWithAnotherNumberOfExperts) {
  test::TinyOptions options = tiny_options(BlockFormat::mxfp4);
  options.mtp_blocks = 1;
  options.edits = {
      [](test::TinyTensor& tensor) { return !tensor.name.starts_with("mtp.0.ffn.experts.2."); }};
  const TinyModel model(options);
  expect_refused_without_trace(model, plan_of(*model, 2),
                               {.out = model / "packed", .layers = {0, 1}}, ErrorCode::unsupported,
                               "MOXIE-M009");
}

// The very last byte that packing reads is bad; everything else is staged by then.
class PackRefusalInTheMiddle : public testing::TestWithParam<FileLayout> {
 protected:
  static test::TinyOptions bad_at_the_end() {
    test::TinyOptions options = tiny_options(BlockFormat::mxfp4);
    options.layers = 2;
    options.edits = {test::poke("layers.1.ffn.experts.2.w2.scale", 64 * 3 - 1, 0xFF)};
    return options;
  }
  PackRefusalInTheMiddle() : model_(bad_at_the_end()), plan_(plan_of(*model_, 3)) {}

  void expect_refused(const fs::path& out, std::vector<unsigned> ranks = {}) {
    expect_refused_without_trace(model_, plan_,
                                 {.out = out, .ranks = std::move(ranks), .layout = GetParam()},
                                 ErrorCode::input, "MOXIE-K003");
  }

  TinyModel model_;
  ShardPlan plan_;
};

TEST_P(PackRefusalInTheMiddle, LeavesNoFolderBehind) { expect_refused(model_ / "packed"); }

TEST_P(PackRefusalInTheMiddle, LeavesNoFolderAboveBehind) {
  expect_refused(model_ / "new/deep/packed");
  expect_refused(model_ / "new/deep/packed/");
}

TEST_P(PackRefusalInTheMiddle, LeavesAnEmptyFolderEmpty) {
  fs::create_directory(model_ / "packed");
  expect_refused(model_ / "packed");
}

TEST_P(PackRefusalInTheMiddle, LeavesTheRanksThatAreThere) {
  pack_to_folder(*model_, plan_, {.out = model_ / "packed", .ranks = {0}, .layout = GetParam()});
  model_.folder().write("packed/moxie-proof.json", "{}");
  expect_refused(model_ / "packed", {1, 2});
}

INSTANTIATE_TEST_SUITE_P(Layouts, PackRefusalInTheMiddle,
                         testing::Values(FileLayout::logical, FileLayout::kernel),
                         [](const auto& param) { return std::string(name_of(param.param)); });

// exit code 130
TEST(PackRefusal, InterruptionAtAnyPointLeavesNothing) {
  const TinyModel model(BlockFormat::nvfp4);
  const ShardPlan plan = plan_of(*model, 2);
  for (unsigned stop = 1; stop <= 6; ++stop) {  // 3 experts on 2 ranks
    unsigned calls = 0;
    expect_refused_without_trace(
        model, plan,
        {.out = model / "packed", .progress = [&](auto, auto) { return ++calls < stop; }},
        ErrorCode::interrupted, "MOXIE-U130");
    EXPECT_EQ(calls, stop);
  }
}

// What another process puts into the folder while packing fails is not ours to remove.
TEST(PackRefusal, WorkOfOthersInTheFolderStays) {
  const TinyModel model(BlockFormat::mxfp4);
  const auto others = [&](auto, auto) {
    model.folder().write("packed/rank-001/files.json", "theirs");
    return true;
  };
  const Error error = refusal_of([&] {
    pack_to_folder(*model, plan_of(*model, 2), {.out = model / "packed", .progress = others});
  });
  EXPECT_EQ(error.code(), ErrorCode::usage);
  EXPECT_EQ(code_of(error), "MOXIE-K001");
  const auto left = folder_bytes(model / "packed");
  EXPECT_EQ(left.size(), 2U);
  EXPECT_TRUE(left.contains("rank-001/files.json"));
}

// Limits the size of files that this process may write.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(std::uint64_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = bytes;
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  void (*handler_)(int);
  rlimit before_{};
};

// At every size of the limit another file is the first that does not fit: a layer, files.json, the
// plan, and last of all a long config.json.
TEST(PackRefusal, DiskThatRefusesToWriteLeavesNothing) {
  test::TinyOptions options = tiny_options(BlockFormat::mxfp4, 32, 32);
  options.experts = 1;
  Json config = test::tiny_config(options);
  options.config = config.set("note", std::string(20000, 'x'));
  const TinyModel model(options);
  fs::create_directory(model / "empty");
  const ShardPlan plan = plan_of(*model, 2);
  for (const std::uint64_t bytes : {64, 1000, 2000, 4000, 16000}) {
    for (const char* out : {"packed", "empty"}) {
      const FileSizeLimit limit(bytes);
      expect_refused_without_trace(model, plan, {.out = model / out}, ErrorCode::environment,
                                   "MOXIE-E001");
    }
  }
  EXPECT_NO_THROW(pack_to_folder(*model, plan, {.out = model / "packed"}));
}

}  // namespace
}  // namespace moxie

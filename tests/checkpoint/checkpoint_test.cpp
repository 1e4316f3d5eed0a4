// SPDX-License-Identifier: Apache-2.0
// Folders of shards: with an index, without, with parts that are absent, stray or contradictory.
#include "moxie/checkpoint.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "support/refusal.hpp"
#include "support/safetensors_bytes.hpp"
#include "support/temp_folder.hpp"

namespace moxie {
namespace {

namespace fs = std::filesystem;
using test::entry;
using test::header_of;
using test::safetensors_bytes;
using test::TempFolder;

constexpr std::string_view kIndex = "model.safetensors.index.json";

// A file of one U8 tensor that holds `data`.
std::string one_tensor(std::string_view name, std::string_view data) {
  return safetensors_bytes(
      header_of({entry(name, "U8", std::to_string(data.size()), 0, data.size())}), data);
}
std::string text_of(const Checkpoint& checkpoint, std::string_view name) {
  const TensorInfo* tensor = checkpoint.find(name);
  if (tensor == nullptr) return "absent";
  const auto bytes = checkpoint.bytes(*tensor);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
std::vector<Finding> findings_with(const Checkpoint& checkpoint, std::string_view code) {
  std::vector<Finding> found;
  std::ranges::copy_if(checkpoint.findings(), std::back_inserter(found),
                       [&](const auto& f) { return f.code == code; });
  return found;
}
Error refusal(const fs::path& path) {
  return test::refusal_of([&] { open_checkpoint(path); });
}

// R-01, first run: what depends on an absent shard is a finding; a later stage decides whether it
// needs it.
TEST(Checkpoint, R01AnAbsentShardIsAFindingThatCountsItsTensors) {
  const TempFolder folder;
  folder.write(kIndex,
               R"({"weight_map": {"e0.w": "part-1.safetensors", "e1.w": "part-2.safetensors",
                                          "e1.s": "part-2.safetensors"}})");
  folder.write("part-1.safetensors", one_tensor("e0.w", "abcd"));
  const Checkpoint checkpoint = open_checkpoint(folder.path());
  ASSERT_EQ(checkpoint.findings().size(), 1U);
  const Finding& finding = checkpoint.findings().front();
  EXPECT_EQ(finding.code, "MOXIE-C010");
  EXPECT_EQ(finding.severity, Severity::warning);
  EXPECT_NE(finding.where.file.find("part-2.safetensors"), std::string::npos);
  EXPECT_NE(finding.message.find("2 tensors"), std::string::npos) << finding.message;
  EXPECT_EQ(checkpoint.find("e1.w"), nullptr);
  EXPECT_EQ(checkpoint.absent_shard_of("e1.w"), "part-2.safetensors");
  EXPECT_EQ(checkpoint.absent_shard_of("e1.s"), "part-2.safetensors");
  EXPECT_EQ(checkpoint.absent_shard_of("e0.w"), "");
  EXPECT_EQ(checkpoint.absent_shard_of("e2.w"), "");
  EXPECT_EQ(text_of(checkpoint, "e0.w"), "abcd");
}

// R-01, second run
TEST(Checkpoint, R01APresentShardThatLacksATensorIsRefused) {
  const TempFolder folder;
  folder.write(kIndex,
               R"({"weight_map": {"e0.w": "part-1.safetensors", "e1.w": "part-2.safetensors",
                                          "e1.s": "part-2.safetensors"}})");
  folder.write("part-1.safetensors", one_tensor("e0.w", "abcd"));
  folder.write("part-2.safetensors", one_tensor("e1.w", "efgh"));
  const Error error = refusal(folder.path());
  EXPECT_EQ(error.code(), ErrorCode::input);
  EXPECT_EQ(test::code_of(error), "MOXIE-C011");
  EXPECT_EQ(error.findings().front().where.tensor, "e1.s");
  EXPECT_NE(error.findings().front().where.file.find("part-2.safetensors"), std::string::npos);
}

TEST(Checkpoint, RefusesATensorThatIsInAnotherShardThanTheIndexSays) {
  const TempFolder folder;
  folder.write(
      kIndex,
      R"({"weight_map": {"a": "s2.safetensors", "b": "s2.safetensors", "c": "s1.safetensors"}})");
  folder.write("s1.safetensors",
               safetensors_bytes(
                   header_of({entry("a", "U8", "1", 0, 1), entry("c", "U8", "1", 1, 2)}), "xy"));
  folder.write("s2.safetensors", one_tensor("b", "z"));
  const Error error = refusal(folder.path());
  EXPECT_EQ(test::code_of(error), "MOXIE-C011");
  EXPECT_EQ(error.findings().front().where.tensor, "a");
}

// R-01, R-08: a copy in a shard that the index does not name for it is not taken in its place.
TEST(Checkpoint, RefusesATensorWhoseShardIsAbsentWhileAnotherHoldsIt) {
  for (const bool others : {false, true}) {
    const TempFolder folder;
    folder.write(kIndex, R"({"weight_map": {"a": "s1.safetensors", "b": "gone.safetensors"}})");
    const std::string a = entry("a", "U8", "1", 0, 1);
    const std::string b = entry("b", "U8", "1", 1, 2);
    const std::string header =
        others ? header_of({a, b, entry("z", "U8", "1", 2, 3)}) : header_of({a, b});
    folder.write("s1.safetensors", safetensors_bytes(header, others ? "xyz" : "xy"));
    const Error error = refusal(folder.path());
    EXPECT_EQ(error.code(), ErrorCode::input);
    EXPECT_EQ(test::code_of(error), "MOXIE-C011");
    EXPECT_EQ(error.findings().front().where.tensor, "b");
  }
}

TEST(Checkpoint, R05BytesOfAnUnalignedTensorAreItsOwn) {
  const TempFolder folder;
  std::string header = header_of(
      {entry("h", "BF16", "2", 0, 4), entry("p", "U8", "1", 4, 5), entry("f", "F32", "1", 5, 9)});
  header.resize((header.size() + 7) / 8 * 8 + 1, ' ');
  using namespace std::string_view_literals;
  folder.write("model.safetensors",
               safetensors_bytes(header, "\x80\x3F\x00\x40\xEE\x00\x00\x40\x40"sv));
  const Checkpoint checkpoint = open_checkpoint(folder.path());
  const auto* tensor = checkpoint.find("f");
  ASSERT_NE(tensor, nullptr);
  ASSERT_NE(reinterpret_cast<std::uintptr_t>(checkpoint.bytes(*tensor).data()) % alignof(float),
            0U);
  float value = 0;
  std::memcpy(&value, checkpoint.bytes(*tensor).data(), sizeof(value));
  EXPECT_EQ(value, 3.0F);
  EXPECT_EQ(text_of(checkpoint, "h"), "\x80\x3F\x00\x40"sv);
}

// R-07
TEST(Checkpoint, R07OneFileShardsAndIndexedShardsGiveTheSameBytes) {
  const std::string e0 = entry("e0.w", "U8", "4", 0, 4);
  const TempFolder single;
  single.write("model.safetensors",
               safetensors_bytes(header_of({e0, entry("e1.w", "U8", "4", 4, 8)}), "abcdefgh"));
  const TempFolder shards;
  const TempFolder indexed;
  for (const TempFolder* folder : {&shards, &indexed}) {
    folder->write("model-00001-of-00002.safetensors", one_tensor("e0.w", "abcd"));
    folder->write("model-00002-of-00002.safetensors", one_tensor("e1.w", "efgh"));
  }
  indexed.write(kIndex, R"({"metadata": {"total_size": 8}, "weight_map": {
      "e1.w": "model-00002-of-00002.safetensors", "e0.w": "model-00001-of-00002.safetensors"}})");
  for (const TempFolder* folder : {&single, &shards, &indexed}) {
    const Checkpoint checkpoint = open_checkpoint(folder->path());
    EXPECT_EQ(checkpoint.tensors().size(), 2U);
    EXPECT_EQ(checkpoint.tensors()[0].name, "e0.w") << "files are in order of their names";
    EXPECT_EQ(text_of(checkpoint, "e0.w"), "abcd");
    EXPECT_EQ(text_of(checkpoint, "e1.w"), "efgh");
    EXPECT_TRUE(checkpoint.findings().empty());
  }
}

// R-07: nothing says which of two is meant, even when both hold the same bytes.
TEST(Checkpoint, R07ANameInTwoShardsIsRefused) {
  const TempFolder folder;
  folder.write("a.safetensors", one_tensor("e0.w", "abcd"));
  folder.write("b.safetensors", one_tensor("e0.w", "abcd"));
  const Error error = refusal(folder.path());
  EXPECT_EQ(error.code(), ErrorCode::input);
  EXPECT_EQ(test::code_of(error), "MOXIE-C013");
  const std::string_view text = error.what();
  for (const std::string_view part : {"e0.w", "a.safetensors", "b.safetensors"}) {
    EXPECT_NE(text.find(part), std::string_view::npos) << part << " in: " << text;
  }
}

// R-08: the second stray file is named like a shard, the third is broken; none of them matters.
TEST(Checkpoint, R08AStrayFileIsNotedOnceAndNotRead) {
  const TempFolder folder;
  folder.write(kIndex,
               R"({"weight_map": {"e0.w": "part-1.safetensors", "e1.w": "part-2.safetensors"}})");
  folder.write("part-1.safetensors", one_tensor("e0.w", "abcd"));
  folder.write("part-2.safetensors", one_tensor("e1.w", "efgh"));
  folder.write("model.safetensors", one_tensor("e0.w", "WXYZ"));
  folder.write("model-00001-of-00001.safetensors", one_tensor("e1.w", "WXYZ"));
  folder.write("model-00001-of-00002.safetensors", "broken");
  folder.write(".part-1.safetensors", "unfinished download");
  folder.write("notes.txt", "anything");
  const Checkpoint checkpoint = open_checkpoint(folder.path());
  EXPECT_EQ(text_of(checkpoint, "e0.w"), "abcd");
  EXPECT_EQ(text_of(checkpoint, "e1.w"), "efgh");
  EXPECT_EQ(checkpoint.files().size(), 2U);
  EXPECT_EQ(checkpoint.findings().size(), 3U);
  const std::vector<Finding> stray = findings_with(checkpoint, "MOXIE-C014");
  ASSERT_EQ(stray.size(), 3U);
  EXPECT_EQ(std::ranges::count_if(stray,
                                  [&](const Finding& finding) {
                                    return finding.severity == Severity::note &&
                                           finding.where.file ==
                                               (folder.path() / "model.safetensors").string();
                                  }),
            1);
}

TEST(Checkpoint, NotesATensorThatTheIndexDoesNotKnow) {
  const TempFolder folder;
  folder.write(kIndex, R"({"weight_map": {"a": "s.safetensors"}})");
  folder.write("s.safetensors",
               safetensors_bytes(
                   header_of({entry("a", "U8", "1", 0, 1), entry("b", "U8", "1", 1, 2)}), "xy"));
  const Checkpoint checkpoint = open_checkpoint(folder.path());
  const auto findings = findings_with(checkpoint, "MOXIE-C012");
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].severity, Severity::warning);
  EXPECT_EQ(findings[0].where.tensor, "b");
  EXPECT_EQ(text_of(checkpoint, "b"), "y");
}

TEST(Checkpoint, BelievesTheHeadersAndWarnsAboutAWrongTotal) {
  const TempFolder folder;
  folder.write("s.safetensors", one_tensor("a", "xyz"));
  for (const auto& [total, wrong] :
       {std::pair("3", 0U), std::pair("4", 1U), std::pair("18446744073709551615", 1U)}) {
    folder.write(kIndex, R"({"metadata": {"total_size": )" + std::string(total) +
                             R"(}, "weight_map": {"a": "s.safetensors"}})");
    const Checkpoint checkpoint = open_checkpoint(folder.path());
    const auto findings = findings_with(checkpoint, "MOXIE-C015");
    ASSERT_EQ(findings.size(), wrong) << total;
    if (wrong != 0) {
      EXPECT_EQ(findings[0].severity, Severity::warning);
    }
    EXPECT_EQ(text_of(checkpoint, "a"), "xyz");
  }
}

TEST(Checkpoint, FollowsLinksIntoAHubCache) {
  const TempFolder folder;
  folder.write("blobs/1234", one_tensor("a", "xyz"));
  folder.write("blobs/5678", R"({"model_type": "m"})");
  folder.write(fs::path("snapshot") / kIndex,
               R"({"weight_map": {"a": "s1.safetensors", "b": "s2.safetensors"}})");
  fs::create_symlink("../blobs/1234", folder.path() / "snapshot" / "s1.safetensors");
  fs::create_symlink("../blobs/not-downloaded", folder.path() / "snapshot" / "s2.safetensors");
  fs::create_symlink("../blobs/5678", folder.path() / "snapshot" / "config.json");
  const Checkpoint checkpoint = open_checkpoint(folder.path() / "snapshot");
  EXPECT_EQ(text_of(checkpoint, "a"), "xyz");
  EXPECT_EQ(checkpoint.absent_shard_of("b"), "s2.safetensors");
  EXPECT_EQ(findings_with(checkpoint, "MOXIE-C010").size(), 1U)
      << "a link to nothing is an absent shard";
  EXPECT_EQ(checkpoint.config().find("model_type")->as_string(), "m");
}

TEST(Checkpoint, AShardNameThatNoFileCanHaveIsAbsent) {
  const TempFolder folder;
  const std::string name(300, 'x');
  folder.write(kIndex, R"({"weight_map": {"a": ")" + name + "\"}}");
  EXPECT_EQ(open_checkpoint(folder.path()).absent_shard_of("a"), name);
}

TEST(Checkpoint, ABrokenShardOrIndexIsRefusedByName) {
  const TempFolder folder;
  folder.write(kIndex,
               R"({"weight_map": {"a": "s1.safetensors", "b": "model-1-of-1.safetensors"}})");
  folder.write("s1.safetensors", one_tensor("a", "xyz"));
  folder.write("model-1-of-1.safetensors", one_tensor("b", "xyz").substr(0, 30));
  Error error = refusal(folder.path());
  EXPECT_EQ(error.code(), ErrorCode::input);
  EXPECT_NE(error.findings().front().where.file.find("model-1-of-1.safetensors"),
            std::string::npos);
  folder.write(kIndex, R"({"weight_map": {"a": "../s1.safetensors"}})");
  error = refusal(folder.path());
  EXPECT_EQ(test::code_of(error), "MOXIE-C009");
  EXPECT_NE(error.findings().front().where.file.find(kIndex), std::string::npos);
}

TEST(Checkpoint, StaysReadableWhileAnyCopyLives) {
  const TempFolder folder;
  folder.write("model.safetensors", one_tensor("a", "xyz"));
  Checkpoint copy = [&] {
    const Checkpoint original = open_checkpoint(folder.path());
    return original;
  }();
  fs::remove(folder.path() / "model.safetensors");
  EXPECT_EQ(text_of(copy, "a"), "xyz");
}

}  // namespace
}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// Files that are absent, too many, cut short or of another set.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "packed_folder.hpp"
#include "support/refusal.hpp"

namespace moxie {
namespace {

namespace fs = std::filesystem;

using test::Checksum;
using test::count_of;
using test::finding_of;
using test::PackedFolder;
using test::PlantedFault;
using test::tiny_options;

class VerifyFiles : public testing::Test {
 protected:
  VerifyFiles() : set_(test::two_layers(), {.tp = 3}) {
    EXPECT_TRUE(set_.verify().passed);
    EXPECT_TRUE(fs::exists(set_.proof()));
  }

  // Verifies, and holds that the proof of the clean set is gone.
  VerifyReport verify_failing() {
    const VerifyReport report = set_.verify();
    EXPECT_FALSE(report.passed);
    EXPECT_FALSE(report.findings.empty());
    EXPECT_FALSE(fs::exists(set_.proof()));
    return report;
  }

  PackedFolder set_;
};

// the strict reader says what the file needs and has, the list what it should have been.
TEST_F(VerifyFiles, ShortenedFileIsNamedWithBothSizes) {
  for (const std::uint64_t left :
       {std::uint64_t{0}, std::uint64_t{5},
        static_cast<std::uint64_t>(fs::file_size(set_.file(1, 1)) - 1)}) {
    const PlantedFault fault(
        set_, 1, Checksum::stale, [&](std::string& bytes) { bytes.resize(left); }, 1);
    const VerifyReport report = verify_failing();
    const Finding checksum = finding_of(report, "MOXIE-V001");
    EXPECT_EQ(checksum.where.file, set_.file(1, 1).string());
    EXPECT_TRUE(checksum.got.starts_with(std::to_string(left) + " bytes")) << checksum.got;
    EXPECT_EQ(report.findings.front().where.file, set_.file(1, 1).string());
    EXPECT_TRUE(report.findings.front().code.starts_with("MOXIE-C")) << report.findings[0].code;
  }
}

// The others are compared where they belong: an absent rank makes no noise about them.
TEST_F(VerifyFiles, RemovedRankIsTheOnlyFinding) {
  for (const unsigned rank : {0U, 1U, 2U}) {
    const fs::path folder = set_.path() / PackedFolder::rank_folder(rank);
    fs::rename(folder, set_.model() / "aside");
    const VerifyReport report = verify_failing();
    EXPECT_EQ(report.findings.size(), 1U);
    const Finding finding = finding_of(report, "MOXIE-V004");
    EXPECT_EQ(finding.where.rank, rank);
    EXPECT_EQ(finding.where.file, folder.string());
    EXPECT_EQ(report.ranks, 2U);
    fs::rename(set_.model() / "aside", folder);
  }
}

TEST_F(VerifyFiles, RemovedLayerFileIsNamed) {
  fs::remove(set_.file(2, 1));
  const Finding finding = finding_of(verify_failing(), "MOXIE-V004");
  EXPECT_EQ(finding.where.file, set_.file(2, 1).string());
  EXPECT_EQ(finding.where.rank, 2U);
  EXPECT_EQ(finding.where.layer, 1);
}

TEST_F(VerifyFiles, RankWithoutAnyLayerFileIsNamedFileByFile) {
  fs::remove(set_.file(2, 0));
  fs::remove(set_.file(2, 1));
  const VerifyReport report = verify_failing();
  EXPECT_EQ(count_of(report, "MOXIE-V004"), 2U);
  EXPECT_EQ(finding_of(report, "MOXIE-V004").where.file, set_.file(2, 0).string());
}

TEST_F(VerifyFiles, LayerThatOneRankLacksIsNamed) {
  fs::remove(set_.file(0, 1));
  set_.edit_json(set_.path() / "rank-000/files.json", [](Json& list) {
    Json files = *list.find("files");
    files.erase("model-00001.safetensors");
    list.set("files", files);
  });
  const VerifyReport report = verify_failing();
  EXPECT_EQ(report.findings.front().message, "layer is absent on this rank");
  EXPECT_EQ(report.findings.front().where.layer, 1);
  EXPECT_EQ(report.findings.front().where.rank, 0U);
}

TEST_F(VerifyFiles, SetWithoutAnyLayerProvesNothing) {
  for (const unsigned rank : {0U, 1U, 2U}) {
    fs::remove(set_.file(rank, 0));
    fs::remove(set_.file(rank, 1));
    set_.edit_json(set_.path() / PackedFolder::rank_folder(rank) / "files.json",
                   [](Json& list) { list.set("files", Json::object()); });
  }
  EXPECT_EQ(count_of(verify_failing(), "MOXIE-V004"), 3U) << "none, and both that were packed";
}

// A tensor more than the source has, in a file that is well formed.
TEST_F(VerifyFiles, ExtraTensorIsFound) {
  const PlantedFault fault(set_, 1, Checksum::agrees, [](std::string& bytes) {
    std::uint64_t header = 0;
    std::memcpy(&header, bytes.data(), sizeof header);
    const std::uint64_t data = bytes.size() - 8 - header;
    std::string text = bytes.substr(8, header);
    text.resize(text.find_last_of('}'));
    text += ",\"extra\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[" + std::to_string(data) +
            "," + std::to_string(data + 1) + "]}}";
    text.resize((text.size() + 7) / 8 * 8, ' ');
    const std::uint64_t longer = text.size();
    std::string length(8, '\0');
    std::memcpy(length.data(), &longer, sizeof longer);
    bytes = length + text + bytes.substr(8 + header) + "x";
  });
  const VerifyReport report = verify_failing();
  ASSERT_EQ(report.findings.size(), 1U);
  const Finding finding = finding_of(report, "MOXIE-V004");
  EXPECT_EQ(finding.expected, "18");
  EXPECT_EQ(finding.got, "19");
  EXPECT_EQ(finding.where.file, set_.file(1).string());
}

TEST_F(VerifyFiles, FileThatNoListNamesIsFound) {
  for (const char* name : {"notes.txt", "more.safetensors", "model-00007.safetensors"}) {
    const fs::path extra = set_.path() / "rank-001" / name;
    set_.write(extra, "not a tensor file");
    const VerifyReport report = verify_failing();
    bool named = false;
    for (const Finding& finding : report.findings) named = named || finding.where.file == extra;
    EXPECT_TRUE(named) << name;
    fs::remove(extra);
    EXPECT_TRUE(set_.verify().passed);
  }
}

TEST_F(VerifyFiles, ListedFileThatIsNoLayersIsFound) {
  set_.write(set_.path() / "rank-001" / "notes.txt", "mine");
  set_.edit_json(set_.path() / "rank-001/files.json", [](Json& list) {
    Json files = *list.find("files");
    files.set("notes.txt", Json::object().set("bytes", 4).set("xxh3_128", hash_hex("mine")));
    list.set("files", files);
  });
  EXPECT_EQ(finding_of(verify_failing(), "MOXIE-V004").where.file,
            (set_.path() / "rank-001" / "notes.txt").string());
}

TEST_F(VerifyFiles, SecondCopyOfALayerIsFound) {
  fs::copy_file(set_.file(0, 0), set_.path() / "rank-000/copy.safetensors");
  const VerifyReport report = verify_failing();
  EXPECT_EQ(report.findings.front().code, "MOXIE-C013");  // a tensor in two files
}

TEST_F(VerifyFiles, RankFolderBeyondThePlanIsFound) {
  fs::create_directory(set_.path() / "rank-003");
  const VerifyReport report = verify_failing();
  ASSERT_EQ(report.findings.size(), 1U);
  EXPECT_EQ(finding_of(report, "MOXIE-V004").where.file, (set_.path() / "rank-003").string());
}

TEST_F(VerifyFiles, ListOfAnotherPlanIsFound) {
  set_.edit_json(set_.path() / "rank-002/files.json",
                 [](Json& list) { list.set("plan_hash", std::string(32, '0')); });
  const VerifyReport report = verify_failing();
  ASSERT_EQ(report.findings.size(), 1U);
  EXPECT_EQ(finding_of(report, "MOXIE-V005").where.rank, 2U);
}

// The checksum is right, the size beside it is not.
TEST_F(VerifyFiles, WrongSizeInTheListIsFound) {
  set_.edit_json(set_.path() / "rank-001/files.json", [&](Json& list) {
    Json files = *list.find("files");
    Json record = *files.find("model-00001.safetensors");
    record.set("bytes", fs::file_size(set_.file(1, 1)) + 1);
    list.set("files", files.set("model-00001.safetensors", record));
  });
  const VerifyReport report = verify_failing();
  ASSERT_EQ(report.findings.size(), 1U);
  EXPECT_EQ(finding_of(report, "MOXIE-V001").where.file, set_.file(1, 1).string());
}

TEST_F(VerifyFiles, ListThatCanNotBeReadIsRefused) {
  for (const char* text : {"", "{", "[]", "{\"plan_hash\":\"x\"}", "{\"files\":{\"a\":{}}}"}) {
    fs::copy_file(set_.path() / "rank-001/files.json", set_.model() / "list");
    set_.write(set_.path() / "rank-001/files.json", text);
    const Error error = test::refusal_of([&] { set_.verify(); });
    EXPECT_EQ(error.code(), ErrorCode::input) << error.what();
    EXPECT_EQ(error.findings().front().where.file, (set_.path() / "rank-001/files.json").string());
    EXPECT_FALSE(fs::exists(set_.proof()));
    fs::remove(set_.path() / "rank-001/files.json");
    EXPECT_EQ(test::code_of(test::refusal_of([&] { set_.verify(); })), "MOXIE-K005");
    fs::rename(set_.model() / "list", set_.path() / "rank-001/files.json");
  }
}

// What runs a set takes limits and sizes from its config.
TEST(VerifySet, ChangedOrAbsentConfigIsFound) {
  const PackedFolder set(tiny_options(BlockFormat::nvfp4), {.tp = 2});
  set.write(set.path() / "config.json", "{}");
  VerifyReport report = set.verify();
  EXPECT_FALSE(report.passed);
  EXPECT_EQ(count_of(report, "MOXIE-V002"), 1U);
  fs::remove(set.path() / "config.json");
  report = set.verify();
  EXPECT_FALSE(report.passed);
  EXPECT_EQ(count_of(report, "MOXIE-V004"), 1U);
}

// A set of some layers is legal, and said.
TEST(VerifySet, OfSomeLayersPassesWithANote) {
  const test::TinyModel model(test::two_layers());
  const ShardPlan plan = make_plan(*model, {.tp = 2});
  pack_to_folder(*model, plan, {.out = model / "packed", .layers = {1}});
  const VerifyReport report = verify_packed(model / "packed", *model);
  EXPECT_TRUE(report.passed);
  EXPECT_EQ(count_of(report, "MOXIE-V008"), 1U);
}

}  // namespace
}  // namespace moxie

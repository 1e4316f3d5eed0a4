// SPDX-License-Identifier: Apache-2.0
// Files and folders appear complete or not at all.
#include "base/staged_file.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>

#include "base/hash.hpp"
#include "support/refusal.hpp"
#include "support/temp_folder.hpp"

namespace moxie {
namespace {

namespace fs = std::filesystem;

std::ptrdiff_t entries_in(const fs::path& folder) {
  return std::distance(fs::directory_iterator(folder), fs::directory_iterator());
}

TEST(StagedFile, IsNotVisibleBeforeCommit) {
  const test::TempFolder folder;
  const fs::path path = folder.path() / "out.bin";
  StagedFile file(path);
  file.write("half");
  EXPECT_FALSE(fs::exists(path));
  file.write(" and half");
  file.commit();
  EXPECT_EQ(test::read_bytes(path), "half and half");
  EXPECT_EQ(entries_in(folder.path()), 1);
}

TEST(StagedFile, LeavesNothingWithoutCommit) {
  const test::TempFolder folder;
  const auto fail = [&] {
    StagedFile file(folder.path() / "out.bin");
    file.write("half");
    throw std::runtime_error("in the middle");
  };
  EXPECT_THROW(fail(), std::runtime_error);
  EXPECT_EQ(entries_in(folder.path()), 0);
}

// Sizes around whole units and buffers, in appends that do not keep to either; on a disk, and in
// memory, where the file system may not know direct writing.
TEST(StagedFile, WritesTheSameBytesPastThePageCache) {
  constexpr std::size_t kBuffer = 2 * StagedFile::kDirectUnit;
  for (const fs::path& root : {fs::current_path(), fs::path("/dev/shm")}) {
    if (!fs::is_directory(root)) continue;
    const fs::path path = root / ("staged_file_test." + std::to_string(::getpid()));
    for (const std::size_t size : {std::size_t{0}, std::size_t{1}, kBuffer / 2, kBuffer - 1,
                                   kBuffer, kBuffer + 1, 3 * kBuffer, 3 * kBuffer + 4097}) {
      std::string bytes(size, '\0');
      for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(1 + i % 251);
      for (const std::size_t step : {std::size_t{777}, std::size_t{4096}, 5 * kBuffer}) {
        StagedFile file(path, kBuffer);
        for (std::size_t at = 0; at < size; at += step)
          file.write(std::string_view(bytes).substr(at, step));
        EXPECT_EQ(file.bytes(), size);
        EXPECT_EQ(file.checksum(), hash_hex(bytes));
        file.commit();
        EXPECT_TRUE(test::read_bytes(path) == bytes) << size << " by " << step << " in " << root;
      }
    }
    fs::remove(path);
  }
}

TEST(StagedFile, PastThePageCacheBytesAreOnlyAppendedInWholeUnits) {
  const test::TempFolder folder;
  const auto internal = [](const auto& call) {
    EXPECT_EQ(test::refusal_of(call).code(), ErrorCode::internal);
  };
  internal([&] { StagedFile(folder.path() / "out.bin", StagedFile::kDirectUnit + 1); });
  StagedFile file(folder.path() / "out.bin", StagedFile::kDirectUnit);
  const std::byte byte{1};
  internal([&] { file.write_at(0, {&byte, 1}); });
}

TEST(StagedFile, ReplacesAnOlderFileOnlyAtCommit) {
  const test::TempFolder folder;
  const fs::path path = folder.write("out.bin", "old");
  {
    StagedFile(path).write("never");
  }
  EXPECT_EQ(test::read_bytes(path), "old");
  StagedFile file(path);
  file.write("new");
  EXPECT_EQ(test::read_bytes(path), "old");
  file.commit();
  EXPECT_EQ(test::read_bytes(path), "new");
  EXPECT_EQ(entries_in(folder.path()), 1);
}

TEST(StagedFile, CountsAndChecksumsWhatItWrote) {
  const test::TempFolder folder;
  StagedFile file(folder.path() / "out.bin");
  EXPECT_EQ(file.checksum(), hash_hex(""));
  file.write("ab");
  file.write("");
  file.write("c");
  EXPECT_EQ(file.bytes(), 3U);
  EXPECT_EQ(file.checksum(), hash_hex("abc"));
}

TEST(StagedFile, RefusesAFolderThatIsNotThere) {
  const test::TempFolder folder;
  const Error error = test::refusal_of([&] { StagedFile(folder.path() / "absent" / "out.bin"); });
  EXPECT_EQ(error.code(), ErrorCode::environment);
}

TEST(StagedFile, LeavesNothingWhenTheNameIsTakenByAFolder) {
  const test::TempFolder folder;
  folder.write("taken/inside", "x");
  StagedFile file(folder.path() / "taken");
  file.write("new");
  EXPECT_EQ(test::refusal_of([&] { file.commit(); }).code(), ErrorCode::environment);
  EXPECT_EQ(entries_in(folder.path()), 1);
  EXPECT_EQ(test::read_bytes(folder.path() / "taken" / "inside"), "x");
}

TEST(StagedFile, ReportsAFullDisk) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  const test::TempFolder folder;
  StagedFile file(folder.path() / "out.bin");
  fs::path temporary;
  for (const auto& entry : fs::directory_iterator(folder.path())) temporary = entry.path();
  ASSERT_FALSE(temporary.empty());
  // A link in place of the temporary name: the next one opened there writes to a device that is
  // always full.
  const fs::path full =
      temporary.parent_path() / (".full.bin" + temporary.filename().string().substr(8));
  fs::create_symlink("/dev/full", full);
  StagedFile doomed(folder.path() / "full.bin");
  EXPECT_EQ(test::refusal_of([&] { doomed.write("x"); }).code(), ErrorCode::environment);
}

TEST(StagedFile, WritesAWholeTextFile) {
  const test::TempFolder folder;
  write_text_file(folder.path() / "a.json", "{}\n");
  EXPECT_EQ(test::read_bytes(folder.path() / "a.json"), "{}\n");
}

TEST(StagedFolder, AppearsOnlyAtCommit) {
  const test::TempFolder folder;
  const fs::path path = folder.path() / "packed";
  StagedFolder staged(path);
  write_text_file(staged.staging() / "part", "content");
  EXPECT_FALSE(fs::exists(path));
  staged.commit();
  EXPECT_EQ(test::read_bytes(path / "part"), "content");
  EXPECT_EQ(entries_in(folder.path()), 1);
}

TEST(StagedFolder, LeavesNothingWithoutCommit) {
  const test::TempFolder folder;
  {
    const StagedFolder staged(folder.path() / "packed");
    write_text_file(staged.staging() / "part", "content");
  }
  EXPECT_EQ(entries_in(folder.path()), 0);
}

TEST(StagedFolder, TakesTheNameWithOrWithoutASlashAtTheEnd) {
  const test::TempFolder folder;
  StagedFolder staged(folder.path() / "packed" / "");
  write_text_file(staged.staging() / "part", "content");
  staged.commit();
  EXPECT_EQ(test::read_bytes(folder.path() / "packed" / "part"), "content");
  EXPECT_EQ(entries_in(folder.path()), 1);
}

TEST(StagedFolder, ReplacesAnEmptyFolderButNoFullOne) {
  const test::TempFolder folder;
  fs::create_directory(folder.path() / "empty");
  StagedFolder first(folder.path() / "empty");
  write_text_file(first.staging() / "part", "content");
  first.commit();
  {
    StagedFolder second(folder.path() / "empty");
    EXPECT_EQ(test::refusal_of([&] { second.commit(); }).code(), ErrorCode::environment);
  }
  EXPECT_EQ(test::read_bytes(folder.path() / "empty" / "part"), "content");
  EXPECT_EQ(entries_in(folder.path()), 1);
}

}  // namespace
}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// Files mapped read-only: contents, ownership, and what the system refuses.
#include "base/mapped_file.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <iterator>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "support/page_cache.hpp"
#include "support/refusal.hpp"
#include "support/temp_folder.hpp"

namespace moxie {
namespace {

std::string text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

TEST(MappedFile, ShowsTheWholeFile) {
  const test::TempFolder folder;
  const std::string text = "line\n\0binary\xFF" + std::string(10000, 'x');
  EXPECT_EQ(text_of(MappedFile(folder.write("a", text))), text);
  EXPECT_EQ(read_text_file(folder.path() / "a"), text);
}

TEST(MappedFile, OfNothingIsEmpty) {
  const test::TempFolder folder;
  EXPECT_TRUE(MappedFile().bytes().empty());
  EXPECT_TRUE(MappedFile(folder.write("empty", "")).bytes().empty());
  EXPECT_EQ(read_text_file(folder.path() / "empty"), "");
}

TEST(MappedFile, StaysReadableAfterTheFileIsRemoved) {
  const test::TempFolder folder;
  const MappedFile file(folder.write("a", "still here"));
  std::filesystem::remove(folder.path() / "a");
  EXPECT_EQ(text_of(file), "still here");
}

TEST(MappedFile, MovesItsMapping) {
  const test::TempFolder folder;
  MappedFile first(folder.write("a", "first"));
  MappedFile second(folder.write("b", "second"));
  MappedFile moved(std::move(first));
  EXPECT_EQ(text_of(moved), "first");
  second = std::move(moved);
  EXPECT_EQ(text_of(second), "first");
}

TEST(MappedFile, ReadsFromAnywhereAndLessAtItsEnd) {
  const test::TempFolder folder;
  std::string text;
  for (std::size_t i = 0; i < 20557; ++i) text += static_cast<char>('a' + i / 7 % 26);
  const MappedFile file(folder.write("a", text));
  for (const bool cached : {true, false}) {
    if (!cached) test::drop_cache(folder.path() / "a");
    for (std::size_t offset = 0; offset < 30000; offset += 1999) {
      std::string read(9000, ' ');
      const std::size_t count = file.read(offset, std::as_writable_bytes(std::span(read)));
      const std::string due =
          offset < text.size() ? text.substr(offset, read.size()) : std::string();
      EXPECT_EQ(read.substr(0, count), due) << offset;
    }
  }
}

// A model has hundreds of shards, a packed set thousands of files.
TEST(MappedFile, KeepsNoDescriptor) {
  const test::TempFolder folder;
  const auto path = folder.write("a", "x");
  const auto open_files = [] {
    const std::filesystem::directory_iterator all("/proc/self/fd");
    return std::distance(begin(all), end(all));
  };
  const auto before = open_files();
  const std::vector<MappedFile> files = [&] {
    std::vector<MappedFile> made;
    for (int i = 0; i < 20; ++i) made.emplace_back(path);
    return made;
  }();
  EXPECT_EQ(open_files(), before);
}

TEST(MappedFile, ReadsTheFileThatItMappedWhateverLiesUnderItsNameNow) {
  const test::TempFolder folder;
  const std::string text(5000, 'x');
  const MappedFile file(folder.write("a", text));
  const auto path = folder.path() / "a";
  const auto expect_text = [&] {
    std::string read(text.size(), ' ');
    EXPECT_EQ(file.read(0, std::as_writable_bytes(std::span(read))), text.size());
    EXPECT_EQ(read, text);
  };
  expect_text();
  std::filesystem::remove(path);
  expect_text();
  folder.write("a", std::string(text.size(), 'y'));
  expect_text();
  std::filesystem::remove(path);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);  // opening it must not wait for a writer
  expect_text();
}

TEST(MappedFile, RefusesWhatIsNoFileAndNamesIt) {
  const test::TempFolder folder;
  const auto pipe = folder.path() / "pipe";  // without a writer: opening it must not wait for one
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const auto& path :
       {folder.path(), folder.path() / "absent", std::filesystem::path("/dev/null"), pipe}) {
    const Error error = test::refusal_of([&] { const MappedFile file(path); });
    EXPECT_EQ(error.code(), ErrorCode::environment);
    EXPECT_EQ(error.findings().front().where.file, path.string());
  }
}

}  // namespace
}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// Written files: read back strictly, laid out as published ones, visible only when complete.
#include "checkpoint/safetensors_writer.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/safetensors_header.hpp"
#include "support/refusal.hpp"
#include "support/temp_folder.hpp"

namespace moxie {
namespace {

namespace fs = std::filesystem;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

TEST(SafetensorsWriter, WritesWhatTheReaderReads) {
  const test::TempFolder folder;
  const std::vector<TensorEntry> entries = {{"a.weight", DType::i8, {2, 3}},
                                            {"a.scale", DType::f8_e8m0, {2, 1}},
                                            {"scalar \"quoted\" é", DType::f32, {}},
                                            {"none", DType::bf16, {0, 7}},
                                            {"nibbles", DType::f4, {1, 2}}};
  SafetensorsWriter writer(folder.path() / "x.safetensors", entries);
  for (const std::string_view data : {"abcdef", "gh", "ijkl", "", "m"})
    writer.write(bytes_of(data));
  writer.commit();
  const std::string file = test::read_bytes(folder.path() / "x.safetensors");
  EXPECT_EQ(writer.bytes(), file.size());
  EXPECT_EQ(writer.checksum(), hash_hex(file));
  const SafetensorsHeader header = read_safetensors_header(bytes_of(file), "x");
  EXPECT_EQ(header.header_bytes % 8, 0U) << "published files pad the header to 8 bytes";
  EXPECT_EQ(file.substr(header.header_bytes), "abcdefghijklm");
  ASSERT_EQ(header.tensors.size(), entries.size());
  for (std::size_t i = 0; i < entries.size(); ++i) {
    EXPECT_EQ(header.tensors[i].name, entries[i].name);
    EXPECT_EQ(header.tensors[i].dtype, entries[i].dtype);
    EXPECT_EQ(header.tensors[i].shape, entries[i].shape);
    EXPECT_EQ(header.tensors[i].bytes, entries[i].bytes());
  }
}

TEST(SafetensorsWriter, GivesTheSameBytesEveryTime) {
  const test::TempFolder folder;
  for (const std::string_view name : {"a", "b"}) {
    SafetensorsWriter writer(folder.path() / name, {{"t", DType::u8, {2}}});
    writer.write(bytes_of("xy"));
    writer.commit();
  }
  EXPECT_EQ(test::read_bytes(folder.path() / "a"), test::read_bytes(folder.path() / "b"));
}

TEST(SafetensorsWriter, DataMayComeInPieces) {
  const test::TempFolder folder;
  SafetensorsWriter writer(folder.path() / "x", {{"t", DType::u8, {3}}, {"u", DType::u8, {3}}});
  for (const std::string_view data : {"a", "bcd", "ef"}) writer.write(bytes_of(data));
  writer.commit();
  EXPECT_TRUE(test::read_bytes(folder.path() / "x").ends_with("abcdef"));
}

TEST(SafetensorsWriter, RefusesToPublishTooFewOrTooManyBytes) {
  const test::TempFolder folder;
  for (const std::string_view data : {"", "abc", "abcde"}) {
    SafetensorsWriter writer(folder.path() / "x", {{"t", DType::u8, {4}}});
    writer.write(bytes_of(data));
    EXPECT_EQ(test::refusal_of([&] { writer.commit(); }).code(), ErrorCode::internal);
  }
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(SafetensorsWriter, LeavesNothingWithoutCommit) {
  const test::TempFolder folder;
  {
    const SafetensorsWriter writer(folder.path() / "x", {{"t", DType::u8, {4}}});
  }
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

}  // namespace
}  // namespace moxie

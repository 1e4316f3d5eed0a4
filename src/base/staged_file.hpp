// SPDX-License-Identifier: Apache-2.0
// A file that appears under its name only when it is complete.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/hash.hpp"

namespace moxie {

// Whether a file or folder of this name is something staged that is not, or never was, committed.
bool is_temporary_name(std::string_view name);

// Writes to a temporary name beside `path`; commit() renames it. Destroyed without commit, it
// leaves nothing behind.
class StagedFile {
 public:
  // With `direct_bytes`, appended bytes are gathered in a buffer of this size, a multiple of
  // kDirectUnit, and go to the disk past the system's page cache, where the file system can do
  // that. Copying large files into fresh pages of that cache costs more than all else.
  explicit StagedFile(std::filesystem::path path, std::size_t direct_bytes = 0);
  ~StagedFile();
  StagedFile(const StagedFile&) = delete;
  StagedFile& operator=(const StagedFile&) = delete;

  static constexpr std::size_t kDirectUnit = 4096;

  // Appends. Error(environment) when the disk refuses.
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  // Writes at a byte of the file, in any order; not for files with `direct_bytes`. The checksum is
  // of appended bytes only.
  void write_at(std::uint64_t offset, std::span<const std::byte> bytes);
  // Makes the content durable and visible. Replaces an older file of that name.
  void commit();

  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  // xxh3_128 of all bytes written so far, as 32 hex digits.
  [[nodiscard]] std::string checksum() const { return hash_.hex(); }

 private:
  struct Free {
    void operator()(std::byte* bytes) const;
  };

  void open(bool direct);
  void append(std::span<const std::byte> bytes);
  void gather(std::span<const std::byte> bytes);
  // Whether the file was open for direct writing until now.
  bool stop_direct();
  // Starts writing what was appended to the disk, so that commit() has little left to wait for.
  void push();

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  int descriptor_ = -1;
  std::uint64_t bytes_ = 0;
  std::uint64_t pushed_ = 0;
  StreamHash hash_;
  std::size_t direct_bytes_ = 0;
  std::size_t gathered_ = 0;
  std::unique_ptr<std::byte, Free> buffer_;  // [direct_bytes_]
};

// Writes a whole text file through StagedFile.
void write_text_file(const std::filesystem::path& path, std::string_view text);

// A folder filled under a temporary name beside `path`; commit() renames it. Destroyed without
// commit, it is removed.
class StagedFolder {
 public:
  explicit StagedFolder(std::filesystem::path path);
  ~StagedFolder();
  StagedFolder(const StagedFolder&) = delete;
  StagedFolder& operator=(const StagedFolder&) = delete;

  // Where to write until commit().
  [[nodiscard]] const std::filesystem::path& staging() const { return temporary_; }
  // `path` must not exist or be an empty folder.
  void commit();

 private:
  std::filesystem::path path_;
  std::filesystem::path temporary_;
};

}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// A file mapped read-only into memory.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

namespace moxie {

class MappedFile {
 public:
  MappedFile() = default;
  // Maps the whole file; an empty file gives an empty span. Error(environment) when the system
  // refuses.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  [[nodiscard]] std::span<const std::byte> bytes() const { return {data_, size_}; }
  // Lets the system take back this process's pages; bytes() stays valid and is read again when
  // used.
  void release() const;

  // Offsets, sizes and addresses of read() are multiples of this.
  static constexpr std::size_t kReadUnit = 4096;
  // Copies the bytes from `offset` on, as many as fit `to`, fewer at the end of the file, and says
  // how many: past the system's page cache where that does not hold most of them, since fresh pages
  // cost more than reading. Error(environment) MOXIE-E001.
  std::size_t read(std::size_t offset, std::span<std::byte> to) const;

 private:
  [[nodiscard]] bool is_cached(std::size_t offset, std::size_t bytes) const;

  std::filesystem::path path_;
  int descriptor_ = -1;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// The whole of a small text file. Error(environment) when it can not be read.
std::string read_text_file(const std::filesystem::path& path);

}  // namespace moxie

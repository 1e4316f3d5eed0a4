// SPDX-License-Identifier: Apache-2.0
// A file mapped read-only into memory.
#pragma once

#include <cstddef>
#include <cstdint>
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

  // Copies the bytes from `offset` on, as many as fit `to`, fewer at the end of the file, and says
  // how many. A file that has become shorter ends earlier, where bytes() would end the process.
  // Error(environment) MOXIE-E001.
  std::size_t read(std::size_t offset, std::span<std::byte> to) const;
  // Asks the system to bring in these bytes; returns at once.
  void read_ahead(std::size_t offset, std::size_t bytes) const;

 private:
  [[nodiscard]] int open_again() const;

  std::filesystem::path path_;
  std::uint64_t device_ = 0;
  std::uint64_t inode_ = 0;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// The whole of a small text file. Error(environment) when it can not be read.
std::string read_text_file(const std::filesystem::path& path);

}  // namespace moxie

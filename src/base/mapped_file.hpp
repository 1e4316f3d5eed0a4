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
  // Asks the system to bring in these bytes; returns at once.
  void read_ahead(std::size_t offset, std::size_t bytes) const;

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// The whole of a small text file. Error(environment) when it can not be read.
std::string read_text_file(const std::filesystem::path& path);

}  // namespace moxie

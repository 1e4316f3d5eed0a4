// SPDX-License-Identifier: Apache-2.0
// Large memory that no thread has touched yet: from the system, or a part of a file as this process
// alone sees it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace moxie {

class WritableMemory {
 public:
  WritableMemory() = default;
  // Zeros, in large pages where the system has them. Error(environment) MOXIE-E003 for want of
  // memory.
  explicit WritableMemory(std::uint64_t bytes);
  // Bytes [offset, offset + bytes) of a file; what is written stays in this process. Errors:
  // Error(environment) MOXIE-E001, also for a file that ends before.
  WritableMemory(const std::filesystem::path& path, std::uint64_t offset, std::uint64_t bytes);
  ~WritableMemory();
  WritableMemory(WritableMemory&& other) noexcept;
  WritableMemory& operator=(WritableMemory&& other) noexcept;
  WritableMemory(const WritableMemory&) = delete;
  WritableMemory& operator=(const WritableMemory&) = delete;

  [[nodiscard]] std::span<std::byte> bytes() const { return {begin_, size_}; }

 private:
  void* mapping_ = nullptr;
  std::size_t mapped_ = 0;
  std::byte* begin_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace moxie

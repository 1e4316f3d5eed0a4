// SPDX-License-Identifier: Apache-2.0
// Writes one safetensors file front to back; it appears under its name only when complete.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/staged_file.hpp"
#include "moxie/types.hpp"

namespace moxie {

struct TensorEntry {
  std::string name;
  DType dtype = DType::u8;
  Shape shape;

  [[nodiscard]] std::uint64_t bytes() const;
};

class SafetensorsWriter {
 public:
  // Writes the header; the data of `entries` follows through write(), in that order.
  // `direct_bytes` as of StagedFile; the data begins at a multiple of `data_align` bytes.
  SafetensorsWriter(const std::filesystem::path& path, const std::vector<TensorEntry>& entries,
                    std::size_t direct_bytes = 0, std::uint64_t data_align = 8);

  void write(std::span<const std::byte> bytes) { file_.write(bytes); }
  // Instead of write(): the bytes from `offset` of the data area on, in any order, each byte once.
  void write_at(std::uint64_t offset, std::span<const std::byte> bytes);
  // Checks that exactly the announced bytes came, and makes the file visible.
  void commit();

  // Of the whole file so far.
  [[nodiscard]] std::uint64_t bytes() const { return file_.bytes(); }
  [[nodiscard]] std::string checksum() const { return file_.checksum(); }

 private:
  StagedFile file_;
  std::uint64_t expected_bytes_ = 0;
  std::uint64_t data_begin_ = 0;
  std::uint64_t placed_bytes_ = 0;
};

}  // namespace moxie

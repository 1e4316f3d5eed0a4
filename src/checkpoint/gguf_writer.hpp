// SPDX-License-Identifier: Apache-2.0
// Writes one GGUF file front to back; it appears under its name only when complete.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/staged_file.hpp"
#include "checkpoint/safetensors_writer.hpp"

namespace moxie {

using GgufPairs =
    std::vector<std::pair<std::string, std::variant<std::uint32_t, float, bool, std::string>>>;

// A tensor takes its place in whole steps of 32 bytes; the padding behind it is zeros.
class GgufWriter {
 public:
  // Writes the header, of version 3. The data of `entries` follows: for each, in that order, any
  // number of write() and one finish_tensor(). Types are those that GGUF has.
  GgufWriter(const std::filesystem::path& path, const GgufPairs& metadata,
             const std::vector<TensorEntry>& entries);

  void write(std::span<const std::byte> bytes) { file_.write(bytes); }
  // Checks that exactly the announced bytes of the tensor came, and pads.
  void finish_tensor();
  // Checks that every tensor came, and makes the file visible.
  void commit();

  // Of the whole file so far.
  [[nodiscard]] std::uint64_t bytes() const { return file_.bytes(); }

 private:
  void pad();

  StagedFile file_;
  std::vector<std::uint64_t> ends_;  // of the tensors in the file, before their padding
  std::size_t finished_ = 0;
};

}  // namespace moxie

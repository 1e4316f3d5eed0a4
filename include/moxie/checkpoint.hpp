// SPDX-License-Identifier: Apache-2.0
// A checkpoint as bytes: memory-mapped safetensors or GGUF files and the directory of their
// tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "moxie/json.hpp"
#include "moxie/status.hpp"
#include "moxie/types.hpp"

namespace moxie {

// One tensor of a checkpoint. Bytes are little endian, row major, at any alignment.
struct TensorInfo {
  std::string name;
  DType dtype = DType::u8;
  Shape shape;
  std::uint32_t file = 0;    // index into Checkpoint::files()
  std::uint64_t offset = 0;  // first byte, from the start of the file
  std::uint64_t bytes = 0;
};

struct CheckpointFile {
  std::filesystem::path path;
  std::uint64_t bytes = 0;         // whole file
  std::uint64_t header_bytes = 0;  // length field and header
};

// Immutable; cheap to copy; safe to read from several threads. TensorInfo references and byte views
// stay valid while any copy lives.
class MOXIE_API Checkpoint {
 public:
  struct State;
  explicit Checkpoint(std::shared_ptr<const State> state);

  // The folder or file that was opened.
  [[nodiscard]] const std::filesystem::path& path() const;
  [[nodiscard]] std::span<const CheckpointFile> files() const;
  // Every tensor, by file, in header order.
  [[nodiscard]] std::span<const TensorInfo> tensors() const;
  // nullptr when no present file holds it.
  [[nodiscard]] const TensorInfo* find(std::string_view name) const;
  // The shard that should hold `name` according to the index but is not on disk; empty otherwise.
  [[nodiscard]] std::string_view absent_shard_of(std::string_view name) const;
  // The tensor's bytes in the mapped file; may be unaligned.
  [[nodiscard]] std::span<const std::byte> bytes(const TensorInfo& tensor) const;

  // Lets the system take back this process's pages of a file; views stay valid and are read again
  // when used.
  void release(std::uint32_t file) const;
  // Copies bytes of a file, those from `offset` on; less is read at the end of the file alone.
  // Errors: Error(environment) MOXIE-E001 when the system refuses or the file has become shorter.
  void read(std::uint32_t file, std::uint64_t offset, std::span<std::byte> to) const;
  // Asks the system to bring in bytes of a file that are read soon; returns at once.
  void read_ahead(std::uint32_t file, std::uint64_t offset, std::uint64_t bytes) const;

  // config.json and hf_quant_config.json; null when absent. Of a .gguf the metadata under its own
  // keys, without arrays of text and long arrays.
  [[nodiscard]] const Json& config() const;
  [[nodiscard]] const Json& quant_config() const;
  // The files they were read from; empty paths when absent or, for a .gguf, inside it.
  [[nodiscard]] const std::filesystem::path& config_path() const;
  [[nodiscard]] const std::filesystem::path& quant_config_path() const;
  // Warnings and notes of opening: absent shards, stray files, a wrong total_size.
  [[nodiscard]] std::span<const Finding> findings() const;

 private:
  std::shared_ptr<const State> state_;
};

// Opens a folder with config.json (single file, shards with an index, shards without), one
// .safetensors file, one .gguf file or a folder with nothing but that, or one config .json alone.
// Reads headers only. Errors: Error(input) for
// anything a strict reader refuses (truncation, overlap, hole, duplicate key or tensor, size
// mismatch, an index that names a tensor its shard lacks); absent shards are findings, not errors.
// Error(environment) when the system refuses to map a file.
MOXIE_API Checkpoint open_checkpoint(const std::filesystem::path& path);

}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// What a step packs from, read into memory that is used again and again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/writable_memory.hpp"
#include "moxie/checkpoint.hpp"
#include "pack/pack_steps.hpp"

namespace moxie {

class SourceWindow {
 public:
  // Reads these ranges in place of what was held, each byte once. Errors: those of
  // Checkpoint::read().
  void fill(const Checkpoint& checkpoint, std::span<const SourceRange> ranges);

  // Bytes of a tensor; nullptr where not all of them are held.
  [[nodiscard]] const std::byte* find(const TensorInfo& tensor, std::uint64_t offset,
                                      std::uint64_t bytes) const;

 private:
  // Neighbouring bytes of a file.
  struct Run {
    std::uint32_t file = 0;
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    std::uint64_t at = 0;  // in memory
  };

  [[nodiscard]] static std::vector<Run> runs_of(std::span<const SourceRange> ranges);

  std::vector<Run> runs_;  // in the order of files and bytes
  WritableMemory memory_;
};

// Bytes of tensors: from a window where it holds them, from the mapped file otherwise.
class SourceBytes {
 public:
  explicit SourceBytes(const Checkpoint& checkpoint, const SourceWindow* window = nullptr)
      : checkpoint_(&checkpoint), window_(window) {}

  [[nodiscard]] const std::byte* find(const TensorInfo& tensor, std::uint64_t offset,
                                      std::uint64_t bytes) const;

 private:
  const Checkpoint* checkpoint_;
  const SourceWindow* window_;
};

}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// Writes the tensors of one layer as one safetensors file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <vector>

#include "synth/names.hpp"
#include "synth/recipe.hpp"

namespace moxie::synth {

// Fills the data of one shard in parallel, batch by batch, through one reused buffer.
class ShardWriter {
 public:
  explicit ShardWriter(const Recipe& recipe);

  // `advance` is told the bytes of each batch once they are written.
  void write(const std::filesystem::path& path, const std::vector<Tensor>& tensors,
             const std::function<void(std::uint64_t)>& advance);

 private:
  const Recipe& recipe_;
  std::vector<std::byte> buffer_;
};

}  // namespace moxie::synth

// SPDX-License-Identifier: Apache-2.0
// One layer's file of one rank of a packed set, copied expert by expert.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "moxie/pack.hpp"

namespace moxie {

// Errors, of all members: Error(input) MOXIE-K005 for a file that is not as the layer's plan has
// it, and what pack_expert() says of a value that no reader may use.
class LayerLoader {
 public:
  LayerLoader(const PackedFolder& folder, unsigned rank, int layer);
  LayerLoader(const LayerLoader&) = delete;
  LayerLoader& operator=(const LayerLoader&) = delete;
  ~LayerLoader();

  // Where the blobs of a file in the kernel layout lie; none of a logical one.
  [[nodiscard]] std::optional<BlobSource::InFile> in_file() const;
  // As the layer follows it.
  [[nodiscard]] const ShardPlan& plan() const;
  // Writes all of the blob. Called from several threads at once.
  void load(std::uint64_t expert, std::span<std::byte> blob) const;
  // Lets go of the pages that were read.
  void release() const;

 private:
  struct File;
  std::unique_ptr<const File> file_;
};

// Error(input) MOXIE-K005 for a layer that a rank of the set lacks.
void require_layer(const PackedFolder& folder, int layer);

}  // namespace moxie

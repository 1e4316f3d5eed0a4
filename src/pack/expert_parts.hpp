// SPDX-License-Identifier: Apache-2.0
// Parts of a blob, so that several threads can pack one expert.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "moxie/pack.hpp"
#include "pack/source_window.hpp"

namespace moxie {

// Bytes of a blob.
struct BlobPart {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;

  [[nodiscard]] std::uint64_t bytes() const { return end - begin; }
};

// Long enough that handing one out costs nothing beside writing it.
inline constexpr std::uint64_t kPartBytes = std::uint64_t{1} << 20;

// Cuts a blob into parts of nearly the same size, at most `part_bytes` and a row each; each byte
// lies in one of them, each row of a segment too. At least one part.
std::vector<BlobPart> parts_of(const PackedLayout& layout, std::uint64_t part_bytes);

// pack_expert() of the bytes of one of these parts: others are neither written nor looked at, nor
// is what they are made from, which lies in `source`. Errors: those of pack_expert() that its
// values give rise to.
void pack_expert_part(const MoeModel& model, const ShardPlan& plan, const RankPlan& rank,
                      const LayerExperts& layer, std::uint64_t expert, BlobPart part,
                      const SourceBytes& source, std::span<std::byte> blob);

// blob_source() with parts of another size.
BlobSource blob_source_in_parts(const MoeModel& model, const ShardPlan& plan, unsigned rank,
                                int layer, std::uint64_t part_bytes);

}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// From plan terms to kernel terms: shapes, offsets, the checks of a blob.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/contract.hpp"
#include "moxie/layer.hpp"
#include "moxie/plan.hpp"

namespace moxie {

// Slots that one call may have: rows are counted in 31 bits.
inline constexpr std::uint64_t kMaxSlots = (std::uint64_t{1} << 31) - 1;

BlobOffsets blob_offsets(const PackedLayout& layout);

ExpertsShape experts_shape(const ShardPlan& plan, const LayerSpec& spec, const RankPlan& rank);

// Throws Error(input) MOXIE-R003 unless the blob has the layout's size and all its scales and
// globals are numbers, globals above zero.
void check_blob(const ShardPlan& plan, unsigned rank, std::uint64_t expert,
                std::span<const std::byte> blob);

}  // namespace moxie

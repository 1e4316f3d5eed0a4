// SPDX-License-Identifier: Apache-2.0
// Slots to rows: which row of the compact buffers each (token, choice) pair owns.
#pragma once

#include <cstdint>

#include "kernels/contract.hpp"

namespace moxie::cpu::portable {

// Slot s is choice s % top_k of token s / top_k. Rows are the valid slots, sorted by local expert
// and then by slot; those of an expert are neighbours. A view: the memory is the workspace's.
struct SlotMap {
  // First rows of the local experts, with a leading 0: expert l owns [with0[l], with0[l + 1]).
  std::uint32_t* with0 = nullptr;          // [local_experts + 1]
  std::int32_t* row_of_slot = nullptr;     // [slots]; -1: masked
  std::uint32_t* slot_of_row = nullptr;    // [slots], the first rows() hold
  std::int32_t* active_experts = nullptr;  // [local_experts], local ids with at least one row
  std::uint64_t active = 0;
  std::uint64_t local_experts = 0;
  std::uint64_t top_k = 0;

  [[nodiscard]] std::uint64_t rows() const { return with0[local_experts]; }
  [[nodiscard]] std::uint64_t token_of_row(std::uint64_t row) const {
    return slot_of_row[row] / top_k;
  }
};

// Fills the map. Ids that are -1 or another rank's are masked; ids outside [0, experts) are masked
// and set kFlagBadExpertId.
void build_slots(const ExpertsArgs& args, SlotMap& map);

}  // namespace moxie::cpu::portable

// SPDX-License-Identifier: Apache-2.0
// A stable counting sort of the slots by local expert.
#include "kernels/cpu/portable/slots.hpp"

#include <algorithm>
#include <atomic>

namespace moxie::cpu::portable {

namespace {

// The local expert of a slot, or -1.
std::int32_t local_expert(const ExpertsArgs& args, std::uint64_t slot, bool& bad) {
  const std::int32_t id = args.topk_ids[slot];
  const bool known = id >= 0 && static_cast<std::uint64_t>(id) < args.shape.experts;
  bad = bad || (!known && id != -1);
  return known ? args.weights.local_of_expert[id] : -1;
}

}  // namespace

void build_slots(const ExpertsArgs& args, SlotMap& map) {
  const std::uint64_t slots = args.tokens * args.shape.top_k;
  std::fill_n(map.with0, map.local_experts + 1, 0U);
  bool bad = false;
  for (std::uint64_t slot = 0; slot < slots; ++slot) {
    const std::int32_t expert = local_expert(args, slot, bad);
    if (expert >= 0) ++map.with0[expert + 1];
  }
  map.active = 0;
  for (std::uint64_t expert = 0; expert < map.local_experts; ++expert) {
    if (map.with0[expert + 1] > 0)
      map.active_experts[map.active++] = static_cast<std::int32_t>(expert);
    map.with0[expert + 1] += map.with0[expert];
  }
  // Placing moves each expert's first row to its end, which is the next one's first row; shifting
  // the array by one entry undoes it.
  for (std::uint64_t slot = 0; slot < slots; ++slot) {
    const std::int32_t expert = local_expert(args, slot, bad);
    map.row_of_slot[slot] = -1;
    if (expert < 0) continue;
    const std::uint32_t row = map.with0[expert]++;
    map.row_of_slot[slot] = static_cast<std::int32_t>(row);
    map.slot_of_row[row] = static_cast<std::uint32_t>(slot);
  }
  for (std::uint64_t expert = map.local_experts; expert > 0; --expert)
    map.with0[expert] = map.with0[expert - 1];
  map.with0[0] = 0;
  if (bad) std::atomic_ref(*args.flags).fetch_or(kFlagBadExpertId, std::memory_order_relaxed);
}

}  // namespace moxie::cpu::portable

// SPDX-License-Identifier: Apache-2.0
// The one place that says what lies where in the workspace of the tile kernels.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/align.hpp"
#include "base/checked.hpp"
#include "kernels/contract.hpp"
#include "kernels/cpu/portable/slots.hpp"
#include "kernels/cpu/tiles/records.hpp"

namespace moxie::cpu::tiles {

using portable::SlotMap;

inline constexpr std::uint64_t kAlign = 64;

// Records from one row to the next: where they lay a power of two apart, the same record of all
// rows would have to share one set of a cache.
constexpr std::uint64_t records_of(std::uint64_t tiles) { return tiles + 1; }

// Offsets in bytes from an aligned base; all grow with the tokens.
struct WorkspaceLayout {
  std::uint64_t x = 0;     // records [tokens, records_of(hidden / 32)]
  std::uint64_t act = 0;   // records [slots, records_of(inter / 32)]
  std::uint64_t down = 0;  // f32 [slots, hidden]
  std::uint64_t with0 = 0;
  std::uint64_t row_of_slot = 0;
  std::uint64_t slot_of_row = 0;
  std::uint64_t active_experts = 0;
  std::uint64_t bytes = 0;  // with room to align the base
};

constexpr WorkspaceLayout workspace_layout(const ExpertsShape& shape, std::uint64_t tokens,
                                           std::uint64_t record_bytes) {
  WorkspaceLayout layout;
  std::uint64_t end = 0;
  const auto take = [&end](std::uint64_t count, std::uint64_t bytes) {
    const std::uint64_t start = end;
    end += round_up(count * bytes, kAlign);
    return start;
  };
  const std::uint64_t slots = tokens * shape.top_k;
  layout.x = take(tokens * records_of(shape.hidden / kTileColumns), record_bytes);
  layout.act = take(slots * records_of(shape.inter / kTileColumns), record_bytes);
  layout.down = take(slots * shape.hidden, sizeof(float));
  layout.with0 = take(shape.local_experts + 1, sizeof(std::uint32_t));
  layout.row_of_slot = take(slots, sizeof(std::int32_t));
  layout.slot_of_row = take(slots, sizeof(std::uint32_t));
  layout.active_experts = take(shape.local_experts, sizeof(std::int32_t));
  layout.bytes = end + kAlign - 1;
  return layout;
}

// The buffers of one call. Depends on an instruction set's own type, so that no linker takes one
// for the other.
template <class Products>
struct Workspace {
  using Record = typename Products::Record;

  Record* x;
  Record* act;
  float* down;
  SlotMap slots;

  static Workspace carve(const ExpertsArgs& args) {
    const WorkspaceLayout layout = workspace_layout(args.shape, args.tokens, sizeof(Record));
    std::byte* base = align_up(args.workspace, kAlign);
    Workspace work;
    work.x = reinterpret_cast<Record*>(base + layout.x);
    work.act = reinterpret_cast<Record*>(base + layout.act);
    work.down = reinterpret_cast<float*>(base + layout.down);
    work.slots.with0 = reinterpret_cast<std::uint32_t*>(base + layout.with0);
    work.slots.row_of_slot = reinterpret_cast<std::int32_t*>(base + layout.row_of_slot);
    work.slots.slot_of_row = reinterpret_cast<std::uint32_t*>(base + layout.slot_of_row);
    work.slots.active_experts = reinterpret_cast<std::int32_t*>(base + layout.active_experts);
    work.slots.local_experts = args.shape.local_experts;
    work.slots.top_k = args.shape.top_k;
    return work;
  }
};

}  // namespace moxie::cpu::tiles

// SPDX-License-Identifier: Apache-2.0
// The one place that says what lies where in the workspace of cpu.portable.experts.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/align.hpp"
#include "base/checked.hpp"
#include "kernels/contract.hpp"
#include "kernels/cpu/portable/slots.hpp"

namespace moxie::cpu::portable {

inline constexpr std::uint64_t kAlign = 64;

// Offsets from an aligned base. Sizes are in bytes; all grow with the tokens.
struct WorkspaceLayout {
  std::uint64_t x = 0;     // f32 [tokens, hidden], quantised
  std::uint64_t act = 0;   // f32 [slots, inter], quantised
  std::uint64_t down = 0;  // f32 [slots, hidden]
  std::uint64_t with0 = 0;
  std::uint64_t row_of_slot = 0;
  std::uint64_t slot_of_row = 0;
  std::uint64_t active_experts = 0;
  std::uint64_t bytes = 0;  // with room to align the base
};

constexpr WorkspaceLayout workspace_layout(const ExpertsShape& shape, std::uint64_t tokens) {
  WorkspaceLayout layout;
  std::uint64_t end = 0;
  const auto take = [&end](std::uint64_t count) {
    const std::uint64_t start = end;
    end += round_up(count * 4, kAlign);  // all elements are four bytes wide
    return start;
  };
  const std::uint64_t slots = tokens * shape.top_k;
  layout.x = take(tokens * shape.hidden);
  layout.act = take(slots * shape.inter);
  layout.down = take(slots * shape.hidden);
  layout.with0 = take(shape.local_experts + 1);
  layout.row_of_slot = take(slots);
  layout.slot_of_row = take(slots);
  layout.active_experts = take(shape.local_experts);
  layout.bytes = end + kAlign - 1;
  return layout;
}

// The buffers of one call.
struct Workspace {
  float* x = nullptr;
  float* act = nullptr;
  float* down = nullptr;
  SlotMap slots;
};

inline Workspace carve(const ExpertsArgs& args) {
  const WorkspaceLayout layout = workspace_layout(args.shape, args.tokens);
  std::byte* base = align_up(args.workspace, kAlign);
  Workspace workspace;
  workspace.x = reinterpret_cast<float*>(base + layout.x);
  workspace.act = reinterpret_cast<float*>(base + layout.act);
  workspace.down = reinterpret_cast<float*>(base + layout.down);
  workspace.slots.with0 = reinterpret_cast<std::uint32_t*>(base + layout.with0);
  workspace.slots.row_of_slot = reinterpret_cast<std::int32_t*>(base + layout.row_of_slot);
  workspace.slots.slot_of_row = reinterpret_cast<std::uint32_t*>(base + layout.slot_of_row);
  workspace.slots.active_experts = reinterpret_cast<std::int32_t*>(base + layout.active_experts);
  workspace.slots.local_experts = args.shape.local_experts;
  workspace.slots.top_k = args.shape.top_k;
  return workspace;
}

}  // namespace moxie::cpu::portable

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
  std::uint64_t x = 0;     // f32 [x rows, hidden], quantised
  std::uint64_t act = 0;   // f32 [slots, inter], quantised
  std::uint64_t down = 0;  // f32 [slots, hidden]
  std::uint64_t with0 = 0;
  std::uint64_t row_of_slot = 0;
  std::uint64_t slot_of_row = 0;
  std::uint64_t active_experts = 0;
  std::uint64_t x_scale = 0;    // f32 [x rows]; this and the two below for nvfp4 alone
  std::uint64_t act_scale = 0;  // f32 [slots]
  std::uint64_t amax = 0;       // f32 [slots or tokens, whichever are more]
  std::uint64_t bytes = 0;      // with room to align the base
};

// Whether every slot has an x of its own: experts with scales of their own quantise it differently.
constexpr bool has_x_of_slots(const ExpertsShape& shape) {
  return shape.act_format == ActFormat::nvfp4 && shape.act_scale == ActScale::checkpoint;
}

constexpr WorkspaceLayout workspace_layout(const ExpertsShape& shape, std::uint64_t tokens) {
  WorkspaceLayout layout;
  std::uint64_t end = 0;
  const auto take = [&end](std::uint64_t count) {
    const std::uint64_t start = end;
    end += round_up(count * 4, kAlign);  // all elements are four bytes wide
    return start;
  };
  const std::uint64_t slots = tokens * shape.top_k;
  const std::uint64_t x_rows = has_x_of_slots(shape) ? slots : tokens;
  layout.x = take(x_rows * shape.hidden);
  layout.act = take(slots * shape.inter);
  layout.down = take(slots * shape.hidden);
  layout.with0 = take(shape.local_experts + 1);
  layout.row_of_slot = take(slots);
  layout.slot_of_row = take(slots);
  layout.active_experts = take(shape.local_experts);
  if (shape.act_format == ActFormat::nvfp4) {
    layout.x_scale = take(x_rows);
    layout.act_scale = take(slots);
    layout.amax = take(std::max(slots, tokens));
  }
  layout.bytes = end + kAlign - 1;
  return layout;
}

// The buffers of one call.
struct Workspace {
  float* x = nullptr;
  float* act = nullptr;
  float* down = nullptr;
  float* x_scale = nullptr;  // null, as the two below, but for nvfp4
  float* act_scale = nullptr;
  float* amax = nullptr;
  SlotMap slots;
};

inline Workspace carve(const ExpertsArgs& args) {
  const WorkspaceLayout layout = workspace_layout(args.shape, args.tokens);
  std::byte* base = align_up(args.workspace, kAlign);
  Workspace workspace;
  workspace.x = reinterpret_cast<float*>(base + layout.x);
  workspace.act = reinterpret_cast<float*>(base + layout.act);
  workspace.down = reinterpret_cast<float*>(base + layout.down);
  if (args.shape.act_format == ActFormat::nvfp4) {
    workspace.x_scale = reinterpret_cast<float*>(base + layout.x_scale);
    workspace.act_scale = reinterpret_cast<float*>(base + layout.act_scale);
    workspace.amax = reinterpret_cast<float*>(base + layout.amax);
  }
  workspace.slots.with0 = reinterpret_cast<std::uint32_t*>(base + layout.with0);
  workspace.slots.row_of_slot = reinterpret_cast<std::int32_t*>(base + layout.row_of_slot);
  workspace.slots.slot_of_row = reinterpret_cast<std::uint32_t*>(base + layout.slot_of_row);
  workspace.slots.active_experts = reinterpret_cast<std::int32_t*>(base + layout.active_experts);
  workspace.slots.local_experts = args.shape.local_experts;
  workspace.slots.top_k = args.shape.top_k;
  return workspace;
}

}  // namespace moxie::cpu::portable

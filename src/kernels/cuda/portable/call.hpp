// SPDX-License-Identifier: Apache-2.0
// What every stage of one call of cuda.portable.experts gets, and the one place that says what lies
// where in its workspace. Everything here follows from the shape and the capacity in tokens; counts
// that depend on the routing are device memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/checked.hpp"
#include "kernels/contract.hpp"

namespace moxie::cuda::portable {

inline constexpr std::uint64_t kAlign = 256;
inline constexpr std::uint64_t kTileRows = 8;  // rows of one expert that share decoded weights

// Whether every slot has an x of its own: experts with scales of their own quantise it differently.
constexpr bool has_x_of_slots(const ExpertsShape& shape) {
  return shape.act_format == ActFormat::nvfp4 && shape.act_scale == ActScale::checkpoint;
}

// Slot s is choice s % top_k of token s / top_k. Rows are the valid slots, sorted by local expert
// and then by slot; a tile is up to kTileRows neighbouring rows of one expert.
struct Workspace {
  float* x = nullptr;                       // [x rows, hidden], quantised
  float* act = nullptr;                     // [slots, inter], quantised
  float* down = nullptr;                    // [slots, hidden]
  std::uint32_t* counts = nullptr;          // [local_experts]
  std::uint32_t* with0 = nullptr;           // [local_experts + 1]; first rows of the experts
  std::uint32_t* tiles0 = nullptr;          // [local_experts + 1]; first tiles of the experts
  std::int32_t* expert_of_slot = nullptr;   // [slots], local; -1: masked
  std::int32_t* row_of_slot = nullptr;      // [slots]; -1: masked
  std::uint32_t* slot_of_row = nullptr;     // [slots]
  std::uint32_t* expert_of_tile = nullptr;  // [tiles]
  std::uint32_t* row_of_tile = nullptr;     // [tiles]; its first row
  float* x_scale = nullptr;    // [x rows]; global scales, this and all below for nvfp4 alone
  float* act_scale = nullptr;  // [slots]
  float* amax = nullptr;       // [slots or tokens, whichever are more]
  float* largest = nullptr;    // [1]
};

struct Call {
  ExpertsArgs args;
  Workspace work;
  std::uint64_t slots = 0;
  std::uint64_t x_rows = 0;
  std::uint64_t tiles = 0;  // capacity
};

// Fills the offsets of a workspace that starts at `base`, and returns its bytes.
inline std::uint64_t carve(Call& call, std::byte* base) {
  const ExpertsShape& shape = call.args.shape;
  const std::uint64_t tokens = call.args.tokens;
  call.slots = tokens * shape.top_k;
  call.x_rows = has_x_of_slots(shape) ? call.slots : tokens;
  // Every expert ends at most one tile early.
  const std::uint64_t busy = shape.local_experts < call.slots ? shape.local_experts : call.slots;
  call.tiles = call.slots / kTileRows + busy;
  std::uint64_t end = 0;
  const auto take = [&](auto*& pointer, std::uint64_t count) {
    static_assert(sizeof *pointer == 4, "all elements are four bytes wide");
    if (base != nullptr) {
      pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(base + end);
    }
    end += round_up(count * 4, kAlign);
  };
  Workspace& work = call.work;
  take(work.x, call.x_rows * shape.hidden);
  take(work.act, call.slots * shape.inter);
  take(work.down, call.slots * shape.hidden);
  take(work.counts, shape.local_experts);
  take(work.with0, shape.local_experts + 1);
  take(work.tiles0, shape.local_experts + 1);
  take(work.expert_of_slot, call.slots);
  take(work.row_of_slot, call.slots);
  take(work.slot_of_row, call.slots);
  take(work.expert_of_tile, call.tiles);
  take(work.row_of_tile, call.tiles);
  if (shape.act_format == ActFormat::nvfp4) {
    take(work.x_scale, call.x_rows);
    take(work.act_scale, call.slots);
    take(work.amax, call.slots > tokens ? call.slots : tokens);
    take(work.largest, 1);
  }
  return end;
}

}  // namespace moxie::cuda::portable

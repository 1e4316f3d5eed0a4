// SPDX-License-Identifier: Apache-2.0
// What the kernels of one call of cuda.sm90.experts get: the shape as they see it, and what lies
// where in the workspace. All of it follows from the shape and the capacity in tokens.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/checked.hpp"
#include "kernels/contract.hpp"
#include "kernels/cuda/sm90/arranged.hpp"

namespace moxie::cuda::sm90 {

inline constexpr std::uint64_t kAlign = 256;
inline constexpr std::uint32_t kThreads = 32 * kWarps;  // that multiply
inline constexpr std::uint32_t kRowsOfTile = 8;         // rows of activations that one MMA takes
inline constexpr std::uint32_t kMostRows = 32;          // of an item

// How sheets want rows of activations (see sheet_rows.cuh): in fp16, with the row's amax beside
// them, or as E4M3 codes, with the scales of their groups.
enum class RowForm : std::uint8_t { none, fp16, fp8 };
inline constexpr std::uint32_t kFp8Group = 128;  // columns that share a scale
MOXIE_HD constexpr std::uint32_t value_bytes(RowForm form) { return form == RowForm::fp16 ? 2 : 1; }
MOXIE_HD constexpr std::uint32_t words_beside(RowForm form, std::uint32_t columns) {
  return form == RowForm::fp16 ? 1 : (columns + kFp8Group - 1) / kFp8Group;
}

// Sheets are worth it from so many tenths of a row an expert on: with fewer rows long ones end
// unevenly. Where a strip of down has few steps it is earlier, since blocks of 8 rows add up sums
// over warps once a unit; and it is later in FP8, where they do that for half as many.
MOXIE_HD constexpr std::uint32_t sheets_from(RowForm form, std::uint32_t down_steps) {
  const std::uint32_t tenths = form == RowForm::fp8 ? down_steps * 3 / 2 : down_steps;
  const std::uint32_t most = form == RowForm::fp8 ? 16 : 15;
  return tenths < most ? tenths : most;
}

// Up to so many rows of one expert that share a pass over its weights.
struct Item {
  std::uint32_t expert;  // local
  std::uint32_t rows;
  std::uint32_t slot[kMostRows];  // the rows'
};

// Of a small call (see small.cuh).
inline constexpr std::uint32_t kSmallSlots = 64;
inline constexpr std::uint32_t kSmallExperts = 512;
// Calls of so few tokens, and all whose chunks come in order, keep all rows of x in place.
inline constexpr std::uint32_t kTokensInPlace = 2;

inline constexpr std::uint32_t kFirstExperts = 12;

// Counters that the kernel in front clears and the experts kernel counts; of a small call only the
// ticket.
struct alignas(16) Progress {
  std::uint32_t items;
  std::uint32_t wide;  // items of call.wide_rows rows instead of 8
  std::uint32_t ticket;
  std::uint32_t down_units;                    // finished
  std::uint32_t first_experts[kFirstExperts];  // of the first items, once more
};

struct Workspace {
  Progress* progress = nullptr;
  std::uint32_t* gate_up_units = nullptr;  // [items]; finished
  Item* items = nullptr;                   // [items]
  std::int32_t* expert_of_slot = nullptr;  // [slots], local; -1: masked
  std::uint32_t* place_of_slot = nullptr;  // [slots]; among the slots of its expert
  // [slots, inter] bf16, f32 for formats that round it; under sheets, once all of an item's are
  // there, what these want instead, in the same rows.
  std::byte* act = nullptr;
  float* down = nullptr;  // [slots, hidden]
  // Rows for sheets and what stands beside them; null where nothing reads them.
  std::byte* sheet_x = nullptr;         // [tokens, hidden]
  std::uint32_t* beside_x = nullptr;    // [tokens, words_beside()], the bits of f32s
  std::uint32_t* beside_act = nullptr;  // [slots, words_beside()]
};

// How much of a block's shared memory holds what, in bytes.
struct Memory {
  std::uint32_t row_bytes[2];  // of a row of activations in fp16, gate and up's and down's
  std::uint32_t row_count;     // of which there is room
  std::uint32_t sums;          // where the partial sums start
  std::uint32_t rows;          // the activations
  std::uint32_t row_scales;    // their scales in FP8
  std::uint32_t ring;          // the stages in flight
};

// Powers of two. As numbers that the compiler does not know they make shifts multiplications, on a
// pipe that has more to spare than that of masks.
struct Powers {
  std::uint32_t of_7 = 1U << 7;
  std::uint32_t of_8 = 1U << 8;
  std::uint32_t of_15 = 1U << 15;
  std::uint32_t of_23 = 1U << 23;
};

struct Call {
  ExpertsArgs args;  // of these tokens alone
  Arranged experts;
  Workspace work;
  Memory memory;  // where items have 8 rows
  std::uint32_t tokens = 0;
  std::uint32_t slots = 0;
  std::uint32_t item_capacity = 0;
  std::uint32_t wide_rows = 0;    // of a wide item; 0: there are none
  std::uint32_t sheets_from = 0;  // see sheets_from()
  bool wide_acts = false;         // act is f32
  bool in_order = false;          // chunks are short, item after item; see small_stream.cuh
  Powers powers;
};

// Items of 8 rows; every expert ends at most one early.
inline std::uint64_t item_capacity(const ExpertsShape& shape, std::uint64_t slots) {
  const std::uint64_t busy = shape.local_experts < slots ? shape.local_experts : slots;
  return slots / kRowsOfTile + busy;
}

inline std::uint32_t act_bytes(const ExpertsShape& shape) {  // of a value
  return shape.act_format == ActFormat::bf16 ? 2 : 4;
}

// Fills the workspace that starts at `base`, and returns its bytes.
inline std::uint64_t carve(const ExpertsShape& shape, std::uint64_t tokens, RowForm form,
                           std::byte* base, Workspace& work) {
  const std::uint64_t slots = tokens * shape.top_k;
  const std::uint64_t items = item_capacity(shape, slots);
  std::uint64_t end = 0;
  const auto take = [&](auto*& pointer, std::uint64_t bytes) {
    if (base != nullptr) {
      pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(base + end);
    }
    end += round_up(bytes, kAlign);
  };
  take(work.progress, sizeof(Progress));
  take(work.gate_up_units, items * sizeof(std::uint32_t));
  take(work.items, items * sizeof(Item));
  take(work.expert_of_slot, slots * sizeof(std::int32_t));
  take(work.place_of_slot, slots * sizeof(std::uint32_t));
  take(work.act, slots * shape.inter * act_bytes(shape));
  take(work.down, slots * shape.hidden * sizeof(float));
  if (form == RowForm::none) return end;
  const auto hidden = static_cast<std::uint32_t>(shape.hidden);
  const auto inter = static_cast<std::uint32_t>(shape.inter);
  take(work.sheet_x, tokens * hidden * value_bytes(form));
  take(work.beside_x, tokens * words_beside(form, hidden) * sizeof(std::uint32_t));
  take(work.beside_act, slots * words_beside(form, inter) * sizeof(std::uint32_t));
  return end;
}

}  // namespace moxie::cuda::sm90

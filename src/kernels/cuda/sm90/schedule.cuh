// SPDX-License-Identifier: Apache-2.0
// Who computes what: three phases (gate and up, down, combine), each cut into chunks of
// neighbouring units, handed out in one order by a counter. A block that waits for an earlier phase
// waits for chunks that running blocks have taken, so no block needs another to be resident.
#pragma once

#include <cstdint>

#include "kernels/cuda/sm90/call.hpp"
#include "kernels/cuda/sm90/ptx.cuh"

namespace moxie::cuda::sm90 {

inline constexpr std::uint32_t kGateUp = 0;
inline constexpr std::uint32_t kDown = 1;
inline constexpr std::uint32_t kCombine = 2;
inline constexpr std::uint32_t kNothing = 3;

// Columns of one token that a block adds up at once.
inline constexpr std::uint32_t kCombineColumns = 4 * kThreads;

struct Chunk {
  std::uint32_t phase;
  std::uint32_t unit;  // first
  std::uint32_t end;
};

// Whether a chunk costs something beside its units.
enum class Grain : std::uint8_t { coarse, fine };

// The units of the phases, the same for every block, and how they are cut: rounds of one chunk for
// every block, each round half of what is left, until a block's share of the rest is short. Long
// chunks keep a block's rows in place; short ones at the end let blocks finish together.
class Schedule {
 public:
  std::uint32_t units[3];

  // Units of an item, gate and up's and down's; whether chunks are short. The rest is one
  // chunk for every block, or, where the grain is fine, chunks of one unit.
  __device__ Schedule(const Call& call, std::uint32_t items, std::uint32_t gate_up_units,
                      std::uint32_t down_units, Grain grain, bool in_order)
      : grain_(grain), in_order_(in_order), items_(items), of_item_{gate_up_units, down_units} {
    const auto hidden = static_cast<std::uint32_t>(call.args.shape.hidden);
    units[kGateUp] = items * gate_up_units;
    units[kDown] = items * down_units;
    units[kCombine] = call.tokens * ((hidden + kCombineColumns - 1) / kCombineColumns);
    if (!in_order) return;
    gate_up_ = Short(units[kGateUp]);
    down_ = Short(units[kDown]);
  }

  __device__ Chunk short_chunk(std::uint32_t ticket) const {
    if (ticket < gate_up_.chunks) return gate_up_.chunk(kGateUp, ticket, units[kGateUp]);
    ticket -= gate_up_.chunks;
    if (ticket < down_.chunks) return down_.chunk(kDown, ticket, units[kDown]);
    ticket -= down_.chunks;
    const std::uint32_t chunks = min(units[kCombine], gridDim.x);
    if (ticket >= chunks) return {kNothing, 0, 0};
    return {kCombine, start_of(units[kCombine], ticket, chunks),
            start_of(units[kCombine], ticket + 1, chunks)};
  }

  __device__ Chunk chunk(std::uint32_t ticket) const {
    if (in_order_) return short_chunk(ticket);
#pragma unroll
    for (std::uint32_t phase = 0; phase < 3; ++phase) {
      std::uint32_t first = 0;
      while (first < units[phase]) {
        const std::uint32_t left = units[phase] - first;
        const std::uint32_t share = left / gridDim.x;
        if (phase == kCombine || share < short_share()) {
          const bool single = phase != kCombine && grain_ == Grain::fine;
          if (phase != kCombine && !single && first == 0) {
            const Shares of_phase = shares(phase);
            if (suit(of_phase, phase)) {
              const std::uint32_t chunks = items_ * of_phase.parts;
              if (ticket < chunks) return chunk_of(of_phase, phase, ticket);
              ticket -= chunks;
              break;
            }
          }
          const std::uint32_t chunks = single ? left : min(left, gridDim.x);
          if (ticket < chunks)
            return {phase, first + start_of(left, ticket, chunks),
                    first + start_of(left, ticket + 1, chunks)};
          ticket -= chunks;
          break;
        }
        if (ticket < gridDim.x)
          return {phase, first + ticket * (share / 2), first + (ticket + 1) * (share / 2)};
        ticket -= gridDim.x;
        first += gridDim.x * (share / 2);
      }
    }
    return {kNothing, 0, 0};
  }

 private:
  // Two chunks or more for every block, unless a chunk is one unit already, item after item: the
  // first activations are there long before the last.
  struct Short {
    std::uint32_t units = 1;
    std::uint32_t chunks = 0;
    __device__ Short() {}
    __device__ explicit Short(std::uint32_t all) : chunks(all) {
      if (all < 4 * gridDim.x) return;
      units = all / (2 * gridDim.x);
      chunks = (all + units - 1) / units;
    }
    __device__ Chunk chunk(std::uint32_t phase, std::uint32_t number, std::uint32_t all) const {
      return {phase, number * units, min((number + 1) * units, all)};
    }
  };
  // An item's units in equal parts, one for every block.
  struct Shares {
    std::uint32_t of_item;
    std::uint32_t parts;
    std::uint32_t least;   // units of a part
    std::uint32_t longer;  // parts that have one more
  };
  __device__ Shares shares(std::uint32_t phase) const {
    const std::uint32_t parts = gridDim.x / items_;
    const std::uint32_t least = parts == 0 ? 0 : of_item_[phase] / parts;
    return {of_item_[phase], parts, least, of_item_[phase] - least * parts};
  }
  // Whether the longest is as short as without a regard to items: then no block has two items, and
  // two waits for rows.
  __device__ bool suit(const Shares& shares, std::uint32_t phase) const {
    const std::uint32_t longest = shares.least + (shares.longer > 0 ? 1 : 0);
    return shares.least > 0 && (longest - 1) * gridDim.x < units[phase];
  }
  __device__ Chunk chunk_of(const Shares& shares, std::uint32_t phase, std::uint32_t ticket) const {
    const std::uint32_t part = ticket / items_;
    const std::uint32_t first =
        (ticket - part * items_) * shares.of_item + part * shares.least + min(shares.longer, part);
    return {phase, first, first + shares.least + (part < shares.longer ? 1 : 0)};
  }
  __device__ std::uint32_t short_share() const { return grain_ == Grain::fine ? 2 : 6; }
  // Of so many parts of almost the same length: longer ones come first, since who comes last may
  // have begun last.
  __device__ static std::uint32_t start_of(std::uint32_t all, std::uint32_t part,
                                           std::uint32_t parts) {
    return all / parts * part + min(all % parts, part);
  }

  Grain grain_;
  bool in_order_;
  std::uint32_t items_;
  std::uint32_t of_item_[2];  // units
  Short gate_up_;
  Short down_;
};

// The chunks of a block in shared memory, from the thread that takes them to those that work on
// them.
struct Queue {
  static constexpr int kSize = 4;
  Chunk chunks[kSize];
  std::uint32_t first_experts[kFirstExperts];  // for the thread that takes chunks
};

}  // namespace moxie::cuda::sm90

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

  // Units of an item, gate and up's and down's. The rest is one chunk for every block, or, where
  // the grain is fine, chunks of one unit.
  __device__ Schedule(const Call& call, std::uint32_t items, std::uint32_t gate_up_units,
                      std::uint32_t down_units, Grain grain)
      : grain_(grain), items_(items) {
    const auto hidden = static_cast<std::uint32_t>(call.args.shape.hidden);
    units[kGateUp] = items * gate_up_units;
    units[kDown] = items * down_units;
    units[kCombine] = call.tokens * ((hidden + kCombineColumns - 1) / kCombineColumns);
  }

  __device__ Chunk chunk(std::uint32_t ticket) const {
#pragma unroll
    for (std::uint32_t phase = 0; phase < 3; ++phase) {
      std::uint32_t first = 0;
      while (first < units[phase]) {
        const std::uint32_t left = units[phase] - first;
        const std::uint32_t share = left / gridDim.x;
        if (phase == kCombine || share < short_share()) {
          const bool single = phase != kCombine && grain_ == Grain::fine;
          if (phase != kCombine && !single && first == 0 && shares_items(phase)) {
            const std::uint32_t parts = gridDim.x / items_;
            if (ticket < items_ * parts) return share_of_item(phase, ticket, parts);
            ticket -= items_ * parts;
            break;
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
  // Whether chunks that end with an item are as short as others: then no block has two items, and
  // two waits for rows.
  __device__ bool shares_items(std::uint32_t phase) const {
    const std::uint32_t of_item = units[phase] / items_;
    const std::uint32_t parts = gridDim.x / items_;
    if (parts == 0 || parts > of_item) return false;
    return (of_item + parts - 1) / parts <= (units[phase] + gridDim.x - 1) / gridDim.x;
  }
  __device__ Chunk share_of_item(std::uint32_t phase, std::uint32_t ticket,
                                 std::uint32_t parts) const {
    const std::uint32_t of_item = units[phase] / items_;
    const std::uint32_t part = ticket / items_;
    const std::uint32_t first = (ticket - part * items_) * of_item;
    return {phase, first + start_of(of_item, part, parts), first + start_of(of_item, part + 1, parts)};
  }
  __device__ std::uint32_t short_share() const { return grain_ == Grain::fine ? 2 : 6; }
  // Of so many parts of almost the same length: longer ones come first, since who comes last may
  // have begun last.
  __device__ static std::uint32_t start_of(std::uint32_t all, std::uint32_t part,
                                           std::uint32_t parts) {
    return all / parts * part + min(all % parts, part);
  }

  Grain grain_;
  std::uint32_t items_;
};

// The chunks of a block in shared memory, from the thread that takes them to those that work on
// them.
struct Queue {
  static constexpr int kSize = 4;
  Chunk chunks[kSize];
  std::uint32_t first_experts[kFirstExperts];  // for the thread that takes chunks
};

}  // namespace moxie::cuda::sm90

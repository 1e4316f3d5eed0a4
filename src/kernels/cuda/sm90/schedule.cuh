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

// Units and chunks of the phases, the same for every block.
struct Schedule {
  std::uint32_t units[3];
  std::uint32_t chunks[3];

  __device__ Schedule(const Call& call, std::uint32_t items) {
    // A block's share of a phase in one piece keeps its rows in place; where shares are long they
    // come in several, so that blocks which run ahead take more.
    constexpr std::uint32_t kLongShare = 48;
    const auto hidden = static_cast<std::uint32_t>(call.args.shape.hidden);
    units[kGateUp] = items * call.sharing[0].units;
    units[kDown] = items * call.sharing[1].units;
    units[kCombine] = call.tokens * ((hidden + kCombineColumns - 1) / kCombineColumns);
#pragma unroll
    for (std::uint32_t phase = 0; phase < 3; ++phase) {
      const std::uint32_t share = units[phase] / gridDim.x;
      const std::uint32_t pieces = min(max(share / kLongShare, 1U), 4U);
      chunks[phase] = min(units[phase], gridDim.x * pieces);
    }
  }

  __device__ Chunk chunk(std::uint32_t ticket) const {
#pragma unroll
    for (std::uint32_t phase = 0; phase < 3; ++phase) {
      if (ticket < chunks[phase]) {
        const std::uint64_t all = units[phase];
        return {phase, static_cast<std::uint32_t>(all * ticket / chunks[phase]),
                static_cast<std::uint32_t>(all * (ticket + 1) / chunks[phase])};
      }
      ticket -= chunks[phase];
    }
    return {kNothing, 0, 0};
  }
};

// The chunks of a block, in shared memory: `taken` of them are known.
struct Queue {
  static constexpr std::uint32_t kSize = 4;
  Chunk chunks[kSize];
  std::uint32_t taken;
};

__device__ __forceinline__ std::uint32_t chunks_taken(const Queue& queue) {
  return *static_cast<const volatile std::uint32_t*>(&queue.taken);
}

// By one thread: the chunk with this number.
__device__ inline void take_chunk(Queue& queue, std::uint32_t number, const Schedule& schedule,
                                  Progress* progress) {
  queue.chunks[number % Queue::kSize] = schedule.chunk(atomicAdd(&progress->ticket, 1U));
  __threadfence_block();
  *static_cast<volatile std::uint32_t*>(&queue.taken) = number + 1;
}

}  // namespace moxie::cuda::sm90

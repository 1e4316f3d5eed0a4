// SPDX-License-Identifier: Apache-2.0
// The ring of weights as a warp that multiplies walks through it, and the name of what multiplies.
#pragma once

#include <cstdint>

#include "kernels/cuda/sm90/ptx.cuh"
#include "kernels/cuda/sm90/segment.cuh"
#include "kernels/cuda/sm90/tiles.hpp"

namespace moxie::cuda::sm90 {

// How 8 rows are multiplied: every arithmetic specialises it.
template <class TArithmetic, class TSync>
class Multiply;

template <std::uint32_t kStageBytes, class TSync>
class RingReader {
 public:
  __device__ RingReader(TSync sync, std::uint32_t ring) : sync_(sync), ring_(ring) {}

  // Waits for the next stage. Returns where it starts.
  __device__ __forceinline__ std::uint32_t wait() const {
    wait_barrier(sync_.weights_full[at_.place], at_.parity);
    return ring_ + at_.place * kStageBytes;
  }
  // All lanes have loaded what they want of the stage.
  __device__ __forceinline__ void release() {
    __syncwarp();
    if (threadIdx.x % 32 < kLanesThatArrive) arrive(sync_.weights_free[at_.place]);
    at_.next();
  }
  __device__ __forceinline__ void skip() {
    (void)wait();
    release();
  }

 private:
  TSync sync_;
  std::uint32_t ring_;
  Place<TSync::kPlaces> at_;
};

}  // namespace moxie::cuda::sm90

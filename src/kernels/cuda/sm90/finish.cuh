// SPDX-License-Identifier: Apache-2.0
// The warps that finish: they add up the partial sums of a unit while the others multiply the next
// one, and store activations or the rows of down.
#pragma once

#include <cstdint>

#include "kernels/cuda/sm90/call.hpp"
#include "kernels/cuda/sm90/results.cuh"
#include "kernels/cuda/sm90/segment.cuh"

namespace moxie::cuda::sm90 {

template <class TArithmetic, class TSync>
class Finisher {
  static constexpr std::uint32_t kJoined = TArithmetic::kJoined;

 public:
  __device__ Finisher(const Call& call, TSync sync, Shared& shared, std::uint32_t sums)
      : call_(call),
        sync_(sync),
        shared_(shared),
        warp_(threadIdx.x / 32 - kFirstFinisher),
        lane_(threadIdx.x % 32),
        sums_(sums + lane_ * 16) {}

  __device__ void run() {
    for (Place<kSegments> at;; at.next()) {
      wait_barrier(sync_.segment_full[at.place], at.parity);
      const Segment& segment = shared_.segments[at.place];
      if (segment.phase == kNothing) return;
      if (segment.phase == kGateUp) {
        finish<kGateUp>(segment);
      } else if (segment.phase == kDown) {
        finish<kDown>(segment);
      }
      arrive(sync_.segment_free[at.place]);
    }
  }

 private:
  template <std::uint32_t kPhase>
  __device__ void finish(const Segment& segment) {
    if (segment.end > segment.unit) finish_units<kPhase>(segment);  // not a rehearsal
    // Results of a small call say themselves that they are there.
    if (TSync::kSmall) return;
    synchronise<2, kFinishers * 32>();  // all results of the segment are stored
    if (warp_ == 0 && lane_ == 0 && segment.end > segment.unit)
      add_release(kPhase == kGateUp ? call_.work.gate_up_units + segment.item
                                    : &call_.work.progress->down_units,
                  segment.end - segment.unit);
  }

  // The buffers take turns, unit by unit; the warps share the parts of a turn.
  template <std::uint32_t kPhase>
  __device__ __forceinline__ void finish_units(const Segment& segment) {
    const Results<kPhase> results(call_, segment.expert);
    for (std::uint32_t unit = segment.unit; unit < segment.end; ++unit) {
      wait_barrier(sync_.sums_full[turn_.place], turn_.parity);
      finish_turn<kPhase>(segment, unit, results);
      arrive(sync_.sums_free[turn_.place]);
      turn_.next();
    }
  }

  // A part is 16 rows of a unit, of gate and up both where they are paired.
  template <std::uint32_t kPhase>
  __device__ __forceinline__ void finish_turn(const Segment& segment, std::uint32_t unit,
                                              const Results<kPhase>& results) {
    const Product& product = kPhase == kGateUp ? call_.experts.gate_up : call_.experts.down;
    const bool paired = results.paired();
    const std::uint32_t strips = product.strips_of_unit;
    const std::uint32_t parts = strips * (paired ? 1 : 2);
    const std::uint32_t apart = strips * kWarpSums;  // from split to split
    const typename Results<kPhase>::template Tokens<TArithmetic::kLifts> tokens(segment,
                                                                                lane_ % 4 * 2);
#pragma unroll 1
    for (std::uint32_t part = warp_; part < parts; part += kFinishers) {
      const std::uint32_t strip = part & (strips - 1);  // a power of two
      const std::uint32_t tile = strip == part ? 0 : 1;
      const std::uint32_t column =
          (unit * strips + strip) * (paired ? 16 : 32) + tile * 16 + lane_ / 4;
      const auto biases = results.biases(column);
      const std::uint32_t from =
          sums_ + turn_.place * (kSumsBytes / kJoined) + strip * kWarpSums + tile * kTileSums;
      float sums[2][4] = {};
      if (paired) {
        add_splits<2>(from, product.splits / kJoined, apart, sums);
      } else {
        add_splits<1>(from, product.splits / kJoined, apart, sums);
      }
      results.store(tokens, column, biases, sums[0], sums[1]);
    }
  }

  // The splits of one strip, a multiple of kAtOnce, in the order of their columns; of so many
  // tiles.
  template <int kTiles>
  __device__ __forceinline__ static void add_splits(std::uint32_t from, std::uint32_t splits,
                                                    std::uint32_t apart, float (&sums)[2][4]) {
    constexpr std::uint32_t kAtOnce = 4 / kJoined;
#pragma unroll 1
    for (std::uint32_t split = 0; split < splits; split += kAtOnce) {
      uint4 values[kTiles][kAtOnce];
#pragma unroll
      for (std::uint32_t i = 0; i < kTiles * kAtOnce; ++i)
        values[i / kAtOnce][i % kAtOnce] =
            load_shared4(from + i / kAtOnce * kTileSums + i % kAtOnce * apart);
#pragma unroll
      for (std::uint32_t i = 0; i < kTiles * kAtOnce; ++i) {
        const uint4& value = values[i / kAtOnce][i % kAtOnce];
        float(&sum)[4] = sums[i / kAtOnce];
        sum[0] += __uint_as_float(value.x), sum[1] += __uint_as_float(value.y);
        sum[2] += __uint_as_float(value.z), sum[3] += __uint_as_float(value.w);
      }
      from += kAtOnce * apart;
    }
  }

  const Call& call_;
  TSync sync_;
  Shared& shared_;
  std::uint32_t warp_;
  std::uint32_t lane_;
  std::uint32_t sums_;  // the lane's, in the first buffer
  Place<kSumsBuffers> turn_;
};

}  // namespace moxie::cuda::sm90

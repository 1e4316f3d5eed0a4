// SPDX-License-Identifier: Apache-2.0
// One block that multiplies sheets. A result has the bits that a block of few rows gives it: sums
// of the same splits of the columns, added in the same order.
#pragma once

#include <cstdint>

#include "kernels/cuda/sm90/combine.cuh"
#include "kernels/cuda/sm90/results.cuh"
#include "kernels/cuda/sm90/ring.cuh"
#include "kernels/cuda/sm90/sheet_stream.cuh"
#include "kernels/cuda/sm90/sheets.cuh"

namespace moxie::cuda::sm90 {

template <class TArithmetic, int kTiles, class TSync>
class SheetMultiplier {
 public:
  __device__ SheetMultiplier(const Call& call, TSync sync, Shared& shared, std::uint32_t ring)
      : call_(call),
        sync_(sync),
        shared_(shared),
        warp_(__shfl_sync(0xFFFFFFFFU, multiplier_thread() / 32, 0)),
        lane_(threadIdx.x % 32),
        totals_(ring + TSync::kPlaces * sheet_stage_bytes<TArithmetic>(kTiles) +
                warp_ * TArithmetic::totals_in_memory(kTiles) * 2 * kTileSums + lane_ * 16),
        ring_(sync, ring) {}

  __device__ void run() {
    for (Place<kSegments> at;; at.next()) {
      wait_barrier(sync_.segment_full[at.place], at.parity);
      const Segment& segment = shared_.segments[at.place];
      if (segment.phase == kNothing) return;
      if (multiplier_thread() == 0 && segment.begins != 0 && segment.chunk != 0)
        arrive(sync_.chunk_begun[(segment.chunk - 1) % Queue::kSize]);
      __syncwarp();  // said aloud: see Multiplier
      if (segment.phase == kCombine) {
        combine<false>(call_, call_.work.expert_of_slot, segment.unit, segment.end,
                       multiplier_thread());
      } else if (segment.phase == kGateUp) {
        multiply<kGateUp>(segment);
      } else {
        multiply<kDown>(segment);
      }
      arrive(sync_.segment_stored[at.place]);
    }
  }

 private:
  template <std::uint32_t kPhase>
  __device__ void multiply(const Segment& segment) {
    if constexpr (kTiles > 3)
      if (segment.rows > 3 * kRowsOfTile) return multiply<kPhase, 4>(segment);
    if (segment.rows > 2 * kRowsOfTile) return multiply<kPhase, 3>(segment);
    if (segment.rows > kRowsOfTile) return multiply<kPhase, 2>(segment);
    multiply<kPhase, 1>(segment);
  }

  template <std::uint32_t kPhase, int kUsed>
  __device__ __forceinline__ void multiply(const Segment& segment) {
    const Product& product = product_of(call_, kPhase);
    SheetPlace& at = shared_.sheets[warp_];
    for (std::uint32_t sheet = segment.unit; sheet < segment.end; sheet = at.sheet + 1) {
      note(at.sheet, sheet);
      const std::uint32_t strip = sheet * kWarps + warp_;
      // The last sheet is not full; warps that share instructions go together.
      if (strip - warp_ % kSharingWarps >= product.strips()) {
        each_stage<TArithmetic>(product,
                                [&](std::uint32_t, std::uint32_t, std::uint32_t) { ring_.skip(); });
        continue;
      }
      float totals[2][kUsed][4] = {};
      const std::uint32_t last = product.splits - TArithmetic::kJoined;
      for (std::uint32_t split = 0; split <= last; split = at.split + TArithmetic::kJoined) {
        note(at.split, split);
        float sums[2][kUsed][4] = {};
        SheetProducts<TArithmetic, kTiles>::add(sums, ring_, product, at.split, warp_, lane_,
                                                call_.powers);
        add(totals, sums, at.split == 0, at.split == last);
      }
      store<kPhase>(segment, at.sheet * kWarps + warp_, totals);
    }
  }

  // For all lanes, which have read what was there.
  __device__ __forceinline__ void note(std::uint32_t& at, std::uint32_t value) const {
    __syncwarp();
    if (lane_ == 0) at = value;
    __syncwarp();
  }

  // Of a sum over splits, the first or the last of a strip perhaps. Totals of many rows lie in
  // memory between them.
  template <int kUsed>
  __device__ __forceinline__ void add(float (&totals)[2][kUsed][4],
                                      const float (&sums)[2][kUsed][4], bool first,
                                      bool last) const {
    constexpr int kInMemory = TArithmetic::totals_in_memory(kUsed);
#pragma unroll
    for (int i = 0; i < 2 * kUsed; ++i) {
      float(&total)[4] = totals[i / kUsed][i % kUsed];
      const float(&sum)[4] = sums[i / kUsed][i % kUsed];
      const bool in_memory = i % kUsed < kInMemory;
      const std::uint32_t at = totals_ + (i / kUsed * kInMemory + i % kUsed) * kTileSums;
      if (in_memory) {
        uint4 before = make_uint4(0, 0, 0, 0);
        if (!first) before = load_shared4(at);
        total[0] = __uint_as_float(before.x), total[1] = __uint_as_float(before.y);
        total[2] = __uint_as_float(before.z), total[3] = __uint_as_float(before.w);
      }
#pragma unroll
      for (int k = 0; k < 4; ++k) total[k] += sum[k];
      if (in_memory && !last) store_shared4(at, total);
    }
  }

  // 8 tokens after 8: the code for them is there once.
  template <std::uint32_t kPhase, int kUsed>
  __device__ __forceinline__ void store(const Segment& segment, std::uint32_t strip,
                                        float (&sums)[2][kUsed][4]) const {
    if (strip >= product_of(call_, kPhase).strips()) return;
    const Results<kPhase> results(call_, segment.expert);
    const bool paired = results.paired();
    const std::uint32_t column = strip * (paired ? 16 : 32) + lane_ / 4;
    const auto biases = results.biases(column);
    auto lower_biases = biases;
    if (!paired) lower_biases = results.biases(column + 16);
#pragma unroll 1
    for (std::uint32_t token = lane_ % 4 * 2; token < segment.rows; token += kRowsOfTile) {
      const typename Results<kPhase>::template Tokens<TArithmetic::kLifts> tokens(segment, token);
      results.store(tokens, column, biases, sums[0][0], sums[1][0]);
      if (!paired) results.store(tokens, column + 16, lower_biases, sums[1][0], sums[1][0]);
#pragma unroll
      for (int i = 0; i < 8 * (kUsed - 1); ++i)
        sums[i % 2][i / 8][i / 2 % 4] = sums[i % 2][i / 8 + 1][i / 2 % 4];
    }
  }

  const Call& call_;
  TSync sync_;
  Shared& shared_;
  std::uint32_t warp_;
  std::uint32_t lane_;
  std::uint32_t totals_;  // the lane's
  RingReader<sheet_stage_bytes<TArithmetic>(kTiles), TSync> ring_;
};

// kTiles: times 8 rows of activations at most; kPlaces: stages in flight.
template <class TArithmetic, int kTiles, int kPlaces>
__device__ __forceinline__ void run_sheet_block(const Call& call, Shared& shared,
                                                std::uint32_t base) {
  using BlockSync = SheetSync<kPlaces>;
  const BlockSync sync(base + kBarriers);
  const std::uint32_t ring = base + kSharedBytes;
  if (threadIdx.x == 0) sync.init();
  __syncthreads();
  const std::uint32_t warp = __shfl_sync(0xFFFFFFFFU, threadIdx.x / 32, 0);
  if (warp >= kFirstMultiplier) {
    take_registers<kMultiplierRegisters>();
    SheetMultiplier<TArithmetic, kTiles, BlockSync>(call, sync, shared, ring).run();
  } else {
    give_registers<kOtherRegisters>();
    if (warp == kFeeder) {
      if (elect()) feed_stored<StagesOfSheets<TArithmetic, kTiles>>(call, sync, ring, shared.queue);
    } else if (warp == kScout) {
      SheetScout<TArithmetic, kTiles, BlockSync>(call, sync, shared, ring).run();
    } else {
      SheetFinisher<TArithmetic::kForm, BlockSync>(call, sync, shared).run();
    }
  }
}

}  // namespace moxie::cuda::sm90

// SPDX-License-Identifier: Apache-2.0
// The warps that multiply 8 rows in fp16: every warp streams its steps of a unit past the rows that
// all of them have put into shared memory.
#pragma once

#include <cstdint>

#include "kernels/cuda/sm90/arithmetic.hpp"
#include "kernels/cuda/sm90/call.hpp"
#include "kernels/cuda/sm90/products.cuh"
#include "kernels/cuda/sm90/ring.cuh"
#include "kernels/cuda/sm90/rows.cuh"
#include "kernels/cuda/sm90/segment.cuh"

namespace moxie::cuda::sm90 {

template <BlockFormat kFormat, class TSync>
class Multiply<Fp16<kFormat>, TSync> {
 public:
  __device__ Multiply(const Call& call, TSync sync, Shared& shared, std::uint32_t base)
      : call_(call),
        sync_(sync),
        shared_(shared),
        warp_(__shfl_sync(0xFFFFFFFFU, multiplier_thread() / 32, 0)),
        lane_(threadIdx.x % 32),
        sums_(base + call.memory.sums + warp_ * kWarpSums + lane_ * 16),
        rows_(base + call.memory.rows),
        row_(warp_ / warps_of_row()),
        column_((warp_ - row_ * warps_of_row()) * kWarpColumns + lane_ * kChunk),
        ring_(sync, base + call.memory.ring) {
    asm volatile("" : "+r"(row_), "+r"(column_));  // not to be worked out anew for every segment
  }

  // Rows of a segment into memory, behind a barrier that nobody needs the rows before them past.
  template <std::uint32_t kPhase>
  __device__ void bring(Segment& segment) {
    const RowsOf rows = kPhase == kGateUp ? rows_of_x(call_) : rows_of_act(call_);
    const RowPlace place{.to = rows_,
                         .row_bytes = call_.memory.row_bytes[kPhase],
                         .count = segment.rows,
                         .row = segment.row(),
                         .amax = segment.amax};
    clear_missing<kPhase>(segment.rows);
    // Activations of a small call come while this waits for them.
    constexpr bool kAwaits = TSync::kSmall && kPhase == kDown;
    stage_rows<kAwaits>(call_.args.shape.act_format, rows, place, multiplier_thread());
    synchronise<1, kThreads>();
    lift_rows(place, multiplier_thread(), rows.columns);
    if (multiplier_thread() < segment.rows)
      shared_.amax[multiplier_thread()] = segment.amax[multiplier_thread()];
  }

  // Whether so many rows of activations are a chunk for every thread, each warp's of one row.
  __device__ __forceinline__ bool at_once(std::uint32_t rows) const {
    return rows * warps_of_row() <= kWarps && !call_.wide_acts;
  }
  // The thread's chunk of a segment's rows, which may not be there yet.
  __device__ __forceinline__ uint4 look_at(const Segment& segment) const {
    const std::uint64_t inter = call_.args.shape.inter;
    if (row_ >= segment.rows || column_ >= inter) return make_uint4(0, 0, 0, 0);
    return look(reinterpret_cast<const std::uint16_t*>(call_.work.act) +
                segment.slot[row_] * inter + column_);
  }
  // These rows into memory; `there`: `pairs` has been looked at.
  __device__ __forceinline__ void bring_at_once(Segment& segment, uint4 pairs, bool there) {
    if (!there) pairs = look_at(segment);
    while (__any_sync(0xFFFFFFFFU, has_unwritten_halves(pairs))) pairs = look_at(segment);
    const std::uint32_t amax = __reduce_max_sync(0xFFFFFFFFU, amax_bits(pairs));
    if (lane_ == 0 && row_ < segment.rows) atomicMax(segment.amax + row_, amax);
    synchronise<1, kThreads>();  // and nobody needs the rows before them any more
    clear_missing<kDown>(segment.rows);
    if (row_ < segment.rows && column_ < call_.args.shape.inter)
      store_shared4(rows_ + row_ * call_.memory.row_bytes[kDown] + column_ * 2,
                    lifted(pairs, row_scale(segment.amax[row_]).lift));
  }

  // The rows of the segment before this one are its own.
  __device__ void keep(Segment& segment) const {
    if (multiplier_thread() < segment.rows)
      segment.amax[multiplier_thread()] = shared_.amax[multiplier_thread()];
  }

  // Of a segment with so many rows.
  template <std::uint32_t kPhase>
  __device__ __forceinline__ void unit(std::uint32_t rows) {
    if (rows >= call_.memory.row_count) {
      unit_of<kPhase, true>(rows);
    } else {
      unit_of<kPhase, false>(rows);
    }
  }

 private:
  // kAll: of all rows for which there is room.
  template <std::uint32_t kPhase, bool kAll>
  __device__ __forceinline__ void unit_of(std::uint32_t row_count) {
    const Product& product = product_of(call_, kPhase);
    const std::uint32_t split = warp_ >> (__ffs(product.strips_of_unit) - 1);
    const std::uint32_t steps = product.steps_of(split);
    const std::uint32_t row_bytes = call_.memory.row_bytes[kPhase];
    // Lanes of rows for which there is no room read others, and nobody wants what they get; those
    // of rows that are missing read zeros, one step's again and again, which cost the least power.
    const std::uint32_t row = min(lane_ / 4, call_.memory.row_count - 1);
    const std::uint32_t step_bytes_of_row = kAll || row < row_count ? kStepColumns * 2 : 0;
    std::uint32_t rows = rows_ + row * row_bytes + lane_offset(kFormat, lane_) +
                         product.first_step(split) * step_bytes_of_row;
    float sums[2][1][4] = {};
#pragma unroll 2
    for (std::uint32_t step = 0; step < steps; ++step) {
      Step<kFormat, 1> operands;
      operands.load(ring_.wait() + warp_ * step_bytes(kFormat), lane_);
      operands.load_rows(rows, row_bytes);
      ring_.release();
      multiply(sums, operands, call_.powers);
      rows += step_bytes_of_row;
    }
    if (steps < product.stages) ring_.skip();  // others have one more
    wait_barrier(sync_.sums_free[turn_.place], turn_.parity);
    const std::uint32_t buffer = sums_ + turn_.place * kSumsBytes;
    store_shared4(buffer, sums[0][0]);
    store_shared4(buffer + kTileSums, sums[1][0]);
    arrive(sync_.sums_full[turn_.place]);
    turn_.next();
  }

  // Zeros of one step for rows that are missing.
  template <std::uint32_t kPhase>
  __device__ __forceinline__ void clear_missing(std::uint32_t rows) const {
    constexpr std::uint32_t kPieces = kStepColumns * 2 / 16;  // of a step
    const std::uint32_t row = multiplier_thread() / kPieces;
    if (row < rows || row >= call_.memory.row_count) return;
    store_shared4(rows_ + row * call_.memory.row_bytes[kPhase] + multiplier_thread() % kPieces * 16,
                  make_uint4(0, 0, 0, 0));
  }

  static constexpr std::uint32_t kWarpColumns = 32 * kChunk;
  __device__ __forceinline__ std::uint32_t warps_of_row() const {
    return (static_cast<std::uint32_t>(call_.args.shape.inter) + kWarpColumns - 1) / kWarpColumns;
  }

  const Call& call_;
  TSync sync_;
  Shared& shared_;
  std::uint32_t warp_;
  std::uint32_t lane_;
  std::uint32_t sums_;  // the lane's, in the first buffer
  std::uint32_t rows_;
  std::uint32_t row_;  // of what the thread brings where all rows are brought at once
  std::uint32_t column_;
  RingReader<kWarps * step_bytes(kFormat), TSync> ring_;
  Place<kSumsBuffers> turn_{.parity = 1};
};

}  // namespace moxie::cuda::sm90

// SPDX-License-Identifier: Apache-2.0
// The warps beside those that multiply sheets: one thread copies weights, one warp the rows that
// meet them, and two wait for results and lift the activations of items that are complete.
#pragma once

#include <cstdint>

#include "kernels/cuda/sm90/call.hpp"
#include "kernels/cuda/sm90/ptx.cuh"
#include "kernels/cuda/sm90/rows_lifted.cuh"
#include "kernels/cuda/sm90/segment.cuh"
#include "kernels/cuda/sm90/sheets.cuh"
#include "kernels/cuda/sm90/stream.cuh"
#include "kernels/cuda/sm90/wgmma.cuh"

namespace moxie::cuda::sm90 {

// A stage of a sheet is one step of all its strips; the steps of a unit's strips are neighbours.
template <BlockFormat kFormat, std::uint32_t kTiles>
struct StagesOfSheets {
  static constexpr Grain kGrain = Grain::fine;
  __device__ static std::uint32_t units_of(const Product& product) { return sheets_of(product); }
  __device__ static const std::byte* unit_at(const Product& product, const std::byte* weights,
                                             std::uint32_t sheet) {
    return weights + sheet * units_of_sheet(product) * product.unit_bytes;
  }
  template <class TSync>
  __device__ static const std::byte* copy(const Product& product, const std::byte* from,
                                          std::uint32_t sheet, TSync sync, std::uint32_t ring,
                                          Place<TSync::kPlaces>& at, std::uint64_t policy) {
    const std::uint32_t units = units_in(product, sheet, sheet + 1);
    const std::uint32_t bytes = product.strips_of_unit * step_bytes(kFormat);
    for (std::uint32_t split = 0; split < product.splits; ++split) {
      const std::byte* step = from + split * bytes;
      for (std::uint32_t left = product.steps_of(split); left > 0; --left) {
        wait_barrier(sync.weights_free[at.place], at.parity);
        expect_bytes(sync.weights_full[at.place], units * bytes);
        std::uint32_t to = ring + at.place * sheet_stage_bytes(kFormat, kTiles);
        const std::byte* of_unit = step;
        for (std::uint32_t unit = 0; unit < units; ++unit) {
          copy_bulk(to, of_unit, bytes, sync.weights_full[at.place], policy);
          to += bytes, of_unit += product.unit_bytes;
        }
        step += kWarps * step_bytes(kFormat);
        at.next();
      }
    }
    return from + units * product.unit_bytes;
  }
};

// Publishes segments, and copies their rows into the stages.
template <BlockFormat kFormat, std::uint32_t kTiles, class TSync>
class SheetScout {
  using Stages = StagesOfSheets<kFormat, kTiles>;

 public:
  __device__ SheetScout(const Call& call, TSync sync, Shared& shared, std::uint32_t ring)
      : call_(call), sync_(sync), shared_(shared), lane_(threadIdx.x % 32), ring_(ring) {}

  __device__ void run() {
    const auto next = [this](Head head) {
      add_item(call_, head);
      publish(head);
    };
    each_segment<Stages>(call_, sync_, shared_.queue, next, [this] { complete_all(); });
  }

 private:
  // A row's columns of a step are kParts times 16 bytes; the warp copies kRows rows at once.
  static constexpr std::uint32_t kParts = kStepColumns * 2 / 16;
  static constexpr std::uint32_t kRows = 32 / kParts;
  static constexpr std::uint32_t kCopies = kTiles * kRowsOfTile / kRows;
  static_assert(2 * kRows == kRowsOfTile);
  static constexpr std::uint32_t kBegun = 2;  // stages whose rows are on their way
  static_assert(kBegun < TSync::kPlaces);

  __device__ void publish(const Head& head) {
    const bool multiplies = head.phase == kGateUp || head.phase == kDown;
    // Not all of an item's slots are rows, but all are there: it is not known yet how many count.
    const bool in_item = multiplies && lane_ < kTiles * kRowsOfTile;
    const std::uint32_t slot = in_item ? call_.work.items[head.item].slot[lane_] : 0;
    complete_all();  // while the item comes
    const bool has_row = multiplies && lane_ < head.rows;
    const std::uint32_t row =
        head.phase == kGateUp ? slot / static_cast<std::uint32_t>(call_.args.shape.top_k) : slot;
    if (head.phase == kDown)  // its rows are lifted
      wait_for_count(call_.work.gate_up_units + head.item, call_.experts.gate_up.units + 1);
    const std::uint32_t* amax = head.phase == kGateUp ? call_.work.x_amax : call_.work.act_amax;
    wait_barrier(sync_.segment_free[at_.place], at_.parity);
    Segment& to = shared_.segments[at_.place];
    if (has_row) to.slot[lane_] = slot;
    if (lane_ == 0) put_head(head, to);
    arrive(sync_.segment_full[at_.place]);
    at_.next();
    if (!multiplies) return;
    // Its largest magnitude is needed with the results: it comes with the first stage.
    if (has_row) amax_ = __ldcg(amax + row), amax_to_ = shared_address(to.amax + lane_);
    copy_rows(head, row);
  }

  // `row`: the lane's of the item. Rows that are missing in the last 8 are zeros: tensor cores draw
  // less power for them than for what was there before.
  __device__ __forceinline__ void copy_rows(const Head& head, std::uint32_t row) {
    const Product& product = product_of(call_, head.phase);
    const std::uint16_t* rows = head.phase == kGateUp ? call_.work.lifted_x : call_.work.lifted_act;
    const std::uint16_t* first[kCopies];
    std::uint32_t bytes[kCopies];
    const std::uint32_t copies = (head.rows + kRowsOfTile - 1) / kRowsOfTile * 2;
#pragma unroll
    for (std::uint32_t i = 0; i < kCopies; ++i) {
      const std::uint32_t place = i * kRows + lane_ / kParts;
      const std::uint32_t of_place = __shfl_sync(0xFFFFFFFFU, row, place);
      first[i] = rows + std::uint64_t{of_place} * product.columns + lane_ % kParts * 8;
      bytes[i] = place < head.rows ? 16 : 0;
    }
    const std::uint32_t offset =
        kWarps * step_bytes(kFormat) + lane_ % kParts * kCorePitch + lane_ / kParts * 16;
    for (std::uint32_t sheet = head.unit; sheet < head.end; ++sheet) {
      for (std::uint32_t step = 0; step < product.steps; ++step) {
        wait_barrier(sync_.weights_free[stage_.place], stage_.parity);
        const std::uint32_t to = ring_ + stage_.place * sheet_stage_bytes(kFormat, kTiles) + offset;
#pragma unroll
        for (std::uint32_t i = 0; i < kCopies; ++i) {
          if (i < copies)
            copy_16(to + i / 2 * kCoresBytes + i % 2 * (kRows * 16), first[i] + step * kStepColumns,
                    bytes[i]);
        }
        commit_copies();
        stage_.next();
        if (begun_ < kBegun) {
          ++begun_;
          continue;
        }
        wait_for_copies<kBegun>();
        complete();
      }
    }
  }
  __device__ __forceinline__ void complete_all() {
    if (begun_ == 0) return;
    wait_for_copies<0>();
    for (; begun_ > 0; --begun_) complete();
  }

  // The rows of the oldest stage are there, for the tensor cores too.
  __device__ __forceinline__ void complete() {
    if (amax_to_ != 0) store_shared1(amax_to_, amax_), amax_to_ = 0;
    fence_for_tensor_cores();
    arrive(sync_.weights_full[complete_.place]);
    complete_.next();
  }

  const Call& call_;
  TSync sync_;
  Shared& shared_;
  std::uint32_t lane_;
  std::uint32_t ring_;
  Place<kSegments> at_{.parity = 1};
  Place<TSync::kPlaces> stage_{.parity = 1};
  Place<TSync::kPlaces> complete_;  // whose copies are awaited next
  std::uint32_t begun_ = 0;         // stages whose copies are not
  std::uint32_t amax_ = 0;          // of the lane's row
  std::uint32_t amax_to_ = 0;       // where it is to go; 0: it is there
};

// Tells other blocks what is stored. Who stores the last of an item's activations lifts its rows.
template <class TSync>
class SheetFinisher {
 public:
  __device__ SheetFinisher(const Call& call, TSync sync, Shared& shared)
      : call_(call), sync_(sync), shared_(shared), warp_(threadIdx.x / 32 - kFirstFinisher) {}

  __device__ void run() {
    for (Place<kSegments> at;; at.next()) {
      wait_barrier(sync_.segment_full[at.place], at.parity);
      Segment& segment = shared_.segments[at.place];
      if (segment.phase == kNothing) return;
      if (warp_ == 0 && segment.phase != kCombine) prefetch_biases(segment);
      wait_barrier(sync_.segment_stored[at.place], at.parity);
      const bool leads = warp_ == 0 && threadIdx.x % 32 == 0;
      if (segment.phase == kGateUp) {
        finish_gate_up(segment, leads);
      } else if (segment.phase == kDown && leads) {
        add_release(&call_.work.progress->down_units,
                    units_in(call_.experts.down, segment.unit, segment.end));
      }
      arrive(sync_.segment_free[at.place]);
    }
  }

 private:
  // The biases that the results need are on their way to the second-level cache.
  __device__ void prefetch_biases(const Segment& segment) const {
    if (!call_.experts.has_bias) return;
    constexpr std::uint32_t kLine = 32;  // numbers
    const bool down = segment.phase == kDown;
    const bool paired = !down && call_.experts.gated;
    const std::uint32_t inter = static_cast<std::uint32_t>(call_.args.shape.inter);
    const std::uint32_t rows = kWarps * (paired ? kStripRows / 2 : kStripRows);  // of a sheet
    const auto* biases = reinterpret_cast<const float*>(call_.args.weights.blobs +
                                                        segment.expert * call_.args.weights.stride +
                                                        call_.experts.biases);
    biases += down ? 2 * inter : paired ? 0 : inter;
    const std::uint32_t end =
        min(segment.end * rows, down ? static_cast<std::uint32_t>(call_.args.shape.hidden) : inter);
    for (std::uint32_t column = segment.unit * rows + threadIdx.x % 32 * kLine; column < end;
         column += 32 * kLine) {
      prefetch_line(biases + column);
      if (paired) prefetch_line(biases + inter + column);
    }
  }

  __device__ void finish_gate_up(Segment& segment, bool leads) {
    std::uint32_t* count = call_.work.gate_up_units + segment.item;
    const Product& product = call_.experts.gate_up;
    if (leads) {
      const std::uint32_t units = units_in(product, segment.unit, segment.end);
      segment.completes = add_acquire_release(count, units) + units == product.units ? 1 : 0;
    }
    synchronise<2, kFinishers * 32>();
    if (segment.completes == 0) return;
    const RowsOf rows = rows_of_act(call_);
    for (std::uint32_t row = warp_; row < segment.rows; row += kFinishers) {
      const std::uint32_t slot = segment.slot[row];
      lift_row<4>(call_.args.shape, rows, slot,
                  call_.work.lifted_act + std::uint64_t{slot} * rows.columns,
                  call_.work.act_amax + slot);
    }
    synchronise<2, kFinishers * 32>();
    if (leads) add_release(count, 1);
  }

  const Call& call_;
  TSync sync_;
  Shared& shared_;
  std::uint32_t warp_;
};

}  // namespace moxie::cuda::sm90

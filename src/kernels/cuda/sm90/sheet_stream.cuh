// SPDX-License-Identifier: Apache-2.0
// The warps beside those that multiply sheets: one thread copies weights, one warp the rows that
// meet them, and two wait for results and make ready the activations of items that are complete.
#pragma once

#include <cstdint>

#include "kernels/cuda/sm90/call.hpp"
#include "kernels/cuda/sm90/ptx.cuh"
#include "kernels/cuda/sm90/segment.cuh"
#include "kernels/cuda/sm90/sheet_rows.cuh"
#include "kernels/cuda/sm90/sheets.cuh"
#include "kernels/cuda/sm90/stream.cuh"
#include "kernels/cuda/sm90/wgmma.cuh"

namespace moxie::cuda::sm90 {

// The steps of a stage are neighbours in a unit.
template <class TArithmetic, int kTiles>
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
    constexpr std::uint32_t kStepBytes = step_bytes(TArithmetic::kFormat);
    const std::uint32_t of_split = product.strips_of_unit * kStepBytes;
    each_stage<TArithmetic>(
        product, [&](std::uint32_t split, std::uint32_t place, std::uint32_t joined) {
          const std::uint32_t bytes = joined * of_split;
          wait_barrier(sync.weights_free[at.place], at.parity);
          expect_bytes(sync.weights_full[at.place], units * bytes);
          std::uint32_t to = ring + at.place * sheet_stage_bytes<TArithmetic>(kTiles);
          const std::byte* of_unit = from + split * of_split + place * (kWarps * kStepBytes);
          for (std::uint32_t unit = 0; unit < units; ++unit) {
            copy_bulk(to, of_unit, bytes, sync.weights_full[at.place], policy);
            to += TArithmetic::kJoined * of_split, of_unit += product.unit_bytes;
          }
          at.next();
        });
    return from + units * product.unit_bytes;
  }
};

// Publishes segments, and copies their rows into the stages.
template <class TArithmetic, int kTiles, class TSync>
class SheetScout {
  using Stages = StagesOfSheets<TArithmetic, kTiles>;
  static constexpr RowForm kForm = TArithmetic::kForm;

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
  static constexpr std::uint32_t kParts = cores_of(kForm);
  static constexpr std::uint32_t kRows = 32 / kParts;
  static constexpr std::uint32_t kOfTile = kRowsOfTile / kRows;
  static constexpr std::uint32_t kCopies = kTiles * kOfTile;
  static constexpr std::uint32_t kBegun = 2;  // stages whose rows are on their way
  static_assert(kBegun < TSync::kPlaces);

  __device__ void publish(const Head& head) {
    const bool multiplies = head.phase == kGateUp || head.phase == kDown;
    // Not all of an item's slots are rows, but all are there: they come with the number of rows.
    // FP8 has no registers for that.
    const std::uint32_t capacity = kForm == RowForm::fp16 ? kTiles * kRowsOfTile : head.rows;
    const bool in_item = multiplies && lane_ < capacity;
    const std::uint32_t slot = in_item ? call_.work.items[head.item].slot[lane_] : 0;
    const std::uint32_t row =
        head.phase == kGateUp ? slot / static_cast<std::uint32_t>(call_.args.shape.top_k) : slot;
    complete_all();  // while the item comes
    const bool has_row = multiplies && lane_ < head.rows;
    if (head.phase == kDown)  // its rows are ready
      wait_for_count(call_.work.gate_up_units + head.item, call_.experts.gate_up.units + 1);
    const SheetRows rows = head.phase == kGateUp ? sheet_x<kForm>(call_) : sheet_act<kForm>(call_);
    wait_barrier(sync_.segment_free[at_.place], at_.parity);
    Segment& to = shared_.segments[at_.place];
    if (has_row) to.slot[lane_] = slot;
    if (lane_ == 0) put_head(head, to);
    arrive(sync_.segment_full[at_.place]);
    at_.next();
    if (!multiplies) return;
    // Its largest magnitude is needed with the results: it comes with the first stage.
    if constexpr (kForm == RowForm::fp16)
      if (has_row) amax_ = __ldcg(rows.beside + row), amax_to_ = shared_address(to.amax + lane_);
    copy_rows(head, rows, row);
  }

  // `row`: the lane's of the item. Rows that are missing in the last 8 are zeros: tensor cores draw
  // less power for them than for what was there before.
  __device__ __forceinline__ void copy_rows(const Head& head, const SheetRows& rows,
                                            std::uint32_t row) {
    const Product& product = product_of(call_, head.phase);
    std::uint32_t first[kCopies];  // bytes into the rows
    const std::uint32_t* scales = rows.beside + row * rows.words;
#pragma unroll
    for (std::uint32_t i = 0; i < kCopies; ++i) {
      const std::uint32_t of_place = __shfl_sync(0xFFFFFFFFU, row, i * kRows + lane_ / kParts);
      first[i] = of_place * rows.row_bytes + lane_ % kParts * 16;
    }
    for (std::uint32_t sheet = head.unit; sheet < head.end; ++sheet) {
      each_stage<TArithmetic>(
          product, [&](std::uint32_t split, std::uint32_t place, std::uint32_t joined) {
            wait_barrier(sync_.weights_free[stage_.place], stage_.parity);
            std::uint32_t to = ring_ + stage_.place * sheet_stage_bytes<TArithmetic>(kTiles) +
                               TArithmetic::kJoined * kWarps * step_bytes(TArithmetic::kFormat);
#pragma unroll 1
            for (std::uint32_t i = 0; i < joined; ++i) {
              copy_step(to, rows, first, scales, product.first_step(split + i) + place, head.rows);
              to += sheet_rows_bytes(kForm, kTiles);
            }
            commit_copies();
            stage_.next();
            if (begun_ < kBegun) {
              ++begun_;
              return;
            }
            wait_for_copies<kBegun>();
            complete();
          });
    }
  }
  // The columns of one step.
  __device__ __forceinline__ void copy_step(std::uint32_t to, const SheetRows& rows,
                                            const std::uint32_t (&first)[kCopies],
                                            const std::uint32_t* scales, std::uint32_t step,
                                            std::uint32_t count) const {
    const std::uint32_t left = count - min(count, lane_ / kParts);
    const std::uint32_t tiles = (count + kRowsOfTile - 1) / kRowsOfTile;
    const std::uint32_t at = to + lane_ % kParts * kCorePitch + lane_ / kParts * 16;
#pragma unroll
    for (std::uint32_t i = 0; i < kCopies; ++i) {
      if (i < tiles * kOfTile)
        copy_16(at + i / kOfTile * cores_bytes(kForm) + i % kOfTile * (kRows * 16),
                rows.data + first[i] + step * (kStepColumns * value_bytes(kForm)),
                i * kRows < left ? 16 : 0);
    }
    if (kForm == RowForm::fp8 && lane_ < tiles * kRowsOfTile)
      copy_4(to + kTiles * cores_bytes(kForm) + lane_ * 4,
             scales + step / (kFp8Group / kStepColumns), lane_ < count ? 4 : 0);
  }
  __device__ __forceinline__ void complete_all() {
    if (begun_ == 0) return;
    wait_for_copies<0>();
    for (; begun_ > 0; --begun_) complete();
  }

  // The rows of the oldest stage are there, for the tensor cores too.
  __device__ __forceinline__ void complete() {
    if constexpr (kForm == RowForm::fp16)
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

// Tells other blocks what is stored. Who stores the last of an item's activations makes its rows
// ready.
template <RowForm kForm, class TSync>
class SheetFinisher {
 public:
  __device__ SheetFinisher(const Call& call, TSync sync, Shared& shared)
      : call_(call), sync_(sync), shared_(shared), warp_(threadIdx.x / 32 - kFirstFinisher) {}

  __device__ void run() {
    for (Place<kSegments> at;; at.next()) {
      wait_barrier(sync_.segment_full[at.place], at.parity);
      Segment& segment = shared_.segments[at.place];
      if (segment.phase == kNothing) return;
      if constexpr (kForm == RowForm::fp16)  // FP8 has no registers for it
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
    for (std::uint32_t row = warp_; row < segment.rows; row += kFinishers)
      make_act_row<kForm>(call_, segment.slot[row]);
    synchronise<2, kFinishers * 32>();
    if (leads) add_release(count, 1);
  }

  const Call& call_;
  TSync sync_;
  Shared& shared_;
  std::uint32_t warp_;
};

}  // namespace moxie::cuda::sm90

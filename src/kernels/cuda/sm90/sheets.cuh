// SPDX-License-Identifier: Apache-2.0
// How blocks share out products for items of many rows: every warp has a strip of its own over all
// columns, kWarps neighbouring strips are a sheet, and with each step of a sheet's weights come the
// rows' 64 columns. So shared memory holds no whole rows and no partial sums, whatever the width.
#pragma once

#include <cstdint>

#include "kernels/cuda/sm90/arranged.hpp"
#include "kernels/cuda/sm90/segment.cuh"

namespace moxie::cuda::sm90 {

inline constexpr std::uint32_t kSharingWarps = 4;  // neighbours that have instructions in common

// How joined splits are multiplied with kUsed times 8 rows, by an arithmetic: add<kUsed>() of its
// specialisations, for stages of kTiles times 8.
template <class TArithmetic, int kTiles>
struct SheetProducts;

// Of a product; a sheet is as many units as the warps share in blocks of few rows.
__host__ __device__ inline std::uint32_t units_of_sheet(const Product& product) {
  return kWarps / product.strips_of_unit;
}
__host__ __device__ inline std::uint32_t sheets_of(const Product& product) {
  return (product.units + units_of_sheet(product) - 1) / units_of_sheet(product);
}
// Units of the sheets [first, end): the last sheet may have fewer.
__device__ inline std::uint32_t units_in(const Product& product, std::uint32_t first,
                                         std::uint32_t end) {
  const std::uint32_t per_sheet = units_of_sheet(product);
  return min(end * per_sheet, product.units) - first * per_sheet;
}

// A stage: kJoined steps of every warp, one of each joined split, and unit by unit as they lie in
// memory; then for each of them the same columns of the rows as the tensor cores read them: for
// every 8 rows core matrices, 16 bytes of each row, in the order of rows for sheets. Between them
// are 16 bytes more, so that the pieces of a row begin in different banks. Behind them FP8 rows
// have the scales of these columns, f32 [rows].
inline constexpr std::uint32_t kCorePitch = 8 * 16 + 16;
__host__ __device__ constexpr std::uint32_t cores_of(RowForm form) {
  return kStepColumns * value_bytes(form) / 16;
}
__host__ __device__ constexpr std::uint32_t cores_bytes(RowForm form) {
  return cores_of(form) * kCorePitch;
}
__host__ __device__ constexpr std::uint32_t sheet_rows_bytes(RowForm form, std::uint32_t tiles) {
  return tiles * (cores_bytes(form) + (form == RowForm::fp8 ? kRowsOfTile * 4 : 0));
}
template <class TArithmetic>
__host__ __device__ constexpr std::uint32_t sheet_stage_bytes(std::uint32_t tiles) {
  return TArithmetic::kJoined *
         (kWarps * step_bytes(TArithmetic::kFormat) + sheet_rows_bytes(TArithmetic::kForm, tiles));
}

// Matrix B of an instruction: two core matrices for every 8 rows, K-major without swizzle. The
// lower word of its descriptor, in which addresses count in 16 bytes; the upper one is the distance
// from tile to tile.
__device__ __forceinline__ std::uint32_t cores_at(std::uint32_t at) {
  return (at >> 4) + (kCorePitch >> 4 << 16);
}
inline constexpr std::uint32_t kNextCores = 2 * kCorePitch >> 4;  // of the columns behind those
template <RowForm kForm>
__device__ __forceinline__ std::uint64_t whole_cores(std::uint32_t cores) {
  return std::uint64_t{cores_bytes(kForm) >> 4} << 32 | cores;
}

// Of a block. Behind the stages lie each warp's totals over the splits of its strip, of as many
// tiles of rows as the arithmetic has no registers for.
template <class TArithmetic>
std::uint32_t sheet_bytes(int stages, std::uint32_t tiles) {
  return kSharedBytes + static_cast<std::uint32_t>(stages) * sheet_stage_bytes<TArithmetic>(tiles) +
         kWarps * TArithmetic::totals_in_memory(tiles) * 2 * kTileSums;
}

// The stages of a sheet in the order of its sums. Each is named by the first of its splits, its
// place there, and how many splits have a step: the first may have one more than the others.
template <class TArithmetic, class TStage>
__device__ __forceinline__ void each_stage(const Product& product, const TStage& stage) {
  constexpr std::uint32_t kJoined = TArithmetic::kJoined;
  for (std::uint32_t split = 0; split < product.splits; split += kJoined) {
    const std::uint32_t steps = product.steps_of(split);
    const std::uint32_t all = product.steps_of(split + kJoined - 1);
    for (std::uint32_t place = 0; place < steps; ++place)
      stage(split, place, place < all ? kJoined : 1);
  }
}

// The barriers of such a block. `segment_stored` opens when all results of a segment are written.
template <int kStages>
struct SheetSync {
  static constexpr int kPlaces = kStages;  // of the ring of weights and rows
  static constexpr bool kSmall = false;
  Barriers<kStages> weights_full;
  Barriers<kStages> weights_free;
  Barriers<Queue::kSize> chunk_full;
  Barriers<Queue::kSize> chunk_begun;
  Barriers<kSegments> segment_full;
  Barriers<kSegments> segment_free;
  Barriers<kSegments> segment_stored;

  __device__ explicit SheetSync(std::uint32_t base)
      : weights_full{base},
        weights_free{weights_full.end()},
        chunk_full{weights_free.end()},
        chunk_begun{chunk_full.end()},
        segment_full{chunk_begun.end()},
        segment_free{segment_full.end()},
        segment_stored{segment_free.end()} {
    static_assert((2 * kStages + 2 * Queue::kSize + 3 * kSegments) * 8 <= kSharedBytes - kBarriers);
  }
  __device__ void init() const {
    weights_full.init(1 + 32);  // who copies weights, and every lane that copies rows
    weights_free.init(kWarps * kLanesThatArrive);
    chunk_full.init(1);
    chunk_begun.init(1);
    segment_full.init(32);
    segment_free.init(32 * kFinishers);
    segment_stored.init(32 * kWarps);
    fence_barriers();
  }
};

}  // namespace moxie::cuda::sm90

// SPDX-License-Identifier: Apache-2.0
// How blocks share out products for items of many rows: every warp has a strip of its own over all
// columns, kWarps neighbouring strips are a sheet, and with each step of a sheet's weights come the
// rows' 64 columns. So shared memory holds no whole rows and no partial sums, whatever the width.
#pragma once

#include <cstdint>

#include "kernels/cuda/sm90/arranged.hpp"
#include "kernels/cuda/sm90/products.cuh"
#include "kernels/cuda/sm90/segment.cuh"

namespace moxie::cuda::sm90 {

// Four warps share instructions where an item has so many times 8 rows; for fewer rows each warp's
// own are quicker.
inline constexpr std::uint32_t kSharingWarps = 4;
inline constexpr int kLeastShared = 2;

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

// A stage: one step of every warp, then the same columns of the rows as the tensor cores read them:
// for every 8 rows eight core matrices, 16 bytes of each row, in the order of lifted rows. Between
// them are 16 bytes more, so that the pieces of a row begin in different banks.
inline constexpr std::uint32_t kCorePitch = 8 * 16 + 16;
inline constexpr std::uint32_t kCores = kStepColumns * 2 / 16;
inline constexpr std::uint32_t kCoresBytes = kCores * kCorePitch;
__host__ __device__ constexpr std::uint32_t sheet_stage_bytes(BlockFormat format,
                                                              std::uint32_t tiles) {
  return kWarps * step_bytes(format) + tiles * kCoresBytes;
}

// Behind the stages: of items of more than 16 rows a warp's totals over the splits of its strip, of
// the first 16; registers hold the others.
inline constexpr std::uint32_t kTilesInMemory = 2;
__host__ __device__ constexpr std::uint32_t totals_in_memory(std::uint32_t tiles) {
  return tiles > kTilesInMemory ? kTilesInMemory : 0;
}
__host__ __device__ constexpr std::uint32_t sheet_totals_bytes(std::uint32_t tiles) {
  return kWarps * totals_in_memory(tiles) * 2 * kTileSums;
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

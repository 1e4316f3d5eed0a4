// SPDX-License-Identifier: Apache-2.0
// Steps of a sheet in FP8: as products_fp8.cuh multiplies and adds, with a warp's own strip in two
// tiles.
#pragma once

#include <cstdint>

#include "kernels/cuda/sm90/arithmetic.hpp"
#include "kernels/cuda/sm90/products_fp8.cuh"
#include "kernels/cuda/sm90/sheets.cuh"
#include "kernels/cuda/sm90/wgmma.cuh"

namespace moxie::cuda::sm90 {

template <int kTiles>
struct SheetProducts<Fp8, kTiles> {
  template <int kUsed, class TRing>
  __device__ __forceinline__ static void step(float (&sums)[2][kUsed][4], TRing& ring,
                                              std::uint32_t warp, std::uint32_t lane,
                                              const Powers& /*powers*/) {
    const std::uint32_t stage = ring.wait();
    const std::uint32_t weights = stage + warp * step_bytes(Fp8::kFormat);
    const std::uint32_t rows = stage + kWarps * step_bytes(Fp8::kFormat);
    const std::uint32_t scales = rows + kTiles * cores_bytes(RowForm::fp8) + lane % 4 * 8;
    const std::uint32_t cores = cores_at(rows);
    const std::uint64_t first = whole_cores<RowForm::fp8>(cores);
    const std::uint64_t second = whole_cores<RowForm::fp8>(cores + kNextCores);
    Fp8RowScales<kUsed> row_scales;
    if constexpr (kUsed <= 2) {
      Fp8Step<kUsed> upper;
      Fp8Step<kUsed> lower;
      upper.load(weights, 0, lane);
      lower.load(weights, 1, lane);
      wgmma_fence();
      upper.start(first, second);
      lower.start(first, second);
      row_scales.load(scales);
      wgmma_wait<1>();
      upper.add_to(sums[0], row_scales);
      wgmma_wait<0>();
      ring.release();
      lower.add_to(sums[1], row_scales);
    } else {  // one after the other: fewer registers
      Fp8Step<kUsed> tile;
      tile.load(weights, 0, lane);
      wgmma_fence();
      tile.start(first, second);
      wgmma_wait<0>();
      row_scales.load(scales);
      tile.add_to(sums[0], row_scales);
      tile.load(weights, 1, lane);
      wgmma_fence();
      tile.start(first, second);
      wgmma_wait<0>();
      ring.release();
      tile.add_to(sums[1], row_scales);
    }
  }
};

}  // namespace moxie::cuda::sm90

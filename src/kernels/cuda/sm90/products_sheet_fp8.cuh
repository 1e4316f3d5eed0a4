// SPDX-License-Identifier: Apache-2.0
// Sheets in FP8: terms are multiplied and added up as in products_fp8.cuh, with both tiles of a
// warp's own strip.
#pragma once

#include <cstdint>

#include "kernels/cuda/sm90/arithmetic.hpp"
#include "kernels/cuda/sm90/products_fp8.cuh"
#include "kernels/cuda/sm90/sheets.cuh"
#include "kernels/cuda/sm90/wgmma.cuh"

namespace moxie::cuda::sm90 {

template <int kTiles>
struct SheetProducts<Fp8, kTiles> {
  static constexpr std::uint32_t kStepBytes = step_bytes(Fp8::kFormat);

  // `split` lies in memory: there is no register for it.
  template <int kUsed, class TReader>
  __device__ __forceinline__ static void add(float (&sums)[2][kUsed][4], TReader& ring,
                                             const Product& product,
                                             const volatile std::uint32_t& split,
                                             std::uint32_t warp, std::uint32_t lane,
                                             const Powers& /*powers*/) {
    const std::uint32_t strips = product.strips_of_unit;  // a power of two
    const Place at{.weights = (warp + (warp & ~(strips - 1))) * kStepBytes,
                   .apart = strips * kStepBytes,
                   .lane = lane};
    const std::uint32_t both = product.steps_of(split + 1);
#pragma unroll 1
    for (std::uint32_t stage = 0; stage < both; ++stage) add_stage<kUsed, 2>(sums, ring, at);
    if (product.steps_of(split) > both) add_stage<kUsed, 1>(sums, ring, at);
  }

 private:
  struct Place {
    std::uint32_t weights;  // the warp's first step, in bytes into the stage
    std::uint32_t apart;    // from step to step
    std::uint32_t lane;
  };

  // Tile by tile of a stage of so many steps: another one that is under way meanwhile would need
  // its registers, and is not quicker.
  template <int kUsed, int kSteps, class TReader>
  __device__ __forceinline__ static void add_stage(float (&sums)[2][kUsed][4], TReader& ring,
                                                   const Place& at) {
    constexpr std::uint32_t kRowsBytes = sheet_rows_bytes(RowForm::fp8, kTiles);
    const std::uint32_t stage = ring.wait();
    const std::uint32_t weights = stage + at.weights;
    const std::uint32_t rows = stage + 2 * kWarps * kStepBytes;
    const std::uint32_t scales = rows + kTiles * cores_bytes(RowForm::fp8) + at.lane % 4 * 8;
    const std::uint32_t cores = cores_at(rows);
    Fp8Codes codes;
    Fp8Step<kUsed> tile;
    Fp8RowScales<kUsed> row_scales;
    codes.load(weights, 0, at.lane);
#pragma unroll
    for (int i = 0; i < 2 * kSteps; ++i) {
      const std::uint32_t of_step = cores + i / 2 * (kRowsBytes >> 4);
      tile.place(codes);
      wgmma_fence();
      tile.start(whole_cores<RowForm::fp8>(of_step),
                 whole_cores<RowForm::fp8>(of_step + kNextCores));
      if (i % 2 == 0) row_scales.load(scales + i / 2 * kRowsBytes);
      wgmma_wait<0>();
      if (i + 1 < 2 * kSteps) {
        codes.load(weights + (i + 1) / 2 * at.apart, (i + 1) % 2, at.lane);
      } else {
        ring.release();
      }
      tile.add_to(sums[i % 2], row_scales);
    }
  }
};

}  // namespace moxie::cuda::sm90

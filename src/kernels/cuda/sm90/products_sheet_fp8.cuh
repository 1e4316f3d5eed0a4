// SPDX-License-Identifier: Apache-2.0
// Sheets in FP8: terms are multiplied and added up as in products_fp8.cuh, with both tiles of a
// warp's own strip. Parts of a stage, one group of one tile each, are under way while the sums of
// those before them are added up.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/sm90/arithmetic.hpp"
#include "kernels/cuda/sm90/products_fp8.cuh"
#include "kernels/cuda/sm90/sheets.cuh"
#include "kernels/cuda/sm90/wgmma.cuh"

namespace moxie::cuda::sm90 {

template <int kTiles>
struct SheetProducts<Fp8, kTiles> {
  static constexpr std::uint32_t kStepBytes = step_bytes(Fp8::kFormat);

  template <int kUsed, class TRing>
  __device__ __forceinline__ static void add(float (&sums)[2][kUsed][4], TRing& ring,
                                             const Product& product, std::uint32_t split,
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

  // Sums that leave the tensor cores stay in registers until both groups of a tile are there.
  template <int kUsed, int kSteps, class TRing>
  __device__ __forceinline__ static void add_stage(float (&sums)[2][kUsed][4], TRing& ring,
                                                   const Place& at) {
    constexpr int kFlights = kUsed > 3   ? 2
                             : kUsed > 2 ? MOXIE_F3
                                         : MOXIE_F2;  // parts, as many as registers allow
    constexpr int kUnits = 2 * kSteps;                // tiles
    constexpr int kParts = 2 * kUnits;
    const std::uint32_t stage = ring.wait();
    const std::uint32_t rows = stage + 2 * kWarps * kStepBytes;
    const std::uint32_t cores = cores_at(rows);
    Fp8Weights weights[kUnits];
    Fp8RowScales<kUsed> row_scales[kSteps];
    float group_sums[kParts][kUsed][4];
    const auto load = [&]<int kUnit>() {
      weights[kUnit].load(stage + at.weights + kUnit / 2 * at.apart, kUnit % 2, at.lane);
    };
    const auto turn = [&]<int kUnit>() {
      constexpr int kBefore = kUnit == 0 ? 0 : std::min(2 * kUnit - 2 + kFlights, kParts);
      constexpr int kBegun = std::min(2 * kUnit + kFlights, kParts);
      constexpr int kNext = std::min(2 * kUnit + 2 + kFlights, kParts);
      if constexpr (kUnit == 0) each<0, (kBegun + 1) / 2>(load);
      each<kBefore, kBegun>([&]<int kPart>() { weights[kPart / 2].template place<kPart % 2>(); });
      if constexpr (kBegun > kBefore) wgmma_fence();
      each<kBefore, kBegun>([&]<int kPart>() {
        constexpr std::uint32_t kStepRows = sheet_rows_bytes(RowForm::fp8, kTiles) >> 4;
        wgmma(group_sums[kPart], weights[kPart / 2].a[kPart % 2],
              whole_cores<RowForm::fp8>(cores + kPart / 4 * kStepRows + kPart % 2 * kNextCores));
        wgmma_commit();
      });
      each<(kBegun + 1) / 2, (kNext + 1) / 2>(load);
      if constexpr (kUnit % 2 == 0)
        row_scales[kUnit / 2].load(rows + kUnit / 2 * sheet_rows_bytes(RowForm::fp8, kTiles) +
                                   kTiles * cores_bytes(RowForm::fp8) + at.lane % 4 * 8);
      wgmma_wait<kBegun - 2 * kUnit - 2>();
      if constexpr (kUnit == kUnits - 1) ring.release();
      add_groups(sums[kUnit % 2], group_sums[2 * kUnit], group_sums[2 * kUnit + 1],
                 weights[kUnit].scales, row_scales[kUnit / 2]);
    };
    each<0, kUnits>(turn);
  }

  // body<kFirst>(), .., body<kEnd - 1>().
  template <int kFirst, int kEnd, class TBody>
  __device__ __forceinline__ static void each(const TBody& body) {
    if constexpr (kFirst < kEnd) {
      body.template operator()<kFirst>();
      each<kFirst + 1, kEnd>(body);
    }
  }
};

}  // namespace moxie::cuda::sm90

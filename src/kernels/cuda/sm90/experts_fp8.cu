// SPDX-License-Identifier: Apache-2.0
// cuda.sm90.experts.fp8: MXFP4 weights as E5M2, which holds them exactly, times E4M3 activations on
// Hopper's FP8 tensor cores.
#include <algorithm>
#include <array>

#include "base/checked.hpp"
#include "kernels/cuda/sm90/block.cuh"
#include "kernels/cuda/sm90/family.hpp"
#include "kernels/cuda/sm90/multiply_fp8.cuh"
#include "kernels/cuda/sm90/products_sheet_fp8.cuh"

namespace moxie::cuda::sm90 {

namespace {

template <int kNarrow, int kWide, int kWideTiles>
constexpr Variant variant(std::uint32_t least_rows = 0) {
  return {.narrow = kNarrow,
          .wide = kWide,
          .wide_tiles = kWideTiles,
          .least_rows = least_rows,
          .mxfp4 = experts<Fp8, kNarrow, kWide, kWideTiles>};
}
template <int kStages>
constexpr Variant small() {
  return {.narrow = kStages, .mxfp4 = small_experts<Fp8, kStages>};
}
// As in experts_fp16.cu, with two steps a stage of sheets.
constexpr std::array kVariants = {variant<4, 4, 4>(20), variant<8, 5, 3>(), variant<4, 5, 3>(),
                                  variant<8, 0, 0>(), variant<4, 0, 0>()};

constexpr std::array kSmall = {small<8>(), small<4>()};

std::uint32_t lay_out(const ExpertsShape& shape, std::uint32_t /*rows*/, Memory& memory) {
  const auto most = static_cast<std::uint32_t>(std::max(shape.hidden, shape.inter));
  memory.sums = kSharedBytes;
  memory.row_scales = memory.sums + kSumsBuffers * kSumsBytes / Fp8::kJoined;
  const std::uint64_t scales = std::uint64_t{most / kStepColumns} * kRowsOfTile * sizeof(float);
  memory.rows = memory.row_scales + static_cast<std::uint32_t>(round_up(scales, 128));
  return memory.rows + most / 32 * kFp8GroupBytes;
}

std::uint32_t bytes_of_sheets(BlockFormat /*format*/, const Variant& variant) {
  return sheet_bytes<Fp8>(variant.wide, variant.wide_tiles);
}

constexpr Family kFamily{.variants = kVariants,
                         .small = kSmall,
                         .lay_out = lay_out,
                         .sheet_bytes = bytes_of_sheets,
                         .form = RowForm::fp8};

}  // namespace

const ExpertsKernel* experts_fp8() { return kernel_of<kFamily>(); }

}  // namespace moxie::cuda::sm90

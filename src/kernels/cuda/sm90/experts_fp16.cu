// SPDX-License-Identifier: Apache-2.0
// cuda.sm90.experts.fp16: exact fp16 products of FP4 weights and activations on Hopper's MMAs.
#include <algorithm>
#include <array>

#include "kernels/cuda/sm90/block.cuh"
#include "kernels/cuda/sm90/family.hpp"
#include "kernels/cuda/sm90/multiply_fp16.cuh"
#include "kernels/cuda/sm90/products_sheet.cuh"

namespace moxie::cuda::sm90 {

namespace {

template <int kNarrow, int kWide, int kWideTiles>
constexpr Variant variant(std::uint32_t least_rows = 0) {
  return {.narrow = kNarrow,
          .wide = kWide,
          .wide_tiles = kWideTiles,
          .least_rows = least_rows,
          .mxfp4 = experts<Fp16<BlockFormat::mxfp4>, kNarrow, kWide, kWideTiles>,
          .nvfp4 = experts<Fp16<BlockFormat::nvfp4>, kNarrow, kWide, kWideTiles>};
}
template <int kStages>
constexpr Variant small() {
  return {.narrow = kStages,
          .mxfp4 = small_experts<Fp16<BlockFormat::mxfp4>, kStages>,
          .nvfp4 = small_experts<Fp16<BlockFormat::nvfp4>, kStages>};
}
// The first that fits is the best; calls of few tokens have no sheets, which take the same memory
// whatever the widths are. Items of 32 rows are worth it where many experts have more than 24; the
// code for them makes the others slower.
constexpr std::array kVariants = {variant<4, 8, 4>(20), variant<7, 8, 3>(), variant<4, 8, 3>(),
                                  variant<7, 0, 0>(), variant<4, 0, 0>()};

constexpr std::array kSmall = {small<10>(), small<7>(), small<4>()};

std::uint32_t lay_out(const ExpertsShape& shape, std::uint32_t rows, Memory& memory) {
  memory.row_bytes[0] = row_bytes_of(shape.format, static_cast<std::uint32_t>(shape.hidden));
  memory.row_bytes[1] = row_bytes_of(shape.format, static_cast<std::uint32_t>(shape.inter));
  memory.sums = kSharedBytes;
  memory.rows = memory.sums + kSumsBuffers * kSumsBytes;
  memory.row_scales = 0;  // none
  return memory.rows + rows * std::max(memory.row_bytes[0], memory.row_bytes[1]);
}

std::uint32_t bytes_of_sheets(BlockFormat format, const Variant& variant) {
  return format == BlockFormat::mxfp4
             ? sheet_bytes<Fp16<BlockFormat::mxfp4>>(variant.wide, variant.wide_tiles)
             : sheet_bytes<Fp16<BlockFormat::nvfp4>>(variant.wide, variant.wide_tiles);
}

constexpr Family kFamily{.variants = kVariants,
                         .small = kSmall,
                         .lay_out = lay_out,
                         .sheet_bytes = bytes_of_sheets,
                         .form = RowForm::fp16};

}  // namespace

const ExpertsKernel* experts_fp16() { return kernel_of<kFamily>(); }

}  // namespace moxie::cuda::sm90

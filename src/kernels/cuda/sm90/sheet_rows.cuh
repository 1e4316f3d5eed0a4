// SPDX-License-Identifier: Apache-2.0
// Rows of activations in device memory, made ready once for sheets, which read them step by step
// beside the weights: x by the launch in front, activations by who completes an item.
#pragma once

#include <cstdint>

#include "kernels/cuda/sm90/call.hpp"
#include "kernels/cuda/sm90/rows.cuh"
#include "kernels/cuda/sm90/rows_fp8.cuh"
#include "kernels/cuda/sm90/rows_lifted.cuh"

namespace moxie::cuda::sm90 {

struct SheetRows {
  std::byte* data;
  std::uint32_t* beside;
  std::uint32_t row_bytes;
  std::uint32_t words;  // beside a row

  __device__ __forceinline__ std::byte* row(std::uint32_t row) const {
    return data + std::uint64_t{row} * row_bytes;
  }
};
template <RowForm kForm>
__device__ __forceinline__ SheetRows sheet_x(const Call& call) {
  const auto hidden = static_cast<std::uint32_t>(call.args.shape.hidden);
  return {call.work.sheet_x, call.work.beside_x, hidden * value_bytes(kForm),
          words_beside(kForm, hidden)};
}
template <RowForm kForm>
__device__ __forceinline__ SheetRows sheet_act(const Call& call) {
  const auto inter = static_cast<std::uint32_t>(call.args.shape.inter);
  return {call.work.act, call.work.beside_act, inter * (call.wide_acts ? 4 : 2),
          words_beside(kForm, inter)};
}

// How many parts of a row of x warps make on their own: FP8's groups do not wait for each other,
// and a row that one warp makes is on its way for longer than the choices are sorted.
inline constexpr std::uint32_t kPartColumns = 1024;
__host__ __device__ constexpr std::uint32_t parts_of_x(RowForm form, std::uint32_t hidden) {
  return form == RowForm::fp16 ? 1 : (hidden + kPartColumns - 1) / kPartColumns;
}

// By one warp.
template <RowForm kForm>
__device__ inline void make_x_part(const Call& call, std::uint32_t row, std::uint32_t part) {
  const RowsOf rows = rows_of_x(call);
  const SheetRows to = sheet_x<kForm>(call);
  if constexpr (kForm == RowForm::fp16) {
    lift_row<4>(call.args.shape, rows, row, reinterpret_cast<std::uint16_t*>(to.row(row)),
                to.beside + row);
  } else {
    const std::uint32_t begin = part * kPartColumns;
    const std::uint32_t end = min(begin + kPartColumns, rows.columns);
    std::uint32_t* scales = to.beside + row * to.words;
    if (!rows.is_f32 && rows.aligned)
      code_row<Bf16Chunk, 4>(rows, row, to.row(row), scales, begin, end);
    else
      code_row<AnyChunk, 4>(rows, row, to.row(row), scales, begin, end);
  }
}

// Where it lies, so that whoever checks it gets it before; FP8 has activations in f32.
template <RowForm kForm>
__device__ inline void make_act_row(const Call& call, std::uint32_t slot) {
  const RowsOf rows = rows_of_act(call);
  const SheetRows to = sheet_act<kForm>(call);
  if (call.args.act_tap != nullptr) tap_row(call, slot);
  if constexpr (kForm == RowForm::fp16) {
    lift_row<4>(call.args.shape, rows, slot, reinterpret_cast<std::uint16_t*>(to.row(slot)),
                to.beside + slot);
  } else {
    code_row<F32Chunk, 4>(rows, slot, to.row(slot), to.beside + slot * to.words, 0, rows.columns);
  }
}

}  // namespace moxie::cuda::sm90

// SPDX-License-Identifier: Apache-2.0
// What entered the down product, for whoever checks it.
#pragma once

#include "kernels/cuda/sm90/call.hpp"
#include "kernels/cuda/sm90/rows.cuh"
#include "kernels/cuda/sm90/sheet_rows.cuh"

namespace moxie::cuda::sm90 {

// Grid: any; slots that are not computed are left alone. Behind sheets it is what they made ready;
// else it is quantised again as the product had it.
template <RowForm kForm>
__global__ void __launch_bounds__(kThreads) tap_acts(const __grid_constant__ Call call) {
  wait_for_previous();
  const RowsOf rows = rows_of_act(call);
  const bool sheets = kForm != RowForm::none && call.work.progress->wide != 0;
  for (std::uint32_t slot = blockIdx.x; slot < call.slots; slot += gridDim.x) {
    if (call.work.expert_of_slot[slot] < 0) continue;
    float* to = call.args.act_tap + std::uint64_t{slot} * rows.columns;
    for (std::uint32_t first = 0; first < rows.columns; first += kThreads * kChunk) {
      const std::uint32_t column = first + threadIdx.x * kChunk;
      float values[kChunk] = {};
      if (column < rows.columns && !sheets) rows.load(slot, column, values);
      quantise_chunk(call.args.shape.act_format, values);
      if (column >= rows.columns) continue;
      for (unsigned i = 0; i < kChunk; ++i) {
        if constexpr (kForm != RowForm::none)
          if (sheets)
            values[i] = sheet_value<kForm>(call.args.shape.format, sheet_act<kForm>(call), slot,
                                           column + i);
        to[column + i] = values[i];
      }
    }
  }
}

}  // namespace moxie::cuda::sm90

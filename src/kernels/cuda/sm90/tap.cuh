// SPDX-License-Identifier: Apache-2.0
// What entered the down product, for whoever checks it.
#pragma once

#include "kernels/cuda/sm90/call.hpp"
#include "kernels/cuda/sm90/ptx.cuh"
#include "kernels/cuda/sm90/rows.cuh"

namespace moxie::cuda::sm90 {

// Grid: any; a warp takes a slot. Slots that are not computed are left alone; where
// activations were made ready for sheets, that has tapped them.
__global__ void __launch_bounds__(kThreads)
    tap_acts(const __grid_constant__ Call call, bool may_be_sheets) {
  wait_for_previous();
  if (may_be_sheets && call.work.progress->wide != 0) return;
  for (std::uint32_t slot = blockIdx.x * kWarps + threadIdx.x / 32; slot < call.slots;
       slot += gridDim.x * kWarps) {
    if (call.work.expert_of_slot[slot] >= 0) tap_row(call, slot);
  }
}

}  // namespace moxie::cuda::sm90

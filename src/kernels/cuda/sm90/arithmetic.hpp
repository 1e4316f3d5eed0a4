// SPDX-License-Identifier: Apache-2.0
// The kinds of arithmetic in which weights and activations can be multiplied.
#pragma once

#include <cstdint>

#include "kernels/cuda/sm90/call.hpp"

namespace moxie::cuda::sm90 {

template <BlockFormat kOfWeights>
struct Fp16 {
  static constexpr BlockFormat kFormat = kOfWeights;
  static constexpr RowForm kForm = RowForm::fp16;  // of the rows of sheets
  static constexpr std::uint32_t kJoined = 1;      // splits whose terms make one sum
  static constexpr bool kLifts = true;             // rows are multiplied by a power of two
  // Tiles of 8 rows, of so many, whose totals have no place in registers.
  MOXIE_HD static constexpr std::uint32_t totals_in_memory(std::uint32_t tiles) {
    return tiles > 2 ? 2 : 0;
  }
};

// MXFP4 weights, activations of act_format fp8.
struct Fp8 {
  static constexpr BlockFormat kFormat = BlockFormat::mxfp4;
  static constexpr RowForm kForm = RowForm::fp8;
  static constexpr std::uint32_t kJoined = 2;
  static constexpr bool kLifts = false;
  MOXIE_HD static constexpr std::uint32_t totals_in_memory(std::uint32_t tiles) {
    return tiles > 3 ? 4 : tiles > 1 ? 2 : 0;
  }
};

}  // namespace moxie::cuda::sm90

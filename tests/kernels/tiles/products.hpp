// SPDX-License-Identifier: Apache-2.0
// The products of one band, of each instruction set, for tests of one matrix alone.
#pragma once

#include <cstdint>

#include "moxie/types.hpp"

namespace moxie::test {

// 16 rows of weights in the order of formats/band_order.hpp times rows of activations, which are
// quantised first.
struct BandProduct {
  BlockFormat format = BlockFormat::mxfp4;
  ActFormat act_format = ActFormat::bf16;
  const std::uint8_t* codes = nullptr;
  const std::uint8_t* scales = nullptr;
  std::uint64_t columns = 0;  // multiple of 32
  const float* x = nullptr;   // [rows, columns]
  std::uint64_t rows = 0;     // at most 32
  float* sums = nullptr;      // [rows, 16]
};

// Only where the machine has the instructions.
void multiply_avx512(const BandProduct& product);
void multiply_avx2(const BandProduct& product);

}  // namespace moxie::test

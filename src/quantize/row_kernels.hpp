// SPDX-License-Identifier: Apache-2.0
// The inner loops of the quantiser, once per instruction set. All of them give the same bytes and
// the same statistics, bit for bit.
#pragma once

#include <cstdint>
#include <vector>

#include "moxie/quantize.hpp"

namespace moxie {

// One row to quantise, and where its results go. `cols` is a whole number of scale groups.
struct QuantRow {
  const void* values = nullptr;    // [cols] of `dtype`, at any alignment
  DType dtype = DType::f32;        // or bf16
  std::uint64_t cols = 0;          //
  std::uint8_t* codes = nullptr;   // [cols / 2]
  std::uint8_t* scales = nullptr;  // [cols / group]
  QuantStats* stats = nullptr;     // added to; the sums start at the row's beginning
};

struct Nvfp4Settings {
  Nvfp4Recipe recipe = Nvfp4Recipe::amax;
  float global = 1;
  double global_above =
      1;  // the next fp32 number: a maximum of which `global` was made is in reach
  double tensor_reach = 0;  // a larger maximum saturates its block
};

struct RowKernels {
  const char* name = nullptr;  // "portable", "avx2", "avx512"
  // Magnitude bits of the largest value: they order as the values do, and NaN is above all.
  std::uint32_t (*largest_bits)(const void* values, DType dtype, std::uint64_t cols) = nullptr;
  void (*nvfp4)(const QuantRow& row, const Nvfp4Settings& settings) = nullptr;
  void (*mxfp4)(const QuantRow& row, Mxfp4Recipe recipe) = nullptr;
};

extern const RowKernels kPortableRowKernels;
extern const RowKernels kAvx2RowKernels;
extern const RowKernels kAvx512RowKernels;

// What this processor can run, the fastest first; "portable" is the last.
const std::vector<const RowKernels*>& usable_row_kernels();

// The public functions with kernels of the caller's choice, for tests and benchmarks.
Quantised quantise_nvfp4(const MatrixRef& matrix, const Nvfp4Options& options,
                         const RowKernels& kernels);
Quantised quantise_mxfp4(const MatrixRef& matrix, Mxfp4Recipe recipe, const RowKernels& kernels);

}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// The rows to quantise: what is refused before any work, their largest magnitude, and where one
// lies.
#pragma once

#include <cstdint>

#include "moxie/types.hpp"
#include "quantize/row_kernels.hpp"

namespace moxie {

// Throws Error(unsupported) MOXIE-Q001 unless the matrix is f32 or bf16, its rows do not overlap
// and its columns make whole groups of `format`.
void require_whole_groups(const MatrixRef& matrix, BlockFormat format);
void require_whole_groups(std::uint64_t cols, BlockFormat format);

// The largest magnitude of a matrix with whole groups. Throws Error(input) MOXIE-Q002 with the
// counts and the first place if a value is NaN or Inf.
float finite_amax(const MatrixRef& matrix, const RowKernels& kernels);

// The first value of a row.
const void* row_start(const MatrixRef& matrix, std::uint64_t row);  // [cols]

// Throws Error(input) MOXIE-Q002 for a block scale that is no number.
[[noreturn]] void refuse_scale_byte(BlockFormat format, std::uint64_t row, std::uint64_t group);

}  // namespace moxie

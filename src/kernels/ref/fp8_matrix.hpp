// SPDX-License-Identifier: Apache-2.0
// Dense E4M3 weights under square tiles of E8M0 scales, value by value in double precision.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ref/weight_rows.hpp"

namespace moxie::ref {

// As stored: value[i, j] = E4M3(code[i, j]) * 2^(scale[i / tile, j / tile] - 127). A rank's matrix
// has its local rows and columns, padded ones too; they are zero where their codes are, and only
// there: the smallest scale is 2^-127.
struct Fp8Matrix {
  std::uint64_t rows = 0;
  std::uint64_t cols = 0;
  std::uint64_t tile = 128;              // 32 for DeepSeek-V4.1
  std::span<const std::uint8_t> codes;   // [rows, cols]
  std::span<const std::uint8_t> scales;  // [ceil(rows / tile), ceil(cols / tile)]
};

// Whether both arrays have the sizes that the shape asks for. A bug of the caller where not.
void check_shape(const Fp8Matrix& matrix);

// Exact: four bits times a power of two not below 2^-136. NaN for the codes 0x7F and 0xFF and under
// the scale 0xFF, also where the code is zero.
double value_at(const Fp8Matrix& matrix, std::uint64_t row, std::uint64_t col);

std::vector<double> decode(const Fp8Matrix& matrix);  // [rows, cols]

// Row `row`, from column `first` on, times x, in ascending order. `x_magnitude` is what the
// magnitude is made of instead of |x|: where x is itself a sum, the magnitude of its terms.
Product row_product(const Fp8Matrix& matrix, std::uint64_t row, std::uint64_t first,
                    std::span<const double> x, std::span<const double> x_magnitude);
Product row_product(const Fp8Matrix& matrix, std::uint64_t row, std::span<const double> x);

}  // namespace moxie::ref

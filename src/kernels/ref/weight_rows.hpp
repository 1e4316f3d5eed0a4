// SPDX-License-Identifier: Apache-2.0
// Rows of packed weights in double precision, and their products with rows of activations.
#pragma once

#include <cstdint>

#include "kernels/ref/reference.hpp"
#include "moxie/types.hpp"

namespace moxie::ref {

// Code times block scale, exact; the matrix's dequant_mul is left to the caller. `cols` is a whole
// number of scale groups.
void decode_row(const Matrix& matrix, BlockFormat format, std::uint64_t row, std::uint64_t cols,
                double* weights);  // [cols]

// Sum of terms, and sum of their magnitudes: what rounding errors scale with.
struct Product {
  double sum = 0;
  double magnitude = 0;
};

// `count` is a multiple of 8. The order of summation depends on `count` alone.
Product product(const double* weights, const double* values, std::uint64_t count);
double product_sum(const double* weights, const double* values, std::uint64_t count);
double product_magnitude(const double* weights, const double* values, std::uint64_t count);

}  // namespace moxie::ref

// SPDX-License-Identifier: Apache-2.0
// Both bytes of a value are looked up anew each time: nothing is kept that could be stale.
#include "kernels/ref/fp8_matrix.hpp"

#include <cmath>

#include "base/checked.hpp"
#include "formats/e4m3.hpp"
#include "formats/ue8m0.hpp"

namespace moxie::ref {

void check_shape(const Fp8Matrix& matrix) {
  MOXIE_CHECK(matrix.tile > 0, "a tile has a width");
  MOXIE_CHECK(matrix.codes.size() == matrix.rows * matrix.cols, "every value has a code");
  MOXIE_CHECK(matrix.scales.size() ==
                  divide_up(matrix.rows, matrix.tile) * divide_up(matrix.cols, matrix.tile),
              "every tile has a scale");
}

double value_at(const Fp8Matrix& matrix, std::uint64_t row, std::uint64_t col) {
  const std::uint64_t tiles_per_row = divide_up(matrix.cols, matrix.tile);
  const std::uint64_t tile = row / matrix.tile * tiles_per_row + col / matrix.tile;
  return static_cast<double>(decode_e4m3(matrix.codes[row * matrix.cols + col])) *
         decode_e8m0_double(matrix.scales[tile]);
}

std::vector<double> decode(const Fp8Matrix& matrix) {
  check_shape(matrix);
  std::vector<double> values;
  values.reserve(matrix.codes.size());
  for (std::uint64_t row = 0; row < matrix.rows; ++row) {
    for (std::uint64_t col = 0; col < matrix.cols; ++col)
      values.push_back(value_at(matrix, row, col));
  }
  return values;
}

Product row_product(const Fp8Matrix& matrix, std::uint64_t row, std::uint64_t first,
                    std::span<const double> x, std::span<const double> x_magnitude) {
  MOXIE_CHECK(row < matrix.rows && first <= matrix.cols && x.size() <= matrix.cols - first,
              "the product lies inside the matrix");
  MOXIE_CHECK(x_magnitude.size() == x.size(), "every x has a magnitude");
  Product product;
  for (std::uint64_t i = 0; i < x.size(); ++i) {
    const double weight = value_at(matrix, row, first + i);
    product.sum += weight * x[i];
    product.magnitude += std::abs(weight) * x_magnitude[i];
  }
  return product;
}

Product row_product(const Fp8Matrix& matrix, std::uint64_t row, std::span<const double> x) {
  MOXIE_CHECK(x.size() == matrix.cols, "x is as wide as the matrix");
  std::vector<double> magnitude;
  magnitude.reserve(x.size());
  for (const double value : x) magnitude.push_back(std::abs(value));
  return row_product(matrix, row, 0, x, magnitude);
}

}  // namespace moxie::ref

// SPDX-License-Identifier: Apache-2.0
// The rows of a matrix in parallel; a row's bytes and statistics depend on that row alone.
#pragma once

#include <cstdint>
#include <vector>

#include "base/parallel.hpp"
#include "formats/block_format.hpp"
#include "moxie/quantize.hpp"
#include "quantize/row_kernels.hpp"
#include "quantize/source_rows.hpp"

namespace moxie {

// Calls `quantise(row)` for every row, where `row` is a QuantRow.
template <class Quantise>
Quantised quantise_rows(const MatrixRef& matrix, BlockFormat format, float dequant_mul,
                        const Quantise& quantise) {
  const std::uint64_t groups = to_scale_groups(Elems{matrix.cols}, format).value;
  const std::uint64_t row_bytes = to_packed_bytes(Elems{matrix.cols}).value;
  Quantised result;
  result.matrix = {.format = format,
                   .rows = matrix.rows,
                   .cols = matrix.cols,
                   .codes = std::vector<std::uint8_t>(matrix.rows * row_bytes),
                   .scales = std::vector<std::uint8_t>(matrix.rows * groups),
                   .dequant_mul = dequant_mul};
  std::vector<QuantStats> stats(matrix.rows);
  parallel_for(matrix.rows, [&](std::uint64_t row) {
    quantise(QuantRow{.values = row_start(matrix, row),
                      .dtype = matrix.dtype,
                      .cols = matrix.cols,
                      .codes = result.matrix.codes.data() + row * row_bytes,
                      .scales = result.matrix.scales.data() + row * groups,
                      .stats = &stats[row]});
  });
  for (const QuantStats& row : stats) result.stats.merge(row);
  return result;
}

}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// Dispatched rows as FP8 codes with a scale for 128 columns, in the orders in which dispatches
// store the scales.
#pragma once

#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "formats/e4m3.hpp"
#include "support/dispatched_rows.hpp"

namespace moxie::test {

enum class ScaleOrder : std::uint8_t {
  rows,    // [rows, blocks], 3 floats more from row to row
  columns  // [blocks, rows], of every expert for itself where experts stand apart
};

struct Fp8Rows {
  std::uint64_t stride = 0;
  std::vector<std::uint8_t> codes;  // [rows, stride]; NaN where nobody looks
  std::vector<float> scales;        // NaN where nobody looks
  RowBlockScales at;                // of the scales; data is null

  [[nodiscard]] MatrixRef ref(const DispatchedRows& rows, const void* data) const {
    return {.data = data,
            .dtype = DType::f8_e4m3,
            .rows = rows.rows,
            .cols = rows.hidden,
            .row_stride = stride};
  }
  [[nodiscard]] RowBlockScales scales_at(const float* data) const {
    RowBlockScales there = at;
    there.data = data;
    return there;
  }
  // Where a row has the scale of a block.
  [[nodiscard]] std::uint64_t scale_of(const DispatchedRows& rows, std::uint64_t row,
                                       std::uint64_t block) const {
    const std::uint64_t expert = rows.apart > 0 ? row / rows.apart : 0;
    const std::uint64_t apart =
        at.expert_stride > 0 ? at.expert_stride : rows.apart * at.row_stride;
    return expert * apart + (row - expert * rows.apart) * at.row_stride + block * at.block_stride;
  }
};

// Overwrites x of the rows with the values of random codes; rows of nobody have NaN alone. Codes
// of rows lie `pad` bytes farther apart than they must.
inline Fp8Rows fp8_rows(DispatchedRows& rows, ScaleOrder order, std::uint64_t pad,
                        std::mt19937_64& random) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const std::uint64_t blocks = (rows.hidden + 127) / 128;
  Fp8Rows made{.stride = rows.hidden + pad};
  if (order == ScaleOrder::rows) {
    made.at = {.row_stride = blocks + 3, .block_stride = 1};
    made.scales.assign(rows.rows * (blocks + 3), kNan);
  } else {
    const std::uint64_t column = rows.apart > 0 ? rows.apart : rows.rows;
    made.at = {.row_stride = 1,
               .block_stride = column,
               .expert_stride = rows.apart > 0 ? blocks * column : 0};
    made.scales.assign(rows.rows * blocks, kNan);
  }
  made.codes.assign(rows.rows * made.stride, kE4m3NanCode);
  rows.x.assign(rows.rows * rows.hidden, kNan);
  std::uniform_real_distribution<float> mantissa(1.0F, 2.0F);
  for (std::uint64_t row = 0; row < rows.rows; ++row) {
    if (rows.ids[row] < 0) continue;
    for (std::uint64_t block = 0; block < blocks; ++block)
      made.scales[made.scale_of(rows, row, block)] =
          mantissa(random) / static_cast<float>(1U << (random() % 12 + 2));
    for (std::uint64_t column = 0; column < rows.hidden; ++column) {
      auto code = static_cast<std::uint8_t>(random());
      if (is_nan_e4m3(code)) code = 0x80;  // -0
      made.codes[row * made.stride + column] = code;
      rows.x[row * rows.hidden + column] =
          decode_e4m3(code) * made.scales[made.scale_of(rows, row, column / 128)];
    }
  }
  return made;
}

}  // namespace moxie::test

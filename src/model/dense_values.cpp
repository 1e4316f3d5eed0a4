// SPDX-License-Identifier: Apache-2.0
// Values of dense matrices as fp32. A transposed source is read along its own rows, a few columns
// at a time.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/checked.hpp"
#include "formats/bf16.hpp"
#include "formats/e4m3.hpp"
#include "formats/ue8m0.hpp"
#include "model/dense_experts.hpp"

namespace moxie {

namespace {

constexpr std::uint64_t kBlockCols = 16;

float decode_f16(std::uint16_t bits) {
  const std::uint32_t sign = (bits & 0x8000U) << 16U;
  const std::uint32_t magnitude = bits & 0x7FFFU;
  if (magnitude >= 0x7C00)
    return std::bit_cast<float>(sign | 0x7F800000 | (magnitude & 0x3FF) << 13U);
  // The exponent's bias grows from 15 to 127; exact for subnormals too.
  const float value = std::bit_cast<float>(magnitude << 13U) * 0x1p112F;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) | sign);
}

template <class Bits>
Bits load(const std::byte* data, std::uint64_t index) {
  Bits bits = 0;
  std::memcpy(&bits, data + index * sizeof bits, sizeof bits);
  return bits;
}

float element(const std::byte* data, DType dtype, std::uint64_t index) {
  switch (dtype) {
    case DType::bf16:
      return decode_bf16(load<std::uint16_t>(data, index));
    case DType::f16:
      return decode_f16(load<std::uint16_t>(data, index));
    case DType::f32:
      return std::bit_cast<float>(load<std::uint32_t>(data, index));
    case DType::f8_e4m3:
      return decode_e4m3(load<std::uint8_t>(data, index));
    case DType::f8_e8m0:
      return decode_e8m0(load<std::uint8_t>(data, index));
    default:
      break;
  }
  MOXIE_CHECK(false, "a dense matrix has one of the types that were checked");
  return 0;
}

}  // namespace

std::optional<MatrixRef> matrix_in_place(const Checkpoint& checkpoint, const DenseMatrix& matrix) {
  const DType dtype = matrix.weight->dtype;
  if (matrix.col_step != 1 || (dtype != DType::bf16 && dtype != DType::f32)) return std::nullopt;
  return MatrixRef{
      .data = checkpoint.bytes(*matrix.weight).data() + matrix.first * (bits_of(dtype) / 8),
      .dtype = dtype,
      .rows = matrix.rows,
      .cols = matrix.cols,
      .row_stride = matrix.row_step};
}

std::optional<BadScale> find_bad_scale(const Checkpoint& checkpoint, const DenseMatrix& matrix) {
  if (matrix.scales == nullptr) return std::nullopt;
  const std::byte* scales = checkpoint.bytes(*matrix.scales).data();
  const std::uint64_t across = divide_up(matrix.cols, matrix.tile_cols);
  const std::uint64_t count = divide_up(matrix.rows, matrix.tile_rows) * across;
  for (std::uint64_t i = 0; i < count; ++i) {
    const float value = element(scales, matrix.scales->dtype, i);
    if (!(value > 0) || !std::isfinite(value))
      return BadScale{.row = i / across, .col = i % across, .value = value};
  }
  return std::nullopt;
}

void read_values(const Checkpoint& checkpoint, const DenseMatrix& matrix, float* values) {
  const std::byte* data = checkpoint.bytes(*matrix.weight).data();
  const DType dtype = matrix.weight->dtype;
  const std::byte* scales =
      matrix.scales != nullptr ? checkpoint.bytes(*matrix.scales).data() : nullptr;
  const std::uint64_t tiles = scales != nullptr ? divide_up(matrix.cols, matrix.tile_cols) : 0;
  for (std::uint64_t begin = 0; begin < matrix.cols; begin += kBlockCols) {
    const std::uint64_t end = std::min(begin + kBlockCols, matrix.cols);
    for (std::uint64_t row = 0; row < matrix.rows; ++row) {
      const std::uint64_t start = matrix.first + row * matrix.row_step;
      for (std::uint64_t col = begin; col < end; ++col) {
        float value = element(data, dtype, start + col * matrix.col_step);
        if (scales != nullptr) {
          value *= element(scales, matrix.scales->dtype,
                           row / matrix.tile_rows * tiles + col / matrix.tile_cols);
        }
        values[row * matrix.cols + col] = value;
      }
    }
  }
}

}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// Values are judged by their bits: a maximum of floats would drop a NaN, one of bits finds it.
#include "quantize/source_rows.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "base/parallel.hpp"
#include "formats/bf16.hpp"
#include "formats/block_format.hpp"
#include "moxie/status.hpp"

namespace moxie {

namespace {

constexpr std::uint32_t kMagnitudeBits = 0x7FFFFFFF;
constexpr std::uint32_t kInfinityBits = 0x7F800000;

[[noreturn]] void refuse_shape(std::string message, std::string expected, std::string got) {
  throw Error(ErrorCode::unsupported, {.code = "MOXIE-Q001",
                                       .message = std::move(message),
                                       .expected = std::move(expected),
                                       .got = std::move(got)});
}

// One value as fp32, at any alignment.
float value_at(const MatrixRef& matrix, std::uint64_t row, std::uint64_t col) {
  const auto* start = static_cast<const std::byte*>(row_start(matrix, row));
  if (matrix.dtype == DType::f32) {
    float value = 0;
    std::memcpy(&value, start + col * sizeof(value), sizeof(value));
    return value;
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, start + col * sizeof(bits), sizeof(bits));
  return decode_bf16(bits);
}

[[noreturn]] void refuse_values(const MatrixRef& matrix) {
  std::uint64_t nans = 0;
  std::uint64_t infinities = 0;
  std::string first;
  for (std::uint64_t row = 0; row < matrix.rows; ++row) {
    for (std::uint64_t col = 0; col < matrix.cols; ++col) {
      const std::uint32_t magnitude =
          std::bit_cast<std::uint32_t>(value_at(matrix, row, col)) & kMagnitudeBits;
      if (magnitude < kInfinityBits) continue;
      ++(magnitude > kInfinityBits ? nans : infinities);
      if (first.empty()) first = "row " + std::to_string(row) + ", column " + std::to_string(col);
    }
  }
  throw Error(ErrorCode::input,
              {.code = "MOXIE-Q002",
               .message = "values that are not finite, the first at " + first,
               .expected = "finite values",
               .got = std::to_string(nans) + " NaN, " + std::to_string(infinities) + " Inf",
               .hint = "FP4 has no code for them; repair the source"});
}

}  // namespace

void require_whole_groups(std::uint64_t cols, BlockFormat format) {
  if (is_whole_groups(Elems{cols}, format)) return;
  refuse_shape("the columns are not a whole number of scale groups",
               "a multiple of " + std::to_string(scale_group(format)), std::to_string(cols));
}

void require_whole_groups(const MatrixRef& matrix, BlockFormat format) {
  if (matrix.dtype != DType::f32 && matrix.dtype != DType::bf16) {
    refuse_shape("an element type that can not be quantised", "F32 or BF16",
                 std::string(name_of(matrix.dtype)));
  }
  require_whole_groups(matrix.cols, format);
  if (matrix.rows > 1 && matrix.row_stride < matrix.cols) {
    refuse_shape("rows overlap", "a row stride of at least " + std::to_string(matrix.cols),
                 std::to_string(matrix.row_stride));
  }
}

const void* row_start(const MatrixRef& matrix, std::uint64_t row) {
  return static_cast<const std::byte*>(matrix.data) +
         row * matrix.row_stride * (bits_of(matrix.dtype) / 8);
}

float finite_amax(const MatrixRef& matrix, const RowKernels& kernels) {
  std::vector<std::uint32_t> most(matrix.rows, 0);
  parallel_for(matrix.rows, [&](std::uint64_t row) {
    most[row] = kernels.largest_bits(row_start(matrix, row), matrix.dtype, matrix.cols);
  });
  std::uint32_t largest = 0;
  for (const std::uint32_t bits : most) largest = std::max(largest, bits);
  if (largest >= kInfinityBits) refuse_values(matrix);
  return std::bit_cast<float>(largest);
}

void refuse_scale_byte(BlockFormat format, std::uint64_t row, std::uint64_t group) {
  throw Error(ErrorCode::input,
              {.code = "MOXIE-Q002",
               .message = std::string(name_of(format)) + " scale is no number at row " +
                          std::to_string(row) + ", group " + std::to_string(group),
               .hint = "the checkpoint is corrupt; download the file again"});
}

}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// NaN is no zero: comparisons are written so that it is a fault.
#include "verify/padding_probe.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/checked.hpp"
#include "formats/bf16.hpp"
#include "formats/ue8m0.hpp"

namespace moxie {

namespace {

constexpr std::size_t kMaxFaults = 20;
constexpr double kSilentScale = 0x1p-127;  // byte 0x00

void add_fault(PaddingProbe& probe, PaddingFault fault) {
  if (probe.faults.size() < kMaxFaults) probe.faults.push_back(std::move(fault));
}

void add_product(PaddingProbe& probe, std::uint64_t row, double product) {
  if (product == 0) {
    ++probe.zero_products;
    return;
  }
  add_fault(probe, {.what = "row " + std::to_string(row) + " gives a product that is not zero",
                    .expected = "exactly 0",
                    .got = product});
}

void add_negative_zero(PaddingProbe& probe, std::uint64_t row, std::uint64_t col) {
  add_fault(probe,
            {.what = "row " + std::to_string(row) + " holds -0 at column " + std::to_string(col),
             .expected = "+0",
             .got = -0.0});
}

void probe_scales(const ref::Fp8Matrix& matrix, std::uint64_t first_row, std::uint64_t first_col,
                  PaddingProbe& probe) {
  const std::uint64_t tile_cols = divide_up(matrix.cols, matrix.tile);
  // The first tiles of padding alone.
  const std::uint64_t row_end = divide_up(first_row, matrix.tile);
  const std::uint64_t col_end = divide_up(first_col, matrix.tile);
  for (std::uint64_t i = 0; i < matrix.scales.size(); ++i) {
    if (i / tile_cols < row_end && i % tile_cols < col_end) continue;
    const double scale = decode_e8m0_double(matrix.scales[i]);
    if (scale == kSilentScale) continue;
    add_fault(probe, {.what = "the scale of tile " + std::to_string(i / tile_cols) + ", " +
                              std::to_string(i % tile_cols) + " is not the smallest",
                      .expected = "2^-127",
                      .got = scale,
                      .in_scales = true});
  }
}

}  // namespace

std::vector<double> ProbeValues::operator()(std::uint64_t count) {
  std::vector<double> values(count);
  for (double& value : values) {
    const std::uint64_t word = stream_.word(next_++);
    const double magnitude = 1.0 + static_cast<double>(word >> 12) * 0x1p-52;
    value = (word & 1) != 0 ? magnitude : -magnitude;
  }
  return values;
}

PaddingProbe probe_padding(const ref::Fp8Matrix& matrix, std::uint64_t first_row,
                           std::uint64_t first_col, ProbeValues& values) {
  PaddingProbe probe;
  if (first_row >= matrix.rows && first_col >= matrix.cols) return probe;
  const std::vector<double> x = values(matrix.cols);
  probe_scales(matrix, first_row, first_col, probe);
  // Under a scale that is NaN every product is: that is the scale's fault alone.
  if (std::ranges::any_of(probe.faults, [](const auto& fault) { return std::isnan(fault.got); }))
    return probe;
  for (std::uint64_t row = 0; row < matrix.rows; ++row) {
    const std::uint64_t from = row < first_row ? first_col : 0;
    if (from >= matrix.cols) continue;
    const auto part = std::span<const double>(x).subspan(from);
    add_product(probe, row, ref::row_product(matrix, row, from, part, part).sum);
    for (std::uint64_t col = from; col < matrix.cols; ++col) {
      const double value = ref::value_at(matrix, row, col);
      if (value == 0 && std::signbit(value)) add_negative_zero(probe, row, col);
    }
  }
  return probe;
}

PaddingProbe probe_padding(std::span<const std::uint16_t> rows, std::uint64_t first_row,
                           std::span<const double> x) {
  PaddingProbe probe;
  const std::uint64_t width = x.size();
  MOXIE_CHECK(width > 0 && rows.size() % width == 0, "rows are whole");
  for (std::uint64_t row = first_row; row < rows.size() / width; ++row) {
    double product = 0;
    for (std::uint64_t col = 0; col < width; ++col) {
      const auto value = static_cast<double>(decode_bf16(rows[row * width + col]));
      product += value * x[col];
      if (value == 0 && std::signbit(value)) add_negative_zero(probe, row, col);
    }
    add_product(probe, row, product);
  }
  return probe;
}

}  // namespace moxie

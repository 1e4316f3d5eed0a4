// SPDX-License-Identifier: Apache-2.0
// Two bands by the kernels' own products, of any instruction set. Included inside a target region.
#pragma once

namespace moxie::test {

template <class Products, class Quantise>
void run_product(const BandProduct& product) {
  using Record = typename Products::Record;
  constexpr std::uint64_t kMostTiles = 256;
  static Record records[cpu::tiles::kMostRows][kMostTiles];
  const Record* x[cpu::tiles::kMostRows];
  for (std::uint64_t row = 0; row < product.rows; ++row) {
    x[row] = records[row];
    for (std::uint64_t tile = 0; tile < product.columns / kTileColumns; ++tile)
      Quantise::record(product.x + row * product.columns + tile * kTileColumns, records[row][tile]);
  }
  alignas(64) cpu::tiles::Sums sums[2];
  Products::multiply({.at = {.codes = product.codes, .scales = product.scales},
                      .columns = product.columns,
                      .code_bytes = kBandRows * product.columns / 2,
                      .scale_bytes = kBandRows * product.columns / scale_group(product.format)},
                     x, product.rows, sums);
  for (std::uint64_t i = 0; i < product.rows * kBandPairRows; ++i) {
    const std::uint64_t lane = i % kBandPairRows;
    product.sums[i] = sums[lane / kBandRows][i / kBandPairRows][lane % kBandRows] * Products::kUnit;
  }
}

}  // namespace moxie::test

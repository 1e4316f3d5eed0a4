// SPDX-License-Identifier: Apache-2.0
// One band times rows of bf16 activations: exact products, fp32 sums. Included inside a target
// region.
//
// A row's sum has one order, whatever is computed beside it: in each half of a tile a chain of
// eight dot products from 0, in the order of the columns; MXFP4 adds both chains and multiplies
// them into the row's sum by their scale, NVFP4 each by its own.
#pragma once

#include "kernels/cpu/tiles/band.hpp"

namespace moxie::cpu::tiles {

template <class Simd, BlockFormat kFormat>
struct ProductsBf16 {
  using Record = Bf16Record;
  using Floats = typename Simd::Floats;
  using Pairs = typename Simd::Pairs;
  using Scales = TileScales<Simd, kFormat>;
  static constexpr BlockFormat kBlockFormat = kFormat;
  static constexpr float kUnit = Scales::kUnit;
  static constexpr std::uint64_t kPairs = kTileColumns / 2;

  // sums[row][lane], without kUnit.
  static void multiply(const Band& band, const Record* const* x, std::uint64_t rows,
                       float (*sums)[kBandRows]) {
    if (rows == 1) return multiply_one(band, x[0], sums[0]);
    for (std::uint64_t row = 0; row < rows; ++row) Simd::store(sums[row], Simd::zeros());
    const std::uint8_t* codes = band.codes;
    const std::uint8_t* scale_bytes = band.scales;
    Ahead<Simd, Scales::kBytes> ahead(band);
    for (std::uint64_t tile = 0; tile < band.columns / kTileColumns; ++tile) {
      ahead.ask();
      Pairs weights[kPairs];
      decode(codes, weights);
      const Scales scales = Scales::read(scale_bytes);
      for_groups<4>(rows, [&]<int kRows>(std::uint64_t row) __attribute__((always_inline)) {
        Floats halves[kRows][kHalves];
        for (auto& of_row : halves) of_row[0] = of_row[1] = Simd::zeros();
        for (std::uint64_t pair = 0; pair < kPairs / 2; ++pair) {
          for (int r = 0; r < kRows; ++r) {
            const std::uint16_t* values = x[row + r][tile].values;
            halves[r][0] = Simd::dot(halves[r][0], weights[pair], values + 2 * pair);
            halves[r][1] =
                Simd::dot(halves[r][1], weights[kPairs / 2 + pair], values + kPairs + 2 * pair);
          }
        }
        for (int r = 0; r < kRows; ++r) {
          const Floats sum = Simd::load(sums[row + r]);
          Simd::store(sums[row + r], added(sum, halves[r], scales));
        }
      });
      codes += kTileBytes;
      scale_bytes += Scales::kBytes;
    }
  }

 private:
  static void multiply_one(const Band& band, const Record* x, float* sums) {
    Floats sum = Simd::zeros();
    const std::uint8_t* codes = band.codes;
    const std::uint8_t* scale_bytes = band.scales;
    Ahead<Simd, Scales::kBytes> ahead(band);
    for (std::uint64_t tile = 0; tile < band.columns / kTileColumns; ++tile) {
      ahead.ask();
      Pairs weights[kPairs];
      decode(codes, weights);
      const std::uint16_t* values = x[tile].values;
      Floats halves[kHalves] = {Simd::zeros(), Simd::zeros()};
      for (std::uint64_t pair = 0; pair < kPairs / 2; ++pair) {
        halves[0] = Simd::dot(halves[0], weights[pair], values + 2 * pair);
        halves[1] = Simd::dot(halves[1], weights[kPairs / 2 + pair], values + kPairs + 2 * pair);
      }
      sum = added(sum, halves, Scales::read(scale_bytes));
      codes += kTileBytes;
      scale_bytes += Scales::kBytes;
    }
    Simd::store(sums, sum);
  }

  [[gnu::always_inline]] static void decode(const std::uint8_t* codes, Pairs* weights) {
    for (std::uint64_t i = 0; i < 4; ++i) {
      const auto line = Simd::line(codes + 64 * i);
      weights[4 * i] = Simd::template pairs<0>(line);
      weights[4 * i + 1] = Simd::template pairs<1>(line);
      weights[4 * i + 2] = Simd::template pairs<2>(line);
      weights[4 * i + 3] = Simd::template pairs<3>(line);
    }
  }

  [[gnu::always_inline]] static Floats added(Floats sum, const Floats* halves,
                                             const Scales& scales) {
    if constexpr (Scales::kMx) {
      return Simd::multiply_add(Simd::add(halves[0], halves[1]), scales.of_half[0], sum);
    } else {
      return Simd::multiply_add(halves[1], scales.of_half[1],
                                Simd::multiply_add(halves[0], scales.of_half[0], sum));
    }
  }
};

}  // namespace moxie::cpu::tiles

// SPDX-License-Identifier: Apache-2.0
// Two bands times rows of bf16 activations: exact products, fp32 sums. Included inside a target
// region.
//
// A row's sum has one order, whatever is computed beside it: in each half of a tile a chain of
// eight dot products from 0, in the order of the columns; MXFP4 adds both chains and multiplies
// them into the row's sum by their scale, NVFP4 adds the sum of both, each times its own. So a tile
// waits for one addition of the tile before it, not for two.
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
  // Rows whose sums stay in registers.
  static constexpr int kFewRows = 4;

  // sums[band][row][lane], without kUnit.
  static void multiply(const BandPair& bands, const Record* const* x, std::uint64_t rows,
                       Sums* sums) {
    if (rows > kFewRows) return multiply_both(bands, x, rows, sums);
    for_groups<kFewRows>(rows, [&]<int kRows>(std::uint64_t) __attribute__((always_inline)) {
      multiply_few<kRows>(bands.first(), x, sums[0]);
      multiply_few<kRows>(bands.second(), x, sums[1]);
    });
  }

 private:
  static constexpr std::uint64_t kHalfPairs = kPairs / kHalves;
  static constexpr std::uint64_t kHalfBytes = kTileBytes / kHalves;
  static constexpr std::uint64_t kLinePairs = 4;

  template <int kRows>
  [[gnu::noinline]] static void multiply_few(const Band& band, const Record* const* x, Sums& to) {
    Floats sums[kRows];
    for (Floats& sum : sums) sum = Simd::zeros();
    const std::uint8_t* codes = band.at.codes;
    const std::uint8_t* scale_bytes = band.at.scales;
    Ahead<Simd, Scales::kBytes> ahead(band);
    for (std::uint64_t tile = 0; tile < band.columns / kTileColumns; ++tile) {
      ahead.ask();
      Floats chains[kRows][kHalves];
      for (auto& of_row : chains) of_row[0] = of_row[1] = Simd::zeros();
      Pairs weights[kPairs];
      for (std::uint64_t i = 0; i < kPairs; i += kLinePairs) decode(codes + 16 * i, weights + i);
      for (std::uint64_t pair = 0; pair < kHalfPairs; ++pair) {
        for (int r = 0; r < kRows; ++r) {
          for (std::uint64_t half = 0; half < kHalves; ++half)
            chains[r][half] = Simd::dot(chains[r][half], weights[half * kHalfPairs + pair],
                                        values_at(x[r][tile], half, pair));
        }
      }
      const Scales scales = Scales::read(scale_bytes);
      for (int r = 0; r < kRows; ++r)
        sums[r] = scales.added(sums[r], scales.first(chains[r][0]), chains[r][1]);
      codes += kTileBytes;
      scale_bytes += Scales::kBytes;
    }
    for (int r = 0; r < kRows; ++r) Simd::store(to[r], sums[r]);
  }

  // Half a tile of both bands waits in registers, so that an activation that is loaded meets two.
  static void multiply_both(const BandPair& bands, const Record* const* x, std::uint64_t rows,
                            Sums* sums) {
    const Band band[2] = {bands.beside(0), bands.beside(1)};
    Ahead<Simd, Scales::kBytes> ahead[2] = {Ahead<Simd, Scales::kBytes>(band[0]),
                                            Ahead<Simd, Scales::kBytes>(band[1])};
    for (std::uint64_t row = 0; row < rows; ++row) {
      for (int b = 0; b < 2; ++b) Simd::store(sums[b][row], Simd::zeros());
    }
    alignas(64) float firsts[kMostRows][2][kBandRows];
    for (std::uint64_t tile = 0; tile < bands.columns / kTileColumns; ++tile) {
      Scales scales[2];
      for (int b = 0; b < 2; ++b) {
        ahead[b].ask();
        scales[b] = Scales::read(band[b].at.scales + tile * Scales::kBytes);
      }
      for (std::uint64_t half = 0; half < kHalves; ++half) {
        Pairs weights[2][kHalfPairs];
        for (int b = 0; b < 2; ++b) {
          const std::uint8_t* codes = band[b].at.codes + tile * kTileBytes + half * kHalfBytes;
          for (std::uint64_t i = 0; i < kHalfPairs; i += kLinePairs)
            decode(codes + 16 * i, weights[b] + i);
        }
        for_groups<4>(rows, [&]<int kRows>(std::uint64_t row) __attribute__((always_inline)) {
          Floats chains[kRows][2];
          for (auto& of_row : chains) of_row[0] = of_row[1] = Simd::zeros();
          for (std::uint64_t pair = 0; pair < kHalfPairs; ++pair) {
            for (int r = 0; r < kRows; ++r) {
              for (int b = 0; b < 2; ++b)
                chains[r][b] = Simd::dot(chains[r][b], weights[b][pair],
                                         values_at(x[row + r][tile], half, pair));
            }
          }
          for (int r = 0; r < kRows; ++r) {
            for (int b = 0; b < 2; ++b) {
              float* at = sums[b][row + r];
              float* kept = firsts[row + r][b];
              if (half == 0) {
                Simd::store(kept, scales[b].first(chains[r][b]));
              } else {
                Simd::store(at, scales[b].added(Simd::load(at), Simd::load(kept), chains[r][b]));
              }
            }
          }
        });
      }
    }
  }

  [[gnu::always_inline]] static const std::uint16_t* values_at(const Record& x, std::uint64_t half,
                                                               std::uint64_t pair) {
    return x.values + half * (kTileColumns / kHalves) + 2 * pair;
  }

  // A line.
  [[gnu::always_inline]] static void decode(const std::uint8_t* codes, Pairs* weights) {
    const auto line = Simd::line(codes);
    weights[0] = Simd::template pairs<0>(line);
    weights[1] = Simd::template pairs<1>(line);
    weights[2] = Simd::template pairs<2>(line);
    weights[3] = Simd::template pairs<3>(line);
  }
};

}  // namespace moxie::cpu::tiles

// SPDX-License-Identifier: Apache-2.0
// Two bands times rows of fp32 activations, where nothing multiplies bf16: fp32 sums of exact
// products. Included inside a target region.
//
// A row's sum has the order of products_bf16.hpp, its chains in single multiply-adds.
#pragma once

#include "kernels/cpu/tiles/band.hpp"

namespace moxie::cpu::tiles {

template <class Simd, BlockFormat kFormat>
struct ProductsF32 {
  using Record = F32Record;
  using Floats = typename Simd::Floats;
  using Scales = TileScales<Simd, kFormat>;
  static constexpr BlockFormat kBlockFormat = kFormat;
  static constexpr float kUnit = Scales::kUnit;

  // sums[band][row][lane], without kUnit.
  static void multiply(const BandPair& bands, const Record* const* x, std::uint64_t rows,
                       Sums* sums) {
    multiply_band(bands.first(), x, rows, sums[0]);
    multiply_band(bands.second(), x, rows, sums[1]);
  }

 private:
  static void multiply_band(const Band& band, const Record* const* x, std::uint64_t rows,
                            Sums& sums) {
    for (std::uint64_t row = 0; row < rows; ++row) {
      for (std::uint64_t lane = 0; lane < kBandRows; lane += Simd::kLanes)
        Simd::store(sums[row] + lane, Simd::zeros());
    }
    const std::uint8_t* codes = band.at.codes;
    const std::uint8_t* scale_bytes = band.at.scales;
    Ahead<Simd, Scales::kBytes> ahead(band);
    for (std::uint64_t tile = 0; tile < band.columns / kTileColumns; ++tile) {
      ahead.ask();
      for (std::uint64_t lane = 0; lane < kBandRows; lane += Simd::kLanes) {
        const Scales scales = Scales::read(scale_bytes + lane);
        if (rows == 1) {
          float* at = sums[0] + lane;
          Simd::store(at, added(Simd::load(at), one_row(codes + 4 * lane, x[0][tile]), scales));
        } else {
          multiply_tile({codes + 4 * lane, tile, lane}, scales, x, rows, sums);
        }
      }
      codes += kTileBytes;
      scale_bytes += Scales::kBytes;
    }
  }

  struct Halves {
    Floats sums[kHalves];
  };
  struct Part {
    const std::uint8_t* codes;
    std::uint64_t tile;
    std::uint64_t lane;
  };

  // Several rows share the decoded columns, which wait in the first-level cache.
  [[gnu::always_inline]] static void multiply_tile(const Part& part, const Scales& scales,
                                                   const Record* const* x, std::uint64_t rows,
                                                   Sums& sums) {
    alignas(64) float weights[kTileColumns][Simd::kLanes];
    for (std::uint64_t i = 0; i < 4; ++i) {
      Floats columns[8];
      decode(Simd::line(part.codes + 64 * i), columns);
      for (std::uint64_t c = 0; c < 8; ++c) Simd::store(weights[8 * i + c], columns[c]);
    }
    for_groups<4>(rows, [&]<int kRows>(std::uint64_t row) __attribute__((always_inline)) {
      Halves halves[kRows];
      for (Halves& of_row : halves) of_row.sums[0] = of_row.sums[1] = Simd::zeros();
      for (std::uint64_t i = 0; i < kTileColumns / 2; ++i) {
        const Floats first = Simd::load(weights[i]);
        const Floats second = Simd::load(weights[kTileColumns / 2 + i]);
        for (int r = 0; r < kRows; ++r) {
          const float* values = x[row + r][part.tile].values + i;
          Floats* of_row = halves[r].sums;
          of_row[0] = Simd::multiply_add(first, Simd::all(values[0]), of_row[0]);
          of_row[1] = Simd::multiply_add(second, Simd::all(values[kTileColumns / 2]), of_row[1]);
        }
      }
      for (int r = 0; r < kRows; ++r) {
        float* at = sums[row + r] + part.lane;
        Simd::store(at, added(Simd::load(at), halves[r], scales));
      }
    });
  }

  [[gnu::always_inline]] static Halves one_row(const std::uint8_t* codes, const Record& x) {
    Halves halves = {{Simd::zeros(), Simd::zeros()}};
    for (std::uint64_t i = 0; i < 2; ++i) {
      Floats first[8];
      Floats second[8];
      decode(Simd::line(codes + 64 * i), first);
      decode(Simd::line(codes + 64 * (i + 2)), second);
      for (std::uint64_t c = 0; c < 8; ++c) {
        const float* values = x.values + 8 * i + c;
        halves.sums[0] = Simd::multiply_add(first[c], Simd::all(values[0]), halves.sums[0]);
        halves.sums[1] =
            Simd::multiply_add(second[c], Simd::all(values[kTileColumns / 2]), halves.sums[1]);
      }
    }
    return halves;
  }

  [[gnu::always_inline]] static void decode(typename Simd::Line line, Floats* columns) {
    columns[0] = Simd::template column<0>(line);
    columns[1] = Simd::template column<1>(line);
    columns[2] = Simd::template column<2>(line);
    columns[3] = Simd::template column<3>(line);
    columns[4] = Simd::template column<4>(line);
    columns[5] = Simd::template column<5>(line);
    columns[6] = Simd::template column<6>(line);
    columns[7] = Simd::template column<7>(line);
  }

  [[gnu::always_inline]] static Floats added(Floats sum, const Halves& halves,
                                             const Scales& scales) {
    return scales.added(sum, scales.first(halves.sums[0]), halves.sums[1]);
  }
};

}  // namespace moxie::cpu::tiles

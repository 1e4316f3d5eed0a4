// SPDX-License-Identifier: Apache-2.0
// Two bands times rows of int8 or int8x2 activations: the sums of a group are whole numbers and
// exact. Included inside a target region.
//
// A row's sum has one order, whatever is computed beside it: tile after tile, the tile's whole
// number as fp32 (below 2^24), times the group's multiplier, times the scale, added in one
// rounding. NVFP4 adds the two halves, each times its scale, before the multiplier.
#pragma once

#include "kernels/cpu/tiles/band.hpp"

namespace moxie::cpu::tiles {

// How the codes of a record become the sums of a tile's halves.
template <class Simd>
struct OnePlane {
  using Record = Int8Record;
  static constexpr int kPlanes = 1;
  struct Sums {
    typename Simd::Sums of_half[kHalves];
  };
  [[gnu::always_inline]] static Sums start(const Record& x) {
    return {{Simd::start(x.start[0]), Simd::start(x.start[1])}};
  }
  [[gnu::always_inline]] static void dot(Sums& sums, const Record& x, std::uint64_t half,
                                         std::uint64_t at, typename Simd::Octets weights) {
    sums.of_half[half] = Simd::dot(sums.of_half[half], weights, x.codes + at);
  }
  [[gnu::always_inline]] static typename Simd::Ints of_half(const Sums& sums, std::uint64_t half) {
    return Simd::ints(sums.of_half[half]);
  }
  [[gnu::always_inline]] static typename Simd::Ints of_both(const Sums& sums) {
    return Simd::ints(Simd::add(sums.of_half[0], sums.of_half[1]));
  }
};

template <class Simd>
struct TwoPlanes {
  using Record = Int8x2Record;
  static constexpr int kPlanes = 2;
  struct Sums {
    typename Simd::Sums high[kHalves];
    typename Simd::Sums low[kHalves];
  };
  [[gnu::always_inline]] static Sums start(const Record& x) {
    return {{Simd::start(x.start_high[0]), Simd::start(x.start_high[1])},
            {Simd::start(x.start_low[0]), Simd::start(x.start_low[1])}};
  }
  [[gnu::always_inline]] static void dot(Sums& sums, const Record& x, std::uint64_t half,
                                         std::uint64_t at, typename Simd::Octets weights) {
    sums.high[half] = Simd::dot(sums.high[half], weights, x.high + at);
    sums.low[half] = Simd::dot(sums.low[half], weights, x.low + at);
  }
  [[gnu::always_inline]] static typename Simd::Ints of_half(const Sums& sums, std::uint64_t half) {
    return Simd::join(Simd::ints(sums.high[half]), Simd::ints(sums.low[half]));
  }
  [[gnu::always_inline]] static typename Simd::Ints of_both(const Sums& sums) {
    return Simd::join(Simd::ints(Simd::add(sums.high[0], sums.high[1])),
                      Simd::ints(Simd::add(sums.low[0], sums.low[1])));
  }
};

template <class Simd, BlockFormat kFormat, template <class> class Planes>
struct ProductsInt8 {
  using Plane = Planes<Simd>;
  using Record = typename Plane::Record;
  using Floats = typename Simd::Floats;
  using Octets = typename Simd::Octets;
  using Scales = TileScales<Simd, kFormat>;
  static constexpr BlockFormat kBlockFormat = kFormat;
  static constexpr float kUnit = Scales::kUnit * 0.5F;  // octets are twice the values
  static constexpr std::uint64_t kOctets = kTileColumns / 4;

  // sums[band][row][lane], without kUnit.
  static void multiply(const BandPair& bands, const Record* const* x, std::uint64_t rows,
                       Sums* sums) {
    if (rows <= kFewRows) {
      for_groups<kFewRows>(rows, [&]<int kRows>(std::uint64_t) __attribute__((always_inline)) {
        multiply_few<kRows>(bands.first(), x, sums[0]);
        multiply_few<kRows>(bands.second(), x, sums[1]);
      });
    } else if constexpr (kManyRegisters) {
      const Band both[2] = {bands.beside(0), bands.beside(1)};
      multiply_many<2>(both, x, rows, sums);
    } else {
      const Band both[2] = {bands.first(), bands.second()};
      multiply_many<1>(&both[0], x, rows, &sums[0]);
      multiply_many<1>(&both[1], x, rows, &sums[1]);
    }
  }

 private:
  static constexpr bool kManyRegisters = Simd::kRegisters == 32;
  // Rows whose sums stay in registers.
  static constexpr int kFewRows = kManyRegisters ? 5 - Plane::kPlanes : 1;
  // Rows whose sums of a tile fit beside the octets of one band, or of two where many registers
  // are.
  static constexpr int kGroup = kManyRegisters ? 2 / Plane::kPlanes : 2;
  static constexpr std::uint64_t kParts = kBandRows / Simd::kLanes;  // registers of a band's sums

  template <int kRows>
  [[gnu::noinline]] static void multiply_few(const Band& band, const Record* const* x, Sums& to) {
    Floats sums[kRows][kParts];
    for (auto& of_row : sums) {
      for (Floats& sum : of_row) sum = Simd::zeros();
    }
    const std::uint8_t* codes = band.at.codes;
    const std::uint8_t* scale_bytes = band.at.scales;
    Ahead<Simd, Scales::kBytes> ahead(band);
    for (std::uint64_t tile = 0; tile < band.columns / kTileColumns; ++tile) {
      ahead.ask();
      for (std::uint64_t part = 0; part < kParts; ++part) {
        const std::uint64_t lane = part * Simd::kLanes;
        Octets weights[kOctets];
        decode(codes + 4 * lane, weights);
        typename Plane::Sums dots[kRows];
        for (int r = 0; r < kRows; ++r) dots[r] = Plane::start(x[r][tile]);
        for (std::uint64_t i = 0; i < kOctets; ++i) {
          for (int r = 0; r < kRows; ++r)
            Plane::dot(dots[r], x[r][tile], i / (kOctets / 2), 4 * i, weights[i]);
        }
        const Scales scales = Scales::read(scale_bytes + lane);
        for (int r = 0; r < kRows; ++r)
          sums[r][part] = added(sums[r][part], dots[r], scales, x[r][tile].mul);
      }
      codes += kTileBytes;
      scale_bytes += Scales::kBytes;
    }
    for (int r = 0; r < kRows; ++r) {
      for (std::uint64_t part = 0; part < kParts; ++part)
        Simd::store(to[r] + part * Simd::kLanes, sums[r][part]);
    }
  }

  // Octets of kBands bands wait in registers for all rows, so that an activation that is loaded
  // meets one or two of them.
  template <int kBands>
  static void multiply_many(const Band* bands, const Record* const* x, std::uint64_t rows,
                            Sums* sums) {
    for (std::uint64_t row = 0; row < rows; ++row) {
      for (int b = 0; b < kBands; ++b) {
        for (std::uint64_t lane = 0; lane < kBandRows; lane += Simd::kLanes)
          Simd::store(sums[b][row] + lane, Simd::zeros());
      }
    }
    Ahead<Simd, Scales::kBytes> first(bands[0]);
    Ahead<Simd, Scales::kBytes> last(bands[kBands - 1]);
    for (std::uint64_t tile = 0; tile < bands[0].columns / kTileColumns; ++tile) {
      first.ask();
      if constexpr (kBands == 2) last.ask();
      for (std::uint64_t lane = 0; lane < kBandRows; lane += Simd::kLanes) {
        Octets weights[kBands][kOctets];
        Scales scales[kBands];
        for (int b = 0; b < kBands; ++b) {
          decode(bands[b].at.codes + tile * kTileBytes + 4 * lane, weights[b]);
          scales[b] = Scales::read(bands[b].at.scales + tile * Scales::kBytes + lane);
        }
        for_groups<kGroup>(rows, [&]<int kRows>(std::uint64_t row) __attribute__((always_inline)) {
          typename Plane::Sums dots[kRows][kBands];
          for (int r = 0; r < kRows; ++r) {
            for (int b = 0; b < kBands; ++b) dots[r][b] = Plane::start(x[row + r][tile]);
          }
          for (std::uint64_t i = 0; i < kOctets / 2; ++i) {
            const std::uint64_t other = kOctets / 2 + i;
            for (int r = 0; r < kRows; ++r) {
              const Record& record = x[row + r][tile];
              for (int b = 0; b < kBands; ++b) {
                Plane::dot(dots[r][b], record, 0, 4 * i, weights[b][i]);
                Plane::dot(dots[r][b], record, 1, 4 * other, weights[b][other]);
              }
            }
          }
          for (int r = 0; r < kRows; ++r) {
            for (int b = 0; b < kBands; ++b) {
              float* at = sums[b][row + r] + lane;
              Simd::store(at, added(Simd::load(at), dots[r][b], scales[b], x[row + r][tile].mul));
            }
          }
        });
      }
    }
  }

  [[gnu::always_inline]] static void decode(const std::uint8_t* codes, Octets* weights) {
    for (std::uint64_t i = 0; i < 4; ++i) {
      const auto line = Simd::line(codes + 64 * i);
      weights[2 * i] = Simd::low_octets(line);
      weights[2 * i + 1] = Simd::high_octets(line);
    }
  }

  [[gnu::always_inline]] static Floats added(Floats sum, const typename Plane::Sums& dots,
                                             const Scales& scales, float mul) {
    if constexpr (Scales::kMx) {
      const Floats values = Simd::multiply(Simd::floats(Plane::of_both(dots)), Simd::all(mul));
      return Simd::multiply_add(values, scales.of_half[0], sum);
    } else {
      const Floats first = Simd::multiply(Simd::floats(Plane::of_half(dots, 0)), scales.of_half[0]);
      const Floats both =
          Simd::multiply_add(Simd::floats(Plane::of_half(dots, 1)), scales.of_half[1], first);
      return Simd::multiply_add(both, Simd::all(mul), sum);
    }
  }
};

}  // namespace moxie::cpu::tiles

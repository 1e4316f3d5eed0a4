// SPDX-License-Identifier: Apache-2.0
// One band times rows of fp32 activations, where nothing multiplies bf16: fp32 sums of exact
// products. Included inside a target region.
//
// A row's sum has the order of products_bf16.hpp, its chains in single multiply-adds.
#pragma once

namespace moxie::cpu::tiles {

template <class Simd, BlockFormat kFormat>
struct ProductsF32 {
  using Record = F32Record;
  using Floats = typename Simd::Floats;
  using Scales = TileScales<Simd, kFormat>;
  static constexpr BlockFormat kBlockFormat = kFormat;
  static constexpr float kUnit = Scales::kUnit;

  // sums[row][lane], without kUnit. A register holds a part of the band's lanes.
  static void multiply(const Band& band, const Record* const* x, std::uint64_t rows,
                       float (*sums)[kBandRows]) {
    for (std::uint64_t lane = 0; lane < kBandRows; lane += Simd::kLanes) {
      for (std::uint64_t row = 0; row < rows; ++row) Simd::store(sums[row] + lane, Simd::zeros());
      const std::uint8_t* codes = band.codes + 4 * lane;
      const std::uint8_t* scale_bytes = band.scales + lane;
      for (std::uint64_t tile = 0; tile < band.columns / kTileColumns; ++tile) {
        alignas(64) float weights[kTileColumns][Simd::kLanes];
        decode(codes, weights);
        const Scales scales = Scales::read(scale_bytes);
        for_groups<4>(rows, [&]<int kRows>(std::uint64_t row) __attribute__((always_inline)) {
          Floats halves[kRows][kHalves];
          for (auto& of_row : halves) of_row[0] = of_row[1] = Simd::zeros();
          for (std::uint64_t i = 0; i < kTileColumns / 2; ++i) {
            const Floats first = Simd::load(weights[i]);
            const Floats second = Simd::load(weights[kTileColumns / 2 + i]);
            for (int r = 0; r < kRows; ++r) {
              const float* values = x[row + r][tile].values + i;
              halves[r][0] = Simd::multiply_add(first, Simd::all(values[0]), halves[r][0]);
              halves[r][1] =
                  Simd::multiply_add(second, Simd::all(values[kTileColumns / 2]), halves[r][1]);
            }
          }
          for (int r = 0; r < kRows; ++r) {
            float* at = sums[row + r] + lane;
            Simd::store(at, added(Simd::load(at), halves[r], scales));
          }
        });
        codes += kTileBytes;
        scale_bytes += Scales::kBytes;
      }
    }
  }

 private:
  [[gnu::always_inline]] static void decode(const std::uint8_t* codes,
                                            float (*weights)[Simd::kLanes]) {
    for (std::uint64_t i = 0; i < 4; ++i) {
      __builtin_prefetch(codes + 64 * i + kAhead);
      const auto line = Simd::line(codes + 64 * i);
      float(*to)[Simd::kLanes] = weights + 8 * i;
      Simd::store(to[0], Simd::template column<0>(line));
      Simd::store(to[1], Simd::template column<1>(line));
      Simd::store(to[2], Simd::template column<2>(line));
      Simd::store(to[3], Simd::template column<3>(line));
      Simd::store(to[4], Simd::template column<4>(line));
      Simd::store(to[5], Simd::template column<5>(line));
      Simd::store(to[6], Simd::template column<6>(line));
      Simd::store(to[7], Simd::template column<7>(line));
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

// SPDX-License-Identifier: Apache-2.0
// What the products of one band have in common. Included inside a target region.
#pragma once

#include "kernels/cpu/tiles/included.hpp"

namespace moxie::cpu::tiles {

// 16 rows of a weight matrix in the order of formats/band_order.hpp.
struct Band {
  const std::uint8_t* codes;
  const std::uint8_t* scales;
  std::uint64_t columns;  // multiple of 32
  // What is read next, where that is not what lies behind; null: nobody knows, or it does.
  const std::uint8_t* next_codes;
  const std::uint8_t* next_scales;
};

// Rows of activations that share a decoded tile.
inline constexpr std::uint64_t kMostRows = 32;
// Tiles are asked for so many of them before they are read, into the second-level cache: the
// first-level one has too few misses under way for the whole distance.
inline constexpr std::uint64_t kTilesAhead = 14;

// Asks for what the tiles ahead hold, in this stream and at its end in the next one.
template <class Simd, std::uint64_t kTileScaleBytes>
class Ahead {
 public:
  explicit Ahead(const Band& band)
      : codes_(band.codes + kTilesAhead * kTileBytes),
        scales_(band.scales + kTilesAhead * kTileScaleBytes),
        next_codes_(band.next_codes),
        next_scales_(band.next_scales),
        left_(band.columns / kTileColumns) {}

  // Once for every tile.
  [[gnu::always_inline]] void ask() {
    if (next_codes_ != nullptr && left_ <= kTilesAhead) {
      ask_for(next_codes_);
      __builtin_prefetch(next_scales_, 0, 2);
      next_codes_ += kTileBytes;
      next_scales_ += kTileScaleBytes;
    } else {
      ask_for(codes_);
      codes_ += kTileBytes;
      __builtin_prefetch(scales_, 0, 2);
      scales_ += kTileScaleBytes;
    }
    --left_;
  }

 private:
  [[gnu::always_inline]] static void ask_for(const std::uint8_t* tile) {
    for (std::uint64_t line = 0; line < kTileBytes; line += 64)
      __builtin_prefetch(tile + line, 0, 2);
  }

  const std::uint8_t* codes_;
  const std::uint8_t* scales_;
  const std::uint8_t* next_codes_;
  const std::uint8_t* next_scales_;
  std::uint64_t left_;
};

// The scales of a tile's 16 rows: one for all 32 columns, or one for each half of them.
template <class Simd, BlockFormat kFormat>
struct TileScales {
  static constexpr bool kMx = kFormat == BlockFormat::mxfp4;
  static constexpr std::uint64_t kBytes = kMx ? kBandRows : kHalves * kBandRows;
  // What is left out of every scale.
  static constexpr float kUnit = kMx ? 1.0F : 0x1p8F;

  typename Simd::Floats of_half[kMx ? 1 : kHalves];

  static TileScales read(const std::uint8_t* at) {
    TileScales scales;
    if constexpr (kMx) {
      scales.of_half[0] = Simd::e8m0(at);
    } else {
      scales.of_half[0] = Simd::ue4m3(at);
      scales.of_half[1] = Simd::ue4m3(at + kBandRows);
    }
    return scales;
  }
};

// Calls body.template operator()<n>(first) for groups of at most kMost rows until all are done.
template <int kMost, class Body>
[[gnu::always_inline]] inline void for_groups(std::uint64_t rows, const Body& body) {
  static_assert(kMost == 2 || kMost == 4);
  std::uint64_t row = 0;
  for (; row + kMost <= rows; row += kMost) body.template operator()<kMost>(row);
  if constexpr (kMost == 4) {
    if (rows - row == 3) return body.template operator()<3>(row);
    if (rows - row == 2) return body.template operator()<2>(row);
  }
  if (rows - row == 1) body.template operator()<1>(row);
}

}  // namespace moxie::cpu::tiles

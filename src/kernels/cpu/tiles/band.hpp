// SPDX-License-Identifier: Apache-2.0
// What the products of one band have in common. Included inside a target region.
#pragma once

namespace moxie::cpu::tiles {

// 16 rows of a weight matrix in the order of formats/band_order.hpp, and what is read after them.
struct Band {
  const std::uint8_t* codes;
  const std::uint8_t* scales;
  std::uint64_t columns;           // multiple of 32
  const std::uint8_t* next_codes;  // null: nobody knows
  const std::uint8_t* next_scales;
};

// Rows of activations that share a decoded tile.
inline constexpr std::uint64_t kMostRows = 32;
// Tiles are asked for so many of them before they are read, into the second-level cache: the
// first-level one has too few misses under way for the whole distance.
inline constexpr std::uint64_t kTilesAhead = 32;

// Asks for the lines that a band's tiles will need, its own and at its end the next band's. What
// lies beyond is left alone: another thread reads it.
template <class Simd, std::uint64_t kTileScaleBytes>
class Ahead {
 public:
  explicit Ahead(const Band& band)
      : codes_(band.codes + kTilesAhead * kTileBytes),
        scales_(band.scales + kTilesAhead * kTileScaleBytes),
        left_(band.columns / kTileColumns),
        next_codes_(band.next_codes),
        next_scales_(band.next_scales) {
    left_ = left_ > kTilesAhead ? left_ - kTilesAhead : 0;
    if (left_ == 0) turn();
  }

  // Once for every tile.
  [[gnu::always_inline]] void ask() {
    for (std::uint64_t line = 0; line < kTileBytes; line += 64)
      __builtin_prefetch(codes_ + line, 0, 2);
    __builtin_prefetch(scales_, 0, 2);
    codes_ += kTileBytes;
    scales_ += kTileScaleBytes;
    if (--left_ == 0) turn();
  }

 private:
  // Where nothing follows what was read last is asked for again, which costs nothing.
  void turn() {
    codes_ = next_codes_ != nullptr ? next_codes_ : codes_ - kTilesAhead * kTileBytes;
    scales_ = next_codes_ != nullptr ? next_scales_ : scales_ - kTilesAhead * kTileScaleBytes;
    left_ = ~std::uint64_t{0};
  }

  const std::uint8_t* codes_;
  const std::uint8_t* scales_;
  std::uint64_t left_;
  const std::uint8_t* next_codes_;
  const std::uint8_t* next_scales_;
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

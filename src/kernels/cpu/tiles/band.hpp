// SPDX-License-Identifier: Apache-2.0
// What the products of bands have in common. Included inside a target region.
#pragma once

#include "kernels/cpu/tiles/included.hpp"

namespace moxie::cpu::tiles {

// Where codes and scales are read from; null: nobody knows.
struct Stream {
  const std::uint8_t* codes = nullptr;
  const std::uint8_t* scales = nullptr;
};

// 16 rows of a weight matrix in the order of formats/band_order.hpp.
struct Band {
  Stream at;
  std::uint64_t columns = 0;  // multiple of 32
  Prefetch prefetch = {};
  Stream next = {};  // what is read next, where that is not what lies behind
};

// Two neighbouring bands.
struct BandPair {
  Stream at;
  std::uint64_t columns = 0;
  Prefetch prefetch = {};
  std::uint64_t code_bytes = 0;  // of a band
  std::uint64_t scale_bytes = 0;
  Stream next = {};  // what is read after both, where that is not what lies behind

  [[nodiscard]] Stream behind(const Stream& from, std::uint64_t bands) const {
    return {.codes = from.codes + bands * code_bytes, .scales = from.scales + bands * scale_bytes};
  }
  // As they are read one after the other.
  [[nodiscard]] Band first() const { return {.at = at, .columns = columns, .prefetch = prefetch}; }
  [[nodiscard]] Band second() const {
    return {.at = behind(at, 1), .columns = columns, .prefetch = prefetch, .next = next};
  }
  // One of them as they are read at once, followed by the same one of the next two.
  [[nodiscard]] Band beside(std::uint64_t band) const {
    const Stream after = next.codes == nullptr ? behind(at, 2) : next;
    return {.at = behind(at, band),
            .columns = columns,
            .prefetch = prefetch,
            .next = behind(after, band)};
  }
};

// Rows of activations that share a decoded tile.
inline constexpr std::uint64_t kMostRows = 32;
using Sums = float[kMostRows][kBandRows];  // of a band's rows

// Asks for what the tiles ahead hold, in this stream and at its end in the next one.
template <class Simd, std::uint64_t kTileScaleBytes>
class Ahead {
 public:
  explicit Ahead(const Band& band)
      : codes_(band.at.codes + band.prefetch.tiles * kTileBytes),
        scales_(band.at.scales + band.prefetch.tiles * kTileScaleBytes),
        next_(band.next),
        prefetch_(band.prefetch),
        left_(band.columns / kTileColumns) {}

  // Once for every tile.
  [[gnu::always_inline]] void ask() {
    if (next_.codes != nullptr && left_ <= prefetch_.tiles) {
      ask_for(next_.codes, next_.scales);
      next_.codes += kTileBytes;
      next_.scales += kTileScaleBytes;
    } else {
      ask_for(codes_, scales_);
      codes_ += kTileBytes;
      scales_ += kTileScaleBytes;
    }
    --left_;
  }

 private:
  [[gnu::always_inline]] void ask_for(const std::uint8_t* codes, const std::uint8_t* scales) const {
    if (prefetch_.past_second_level) {
      ask_for<0>(codes, scales);
    } else {
      ask_for<2>(codes, scales);
    }
  }
  template <int kLocality>
  [[gnu::always_inline]] static void ask_for(const std::uint8_t* codes,
                                             const std::uint8_t* scales) {
    for (std::uint64_t line = 0; line < kTileBytes; line += 64)
      __builtin_prefetch(codes + line, 0, kLocality);
    __builtin_prefetch(scales, 0, kLocality);
  }

  const std::uint8_t* codes_;
  const std::uint8_t* scales_;
  Stream next_;
  Prefetch prefetch_;
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

  // A tile's products from its first half, and from both added to a row's sum.
  [[gnu::always_inline]] typename Simd::Floats first(typename Simd::Floats half) const {
    if constexpr (kMx) return half;
    return Simd::multiply(half, of_half[0]);
  }
  [[gnu::always_inline]] typename Simd::Floats added(typename Simd::Floats sum,
                                                     typename Simd::Floats first,
                                                     typename Simd::Floats second) const {
    if constexpr (kMx) return Simd::multiply_add(Simd::add(first, second), of_half[0], sum);
    return Simd::add(sum, Simd::multiply_add(second, of_half[kHalves - 1], first));
  }

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

// Calls body for the rows behind `row`, at most kMost.
template <int kMost, class Body>
[[gnu::always_inline]] inline void for_rest(std::uint64_t rows, std::uint64_t row,
                                            const Body& body) {
  if constexpr (kMost > 0) {
    if (rows - row == kMost) return body.template operator()<kMost>(row);
    for_rest<kMost - 1>(rows, row, body);
  }
}

// Calls body.template operator()<n>(first) for groups of at most kMost rows until all are done.
template <int kMost, class Body>
[[gnu::always_inline]] inline void for_groups(std::uint64_t rows, const Body& body) {
  std::uint64_t row = 0;
  for (; row + kMost <= rows; row += kMost) body.template operator()<kMost>(row);
  for_rest<kMost - 1>(rows, row, body);
}

}  // namespace moxie::cpu::tiles

// SPDX-License-Identifier: Apache-2.0
// Lookup tables from a random byte to an E2M1 code or a scale byte, as quantised weights have them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "formats/e4m3.hpp"
#include "formats/ue8m0.hpp"
#include "moxie/types.hpp"

namespace moxie::synth {

using ByteTable = std::array<std::uint8_t, 256>;

// A table that yields first + i for counts[i] of the random bytes. The counts sum to 256.
template <std::size_t N>
constexpr ByteTable spread(const std::array<unsigned, N>& counts, std::uint8_t first) {
  ByteTable table{};
  std::size_t at = 0;
  for (std::size_t i = 0; i < N; ++i) {
    for (unsigned n = 0; n < counts[i]; ++n) {
      table.at(at++) = static_cast<std::uint8_t>(first + i);
    }
  }
  // Too few counts end in a code that no table may hold; `at` throws on too many.
  while (at < table.size()) table.at(at++) = 0xFF;
  return table;
}

// Signed codes from the counts of the eight magnitudes, which sum to 128. `shift` is 0 for a low
// nibble, 4 for a high one.
constexpr ByteTable signed_codes(const std::array<unsigned, 8>& counts, unsigned shift) {
  std::array<unsigned, 16> both{};
  for (std::size_t i = 0; i < 8; ++i) both[i] = both[i + 8] = counts[i];
  ByteTable table = spread(both, 0);
  for (std::uint8_t& code : table) code = static_cast<std::uint8_t>(code << shift);
  return table;
}

constexpr ByteTable shifted(ByteTable table, int by) {
  for (std::uint8_t& code : table) code = static_cast<std::uint8_t>(code + by);
  return table;
}

constexpr bool all_below(const ByteTable& table, std::uint8_t bound) {
  for (const std::uint8_t code : table) {
    if (code >= bound) return false;
  }
  return true;
}

// Magnitudes 0, 0.5, 1, 1.5, 2, 3, 4, 6 of Gaussian values, in 1/128. MXFP4: groups of 32 under the
// smallest power of two that does not saturate. NVFP4: groups of 16 whose largest value is 6.
inline constexpr std::array<unsigned, 8> kMxfp4Magnitudes{14, 26, 23, 19, 21, 16, 8, 1};
inline constexpr std::array<unsigned, 8> kNvfp4Magnitudes{9, 17, 16, 15, 19, 20, 18, 14};

// Exponents around 2^-7: with a mean square code of 3.6 the weights have a deviation of 0.015, and
// products over some thousand inputs of unit variance stay of order one.
inline constexpr ByteTable kE8m0Scales =
    spread(std::array<unsigned, 8>{2, 10, 40, 110, 64, 22, 6, 2}, kE8m0One - 10);

// A bell over 31 codes around 120, the last is 448. A tensor's largest group has 448, an average
// one a third of it; the tails stand for rows of unequal norm.
inline constexpr ByteTable kUe4m3Scales =
    spread(std::array<unsigned, 31>{1,  1,  2,  2,  2,  3,  4, 6, 8, 10, 12, 14, 16, 18, 19, 20,
                                    19, 18, 16, 14, 12, 10, 8, 6, 4, 3,  2,  2,  2,  1,  1},
           0x6F - 15);
// With outliers the largest groups set the tensor's multiplier and the others lie 2^6 lower.
inline constexpr int kOutlierExponents = 6;
inline constexpr ByteTable kUe4m3ScalesBelowOutliers =
    shifted(kUe4m3Scales, -8 * kOutlierExponents);

static_assert(all_below(kE8m0Scales, kE8m0NanCode), "the counts sum to 256 and no scale is NaN");
static_assert(all_below(kUe4m3Scales, kE4m3NanCode), "the counts sum to 256 and no scale is NaN");
static_assert(all_below(kUe4m3ScalesBelowOutliers, kE4m3NanCode), "no scale goes below zero");

}  // namespace moxie::synth

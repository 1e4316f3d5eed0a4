// SPDX-License-Identifier: Apache-2.0
// How cuda.sm90.experts wants an expert: the tiles that a warp reads 16 bytes a lane, and the word
// of eight codes that masks and a bit reversal turn into E5M2 or fp16 values.
//
// Strip: 32 rows of a product over all its columns. Of a gated expert's gate and up the first 16
// rows are gate's and the last 16 up's, so that both sums of an intermediate meet in one tile.
// Step: 32 rows x 64 columns, 1024 bytes of codes and then the block scales; the steps of a strip
// lie one after another, and the strips of a product too.
// Quad: the 16 bytes of a lane for one half of a step (16 rows): 4 words.
// Word: columns s = 0..3 of rows g and g + 8, g = lane / 4. An E5M2 byte keeps E2M1's sign in bit 7
// and the rest in bits 3..1, which is the value times 2^-14; so does the upper byte of an fp16
// value. The four codes of row g lie that way in the word's bytes, column 0 lowest, those of row
// g + 8 in the mirrored word, whose bits are the ones between.
#pragma once

#include <cstdint>

#include "base/host_device.hpp"
#include "moxie/types.hpp"

namespace moxie::cuda::sm90 {

inline constexpr std::uint32_t kStripRows = 32;
inline constexpr std::uint32_t kStepColumns = 64;
inline constexpr std::uint32_t kStepCodes = 1024;  // bytes

MOXIE_HD constexpr std::uint32_t step_scales(BlockFormat format) {  // bytes
  return format == BlockFormat::mxfp4 ? 64 : 128;
}
MOXIE_HD constexpr std::uint32_t step_bytes(BlockFormat format) {
  return kStepCodes + step_scales(format);
}

MOXIE_HD constexpr std::uint32_t reversed(std::uint32_t value) {
  std::uint32_t result = 0;
  for (int bit = 0; bit < 32; ++bit) result |= (value >> bit & 1U) << (31 - bit);
  return result;
}

// Eight codes of a word; rows[h] holds column s of row g + 8 h in bits [4 s, 4 s + 4).
struct WordCodes {
  std::uint32_t rows[2];
};

// The sign to bit 7, the other three bits to bits 3..1.
MOXIE_HD constexpr std::uint32_t placed(std::uint32_t code) {
  return (code & 8U) << 4 | (code & 7U) << 1;
}
MOXIE_HD constexpr std::uint32_t unplaced(std::uint32_t byte) {
  return (byte >> 4 & 8U) | (byte >> 1 & 7U);
}

MOXIE_HD constexpr std::uint32_t pack_word(WordCodes codes) {
  std::uint32_t bytes[2] = {};
  for (std::uint32_t half = 0; half < 2; ++half) {
    for (std::uint32_t s = 0; s < 4; ++s)
      bytes[half] |= placed(codes.rows[half] >> (4 * s) & 15U) << (8 * s);
  }
  return bytes[0] | reversed(bytes[1]);
}

MOXIE_HD constexpr WordCodes unpack_word(std::uint32_t word) {
  const std::uint32_t bytes[2] = {word, reversed(word)};
  WordCodes codes{};
  for (std::uint32_t half = 0; half < 2; ++half) {
    for (std::uint32_t s = 0; s < 4; ++s)
      codes.rows[half] |= unplaced(bytes[half] >> (8 * s) & 255U) << (4 * s);
  }
  return codes;
}

// Where a step keeps what, in bytes from its start. `tile` is 0 for the first 16 rows, 1 for the
// others.
MOXIE_HD constexpr std::uint32_t quad_offset(std::uint32_t tile, std::uint32_t lane) {
  return (tile * 32 + lane) * 16;
}
// First column of word `word` (0..3) of a lane's quad; its columns follow each other. An MXFP4 lane
// takes 8 columns of either group, so that every MMA stays inside a group; an NVFP4 lane the 16 of
// one group, so that one scale serves all its words.
MOXIE_HD constexpr std::uint32_t word_column(BlockFormat format, std::uint32_t lane,
                                             std::uint32_t word) {
  const std::uint32_t t = lane % 4;
  return format == BlockFormat::mxfp4 ? word / 2 * 32 + t * 8 + word % 2 * 4 : t * 16 + word * 4;
}
// Of the scale of row 16 tile + 8 half + g and group `group` of the step (of 2, or of 4).
MOXIE_HD constexpr std::uint32_t scale_offset(BlockFormat format, std::uint32_t tile,
                                              std::uint32_t half, std::uint32_t g,
                                              std::uint32_t group) {
  return kStepCodes + (format == BlockFormat::mxfp4 ? g * 8 + tile * 4 + group * 2 + half
                                                    : (g * 4 + group) * 4 + tile * 2 + half);
}

}  // namespace moxie::cuda::sm90

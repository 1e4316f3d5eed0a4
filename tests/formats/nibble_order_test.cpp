// SPDX-License-Identifier: Apache-2.0
// Nibble orders: which element is where in a byte, in safetensors and in GGUF blocks.
#include "formats/nibble_order.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "formats/block_format.hpp"
#include "formats/e2m1.hpp"

namespace moxie {
namespace {

constexpr NibbleOrder kBoth[2] = {NibbleOrder::even_low, NibbleOrder::split_half};

// Bytes whose nibbles tell every position apart as far as 16 codes can.
std::vector<std::uint8_t> numbered_row(std::uint64_t elems, NibbleOrder order,
                                       std::uint64_t block_elems) {
  std::vector<std::uint8_t> packed(elems / 2, 0xFF);
  for (std::uint64_t k = 0; k < elems; ++k) {
    write_nibble(packed.data(), k, order, block_elems,
                 static_cast<std::uint8_t>((k * 7 + k / 16) % 16));
  }
  return packed;
}

TEST(NibbleOrder, EvenElementsAreLow) {  // pit2, R-14
  const std::uint8_t packed[2] = {0x21, 0x43};
  const std::uint8_t codes[4] = {1, 2, 3, 4};
  const float values[4] = {0.5F, 1.0F, 1.5F, 2.0F};
  for (std::uint64_t k = 0; k < 4; ++k) {
    const std::uint8_t code = read_nibble(packed, k, NibbleOrder::even_low, 32);
    EXPECT_EQ(code, codes[k]);
    EXPECT_EQ(decode_e2m1(code), values[k]);
  }
}

TEST(NibbleOrder, AnInt8CarrierIsReinterpretedBeforeShifting) {  // pit4
  const auto element = static_cast<std::int8_t>(0xF7);
  EXPECT_EQ(low_nibble(carrier_byte(element)), 7);
  EXPECT_EQ(high_nibble(carrier_byte(element)), 15);
  EXPECT_EQ(element >> 4, -1);  // what shifting the carrier itself gives
}

TEST(NibbleOrder, GgufBlocksAreSplitInHalves) {  // pit3
  for (const std::uint64_t block_elems : {std::uint64_t{32}, std::uint64_t{16}}) {
    for (std::uint64_t j = 0; j < block_elems / 2; ++j) {
      const NibblePosition low = nibble_position(NibbleOrder::split_half, j, block_elems);
      const NibblePosition high =
          nibble_position(NibbleOrder::split_half, j + block_elems / 2, block_elems);
      EXPECT_EQ(low.byte, j);
      EXPECT_EQ(low.shift, 0U);
      EXPECT_EQ(high.byte, j);
      EXPECT_EQ(high.shift, 4U);
    }
  }
}

TEST(NibbleOrder, SplitHalfBlocksFollowEachOtherInARow) {  // pit3
  // Element 37 of a row is element 5 of its third block of 16: low nibble of byte 16 + 5.
  EXPECT_EQ(nibble_position(NibbleOrder::split_half, 37, 16).byte, 21U);
  EXPECT_EQ(nibble_position(NibbleOrder::split_half, 37, 16).shift, 0U);
  // In blocks of 32 it is element 5 of the second: the same byte; element 53 is its high nibble.
  EXPECT_EQ(nibble_position(NibbleOrder::split_half, 37, 32).byte, 21U);
  EXPECT_EQ(nibble_position(NibbleOrder::split_half, 53, 32).byte, 21U);
  EXPECT_EQ(nibble_position(NibbleOrder::split_half, 53, 32).shift, 4U);
}

TEST(NibbleOrder, WriteChangesOneNibbleOnly) {
  for (const NibbleOrder order : kBoth) {
    for (std::uint64_t k = 0; k < 32; ++k) {
      std::vector<std::uint8_t> packed(16, 0xA5);
      write_nibble(packed.data(), k, order, 32, 0xC);
      for (std::uint64_t other = 0; other < 32; ++other) {
        const std::uint8_t before =
            nibble_position(order, other, 32).shift == 0 ? std::uint8_t{0x5} : std::uint8_t{0xA};
        EXPECT_EQ(read_nibble(packed.data(), other, order, 32), other == k ? 0xC : before);
      }
    }
  }
}

TEST(NibbleOrder, EveryNibbleHasItsOwnPlace) {
  for (const NibbleOrder order : kBoth) {
    std::vector<int> seen(128, 0);
    for (std::uint64_t k = 0; k < 128; ++k) {
      const NibblePosition at = nibble_position(order, k, 32);
      ++seen.at(at.byte * 2 + at.shift / 4);
    }
    EXPECT_EQ(seen, std::vector<int>(128, 1));
  }
}

TEST(NibbleOrder, ReorderingKeepsEveryElementAndComesBack) {  // pit3
  for (const BlockFormat format : {BlockFormat::mxfp4, BlockFormat::nvfp4}) {
    const std::uint64_t block = scale_group(format);
    const auto split = numbered_row(block, NibbleOrder::split_half, block);
    std::vector<std::uint8_t> even(block / 2, 0xFF);
    reorder_block(split.data(), NibbleOrder::split_half, even.data(), NibbleOrder::even_low, block);
    EXPECT_EQ(even, numbered_row(block, NibbleOrder::even_low, block));

    std::vector<std::uint8_t> back(block / 2, 0xFF);
    reorder_block(even.data(), NibbleOrder::even_low, back.data(), NibbleOrder::split_half, block);
    EXPECT_EQ(back, split);
  }
}

TEST(NibbleOrder, ReadingTheOtherOrderGivesOtherElements) {
  const std::uint8_t packed[2] = {0x21, 0x43};
  const std::uint8_t split[4] = {1, 3, 2, 4};  // 0.5, 1.5, 1.0, 2.0
  for (std::uint64_t k = 0; k < 4; ++k) {
    EXPECT_EQ(read_nibble(packed, k, NibbleOrder::split_half, 4), split[k]);
  }
}

TEST(NibbleOrder, AByteTransposeKeepsPairsAlongK) {  // B11
  // [rows, K/2] bytes stored as [K/2, rows]: element (row, k) is nibble k % 2 of byte (k/2, row).
  constexpr std::uint64_t kRows = 3;
  constexpr std::uint64_t kRowElems = 8;
  const auto packed = numbered_row(kRows * kRowElems, NibbleOrder::even_low, kRowElems);
  std::vector<std::uint8_t> transposed(packed.size());
  for (std::uint64_t row = 0; row < kRows; ++row) {
    for (std::uint64_t b = 0; b < kRowElems / 2; ++b) {
      transposed[b * kRows + row] = packed[row * kRowElems / 2 + b];
    }
  }
  for (std::uint64_t row = 0; row < kRows; ++row) {
    for (std::uint64_t k = 0; k < kRowElems; ++k) {
      const std::uint8_t byte = transposed[k / 2 * kRows + row];
      EXPECT_EQ(k % 2 == 0 ? low_nibble(byte) : high_nibble(byte),
                read_nibble(packed.data(), row * kRowElems + k, NibbleOrder::even_low, kRowElems));
    }
  }
  // A transpose of nibbles puts two rows into one byte: another array.
  std::vector<std::uint8_t> nibbles_transposed(packed.size());
  for (std::uint64_t row = 0; row < kRows; ++row) {
    for (std::uint64_t k = 0; k < kRowElems; ++k) {
      write_nibble(nibbles_transposed.data(), k * kRows + row, NibbleOrder::even_low, 2,
                   read_nibble(packed.data(), row * kRowElems + k, NibbleOrder::even_low, 2));
    }
  }
  EXPECT_NE(nibbles_transposed, transposed);
}

}  // namespace
}  // namespace moxie

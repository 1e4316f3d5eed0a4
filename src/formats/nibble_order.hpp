// SPDX-License-Identifier: Apache-2.0
// Where the two codes of a byte sit along K: even index low (safetensors) or split halves (GGUF).
#pragma once

#include <cstdint>

#include "base/host_device.hpp"

namespace moxie {

enum class NibbleOrder : std::uint8_t {
  even_low,  // byte b holds elements 2b (low) and 2b+1 (high); every safetensors container, CUTLASS
  split_half,  // byte b of a block holds elements b (low) and b + block/2 (high); GGUF
};

// Byte and shift of one code in a row.
struct NibblePosition {
  std::uint64_t byte = 0;
  unsigned shift = 0;  // 0 or 4
};

// Position of element k. `block_elems` is the length over which split_half splits, the scale group
// of the format: 32 for MXFP4, 16 for NVFP4. Blocks follow each other; even_low does not see them.
MOXIE_HD constexpr NibblePosition nibble_position(NibbleOrder order, std::uint64_t k,
                                                  std::uint64_t block_elems) {
  if (order == NibbleOrder::even_low) return {k / 2, (k & 1) != 0 ? 4U : 0U};

  const std::uint64_t half = block_elems / 2;
  const std::uint64_t in_block = k % block_elems;
  return {(k / block_elems) * half + in_block % half, in_block >= half ? 4U : 0U};
}

MOXIE_HD constexpr std::uint8_t low_nibble(std::uint8_t byte) { return byte & 0xF; }
MOXIE_HD constexpr std::uint8_t high_nibble(std::uint8_t byte) {
  return static_cast<std::uint8_t>(byte >> 4);
}

// The byte behind an I8 tensor element. The int8 is a carrier only: shifting it would drag its sign
// into the high nibble.
MOXIE_HD constexpr std::uint8_t carrier_byte(std::int8_t element) {
  return static_cast<std::uint8_t>(element);
}

// Code of element k, 0..15.
MOXIE_HD constexpr std::uint8_t read_nibble(const std::uint8_t* packed, std::uint64_t k,
                                            NibbleOrder order, std::uint64_t block_elems) {
  const NibblePosition at = nibble_position(order, k, block_elems);
  return static_cast<std::uint8_t>((packed[at.byte] >> at.shift) & 0xF);
}

// Overwrites the code of element k and leaves its neighbour in the byte.
MOXIE_HD constexpr void write_nibble(std::uint8_t* packed, std::uint64_t k, NibbleOrder order,
                                     std::uint64_t block_elems, std::uint8_t code) {
  const NibblePosition at = nibble_position(order, k, block_elems);
  const unsigned kept = packed[at.byte] & (0xF0U >> at.shift);
  packed[at.byte] = static_cast<std::uint8_t>(kept | ((code & 0xFU) << at.shift));
}

// One block in the other order; `from` and `to` may be equal, `src` and `dst` must not overlap.
MOXIE_HD constexpr void reorder_block(const std::uint8_t* src,  // [block_elems / 2]
                                      NibbleOrder from,
                                      std::uint8_t* dst,  // [block_elems / 2]
                                      NibbleOrder to, std::uint64_t block_elems) {
  for (std::uint64_t k = 0; k < block_elems; ++k) {
    write_nibble(dst, k, to, block_elems, read_nibble(src, k, from, block_elems));
  }
}

}  // namespace moxie

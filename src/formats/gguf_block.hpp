// SPDX-License-Identifier: Apache-2.0
// How GGUF joins scales and codes: blocks of a few groups, their scales first, then their codes
// with split halves. Source: the block types MXFP4 (39) and NVFP4 (40) of GGUF.
#pragma once

#include <cstdint>

#include "formats/block_format.hpp"

namespace moxie {

struct GgufBlock {
  std::uint64_t scales = 1;  // and groups
  std::uint64_t group_elems = 32;

  [[nodiscard]] constexpr std::uint64_t group_bytes() const { return group_elems / 2; }
  [[nodiscard]] constexpr std::uint64_t elems() const { return scales * group_elems; }
  [[nodiscard]] constexpr std::uint64_t bytes() const { return scales * (1 + group_bytes()); }
};

constexpr GgufBlock gguf_block(BlockFormat format) {
  return {.scales = format == BlockFormat::mxfp4 ? 1U : 4U, .group_elems = scale_group(format)};
}
static_assert(gguf_block(BlockFormat::mxfp4).bytes() == 17 &&
              gguf_block(BlockFormat::nvfp4).bytes() == 36);

}  // namespace moxie

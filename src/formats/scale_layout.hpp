// SPDX-License-Identifier: Apache-2.0
// Where the scale byte of (row, group) lies in memory, per layout a kernel reads, and the inverse.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>

#include "base/checked.hpp"
#include "base/host_device.hpp"
#include "moxie/types.hpp"

namespace moxie {

// A layout maps a [rows, groups] matrix of scale bytes into `size_bytes()` bytes; `offset` is
// defined for row < rows and group < groups. All arithmetic is 64-bit: one tensor of all experts
// passes 2^31 bytes. `coordinate` is the inverse over the whole buffer and has no value for a
// padding byte or an offset outside the buffer. `offset` runs on the device; `coordinate` is for
// the host.
//
// Adding rows never moves earlier rows, so a weight's layout does not depend on the token count.

struct ScaleCoordinate {
  std::uint64_t row = 0;
  std::uint64_t group = 0;  // index of the scale group along K

  friend constexpr bool operator==(const ScaleCoordinate&, const ScaleCoordinate&) = default;
};

// Row-major, no padding: the order of every checkpoint, and the canonical one in memory.
struct LinearScaleLayout {
  std::uint64_t rows = 0;
  ScaleGroups groups;

  MOXIE_HD constexpr std::uint64_t size_bytes() const { return rows * groups.value; }

  MOXIE_HD constexpr std::uint64_t offset(std::uint64_t row, std::uint64_t group) const {
    return row * groups.value + group;
  }

  constexpr std::optional<ScaleCoordinate> coordinate(std::uint64_t offset_bytes) const {
    if (offset_bytes >= size_bytes()) return std::nullopt;
    return ScaleCoordinate{offset_bytes / groups.value, offset_bytes % groups.value};
  }
};

// Tiles of 128 rows x 4 groups, 512 bytes each; the tiles of a row block follow each other along K,
// then come the next 128 rows. Inside a tile, line r of 16 bytes holds rows r, r+32, r+64, r+96,
// four groups each. Source form of the block-scaled tensor-core paths of SM100 and SM120.
struct ScaleLayout128x4 {
  std::uint64_t rows = 0;
  ScaleGroups groups;

  MOXIE_HD constexpr std::uint64_t k_tiles() const { return divide_up(groups.value, 4); }

  MOXIE_HD constexpr std::uint64_t size_bytes() const {
    return round_up(rows, 128) * round_up(groups.value, 4);
  }

  MOXIE_HD constexpr std::uint64_t offset(std::uint64_t row, std::uint64_t group) const {
    const std::uint64_t tile = (row / 128) * k_tiles() + group / 4;
    return tile * 512 + (row % 32) * 16 + (row % 128) / 32 * 4 + group % 4;
  }

  constexpr std::optional<ScaleCoordinate> coordinate(std::uint64_t offset_bytes) const {
    if (offset_bytes >= size_bytes()) return std::nullopt;
    const std::uint64_t tile = offset_bytes / 512;
    const std::uint64_t row_in_tile = (offset_bytes / 16) % 32 + (offset_bytes / 4) % 4 * 32;
    const ScaleCoordinate at{tile / k_tiles() * 128 + row_in_tile,
                             tile % k_tiles() * 4 + offset_bytes % 4};
    if (at.row >= rows || at.group >= groups.value) return std::nullopt;
    return at;
  }
};

// Tiles of 8 rows x 4 groups, 32 bytes each, row-major inside, K first: the small-batch variant.
// Not interchangeable with 128x4.
struct ScaleLayout8x4 {
  std::uint64_t rows = 0;
  ScaleGroups groups;

  MOXIE_HD constexpr std::uint64_t k_tiles() const { return divide_up(groups.value, 4); }

  MOXIE_HD constexpr std::uint64_t size_bytes() const {
    return round_up(rows, 8) * round_up(groups.value, 4);
  }

  MOXIE_HD constexpr std::uint64_t offset(std::uint64_t row, std::uint64_t group) const {
    const std::uint64_t tile = (row / 8) * k_tiles() + group / 4;
    return tile * 32 + (row % 8) * 4 + group % 4;
  }

  constexpr std::optional<ScaleCoordinate> coordinate(std::uint64_t offset_bytes) const {
    if (offset_bytes >= size_bytes()) return std::nullopt;
    const std::uint64_t tile = offset_bytes / 32;
    const ScaleCoordinate at{tile / k_tiles() * 8 + (offset_bytes / 4) % 8,
                             tile % k_tiles() * 4 + offset_bytes % 4};
    if (at.row >= rows || at.group >= groups.value) return std::nullopt;
    return at;
  }
};

// DeepGEMM: four neighbours along K form one little-endian 32-bit word (group 4*kp + j in byte j);
// the words are stored rows-first, word (row, kp) at kp * aligned_rows + row. Rows pad to 4, so
// that a column is a multiple of the 16 bytes TMA wants. Blocks of rows are thus adjacent within
// one kp, while 128x4 puts all kp of 128 rows together.
struct DeepGemmScaleLayout {
  std::uint64_t rows = 0;
  ScaleGroups groups;

  MOXIE_HD constexpr std::uint64_t aligned_rows() const { return round_up(rows, 4); }

  MOXIE_HD constexpr std::uint64_t size_bytes() const {
    return aligned_rows() * divide_up(groups.value, 4) * 4;
  }

  MOXIE_HD constexpr std::uint64_t offset(std::uint64_t row, std::uint64_t group) const {
    return (group / 4 * aligned_rows() + row) * 4 + group % 4;
  }

  constexpr std::optional<ScaleCoordinate> coordinate(std::uint64_t offset_bytes) const {
    if (offset_bytes >= size_bytes()) return std::nullopt;
    const std::uint64_t word = offset_bytes / 4;
    const ScaleCoordinate at{word % aligned_rows(), word / aligned_rows() * 4 + offset_bytes % 4};
    if (at.row >= rows || at.group >= groups.value) return std::nullopt;
    return at;
  }
};

// Carries linear scales into `layout`. The destination is zeroed first: kernels read the padding,
// and 0x00 is finite in both formats (UE4M3 +0, E8M0 2^-127) where a stale 0xFF would be NaN, which
// times a zero code is NaN.
template <class Layout>
void tile_scales(const Layout& layout,
                 const std::uint8_t* linear_src,  // [rows, groups]
                 std::uint8_t* dst) {             // [size_bytes()]
  if (layout.size_bytes() == 0) return;
  std::memset(dst, 0, layout.size_bytes());
  const LinearScaleLayout linear{layout.rows, layout.groups};
  for (std::uint64_t row = 0; row < layout.rows; ++row) {
    for (std::uint64_t group = 0; group < layout.groups.value; ++group) {
      dst[layout.offset(row, group)] = linear_src[linear.offset(row, group)];
    }
  }
}

// The inverse of tile_scales. Linear scales have no padding: every destination byte is written.
template <class Layout>
void untile_scales(const Layout& layout,
                   const std::uint8_t* tiled_src,  // [size_bytes()]
                   std::uint8_t* linear_dst) {     // [rows, groups]
  const LinearScaleLayout linear{layout.rows, layout.groups};
  for (std::uint64_t row = 0; row < layout.rows; ++row) {
    for (std::uint64_t group = 0; group < layout.groups.value; ++group) {
      linear_dst[linear.offset(row, group)] = tiled_src[layout.offset(row, group)];
    }
  }
}

}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// Band after band, through a copy of it.
#include "pack/bands.hpp"

#include <cstring>
#include <vector>

#include "base/checked.hpp"
#include "formats/band_order.hpp"
#include "pack/segment_source.hpp"

namespace moxie {

namespace {

bool has_bands(LayoutKind kind, const PackedSegment& segment) {
  const Part part = source_of(segment.segment).part;
  return kind == LayoutKind::cpu_tiles && (part == Part::codes || part == Part::block_scales);
}

void to_band(const PackedSegment& segment, const std::byte* from, std::uint64_t stride,
             std::byte* to) {
  const bool codes = source_of(segment.segment).part == Part::codes;
  codes ? codes_to_band(from, stride, segment.row_bytes, to)
        : scales_to_band(from, stride, segment.row_bytes, to);
}

// Calls reorder(from, to) for the copy of every band and its place.
template <class Reorder>
void for_bands(const PackedSegment& segment, std::span<std::byte> rows, const Reorder& reorder) {
  const std::uint64_t band_bytes = kBandRows * segment.row_bytes;
  if (band_bytes == 0) return;
  MOXIE_CHECK(rows.size() % band_bytes == 0, "rows are moved in whole bands");
  std::vector<std::byte> copy(band_bytes);
  for (std::uint64_t at = 0; at < rows.size(); at += band_bytes) {
    std::memcpy(copy.data(), rows.data() + at, band_bytes);
    reorder(copy.data(), rows.data() + at);
  }
}

}  // namespace

std::uint64_t band_rows(LayoutKind kind, const PackedSegment& segment) {
  return has_bands(kind, segment) ? kBandRows : 1;
}

void arrange_rows(LayoutKind kind, const PackedSegment& segment, std::span<std::byte> rows) {
  // In place: a band is copied before it is written.
  if (has_bands(kind, segment)) place_rows(kind, segment, rows.data(), segment.row_bytes, rows);
}

void restore_rows(LayoutKind kind, const PackedSegment& segment, std::span<std::byte> rows) {
  if (!has_bands(kind, segment)) return;
  const bool codes = source_of(segment.segment).part == Part::codes;
  for_bands(segment, rows, [&](const std::byte* from, std::byte* to) {
    codes ? codes_from_band(from, segment.row_bytes, to)
          : scales_from_band(from, segment.row_bytes, to);
  });
}

void place_rows(LayoutKind kind, const PackedSegment& segment, const std::byte* from,
                std::uint64_t stride, std::span<std::byte> rows) {
  if (rows.empty()) return;
  if (!has_bands(kind, segment)) {
    const std::uint64_t run = stride == segment.row_bytes ? rows.size() : segment.row_bytes;
    for (std::uint64_t at = 0; at < rows.size(); at += run, from += stride)
      std::memcpy(rows.data() + at, from, run);
    return;
  }
  const std::uint64_t band_bytes = kBandRows * segment.row_bytes;
  MOXIE_CHECK(rows.size() % band_bytes == 0, "rows are placed in whole bands");
  // Through a copy of the band: memory is read row after row, as it likes it.
  std::vector<std::byte> copy(band_bytes);
  for (std::uint64_t at = 0; at < rows.size(); at += band_bytes) {
    for (std::uint64_t row = 0; row < kBandRows; ++row, from += stride)
      std::memcpy(copy.data() + row * segment.row_bytes, from, segment.row_bytes);
    to_band(segment, copy.data(), segment.row_bytes, rows.data() + at);
  }
}

RowByte row_byte_of(LayoutKind kind, const PackedSegment& segment, std::uint64_t at) {
  if (!has_bands(kind, segment)) return {at / segment.row_bytes, at % segment.row_bytes};
  const std::uint64_t band_bytes = kBandRows * segment.row_bytes;
  return {at / band_bytes * kBandRows + at % kBandRows, at % band_bytes / kBandRows};
}

}  // namespace moxie

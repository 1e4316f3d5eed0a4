// SPDX-License-Identifier: Apache-2.0
// Where each packed segment comes from and along which axis it is cut.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/checked.hpp"
#include "moxie/model.hpp"
#include "moxie/plan.hpp"
#include "pack/tensor_part.hpp"

namespace moxie {

enum class Part : std::uint8_t { codes, block_scales, dequant_mul, act_dequant_mul, bias };

struct SegmentSource {
  ProjectionKind projection;
  Part part;

  // Gate and up are cut by rows, down by columns: packed bytes for codes, scale groups for scales;
  // its bias is not cut.
  [[nodiscard]] constexpr bool is_scalar() const {
    return part == Part::dequant_mul || part == Part::act_dequant_mul;
  }
  [[nodiscard]] constexpr bool is_cut_by_rows() const { return projection != ProjectionKind::down; }
};

// Segments are numbered part by part, projection by projection.
constexpr SegmentSource source_of(Segment segment) {
  const auto number = static_cast<unsigned>(segment);
  return {static_cast<ProjectionKind>(number % 3), static_cast<Part>(number / 3)};
}

inline const RowsView& rows_of(const ExpertTensors& expert, SegmentSource source) {
  const Projection& projection = expert[source.projection];
  return source.part == Part::codes  ? projection.codes
         : source.part == Part::bias ? projection.bias
                                     : projection.block_scales;
}

// Where rows [first, first + rows) of a view are stored, from the tensor's begin. Rows of two views
// may take turns, so the last one ends with the tensor.
inline TensorRange stored_range(const RowsView& view, std::uint64_t first, std::uint64_t rows) {
  const std::uint64_t offset = view.offset + first * view.row_stride;
  MOXIE_CHECK(offset <= view.tensor->bytes, "stored rows lie inside their tensor");
  return {offset, std::min(rows * view.row_stride, view.tensor->bytes - offset)};
}

inline ScalarRef scalar_of(const ExpertTensors& expert, SegmentSource source) {
  const Projection& projection = expert[source.projection];
  return source.part == Part::dequant_mul ? projection.dequant_mul : projection.act_dequant_mul;
}

// A rank's part of one segment as plain numbers: rows and bytes per row of the source, for code
// that addresses memory. The rest of the packed segment is tail.
struct SegmentCut {
  std::uint64_t first_row = 0;
  std::uint64_t rows = 0;
  std::uint64_t first_byte = 0;  // inside a source row
  std::uint64_t row_bytes = 0;
};

// `source_rows` and `source_row_bytes` are the whole tensor's.
constexpr SegmentCut cut_of(SegmentSource source, const RankPlan& rank, std::uint64_t source_rows,
                            std::uint64_t source_row_bytes) {
  const InterSlice& slice = rank.slice;
  if (source.is_cut_by_rows())
    return {slice.rows.src.value, slice.rows.count.value, 0, source_row_bytes};
  if (source.part == Part::bias)
    return {0, rank.tp_rank == 0 ? source_rows : 0, 0, source_row_bytes};
  if (source.part == Part::codes)
    return {0, source_rows, slice.bytes.src.value, slice.bytes.count.value};
  return {0, source_rows, slice.groups.src.value, slice.groups.count.value};  // one byte per group
}

// The same, after checking that the part lies inside the source and that the segment has exactly
// the planned room. Differences, not sums: a length near the end of 64 bits must not wrap into
// range.
inline SegmentCut checked_cut(const PackedSegment& segment, SegmentSource source,
                              const RankPlan& rank, std::uint64_t source_rows,
                              std::uint64_t source_row_bytes) {
  const InterSlice& slice = rank.slice;
  const SegmentCut cut = cut_of(source, rank, source_rows, source_row_bytes);
  MOXIE_CHECK(cut.first_row <= source_rows && cut.rows <= source_rows - cut.first_row &&
                  cut.first_byte <= source_row_bytes &&
                  cut.row_bytes <= source_row_bytes - cut.first_byte,
              "a planned range lies inside its tensor");
  const std::uint64_t room = source.is_cut_by_rows()      ? slice.rows.dst.value
                             : source.part == Part::codes ? slice.bytes.dst.value
                             : source.part == Part::bias  ? source_row_bytes
                                                          : slice.groups.dst.value;
  MOXIE_CHECK(source.is_cut_by_rows()
                  ? segment.rows == room && segment.row_bytes == source_row_bytes
                  : segment.rows == source_rows && segment.row_bytes == room,
              "a segment has the room that the plan gives its tensor");
  MOXIE_CHECK(cut.rows <= segment.rows && cut.row_bytes <= segment.row_bytes,
              "a planned range fits its segment");
  return cut;
}

}  // namespace moxie

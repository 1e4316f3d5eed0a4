// SPDX-License-Identifier: Apache-2.0
// One expert into one blob, and back.
#include "moxie/pack.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "base/checked.hpp"
#include "formats/block_format.hpp"
#include "pack/bands.hpp"
#include "pack/expert_parts.hpp"
#include "pack/scale_check.hpp"
#include "pack/segment_source.hpp"

namespace moxie {

namespace {

// An absent scalar is NaN in the blob: whoever uses it by mistake gets NaN, not a plausible number.
constexpr float kAbsent = std::numeric_limits<float>::quiet_NaN();

// A segment's bytes inside a blob.
template <class Byte>
std::span<Byte> bytes_of(std::span<Byte> blob, const PackedSegment& segment) {
  MOXIE_CHECK(segment.offset <= blob.size() && segment.bytes() <= blob.size() - segment.offset,
              "a segment lies inside the blob");
  return blob.subspan(segment.offset, segment.bytes());
}

void fill_zero(std::span<std::byte> bytes) { std::ranges::fill(bytes, std::byte{0}); }

void check_scalar_segment(const PackedSegment& segment) {
  MOXIE_CHECK(segment.rows == 1 && segment.row_bytes == sizeof(float),
              "a scalar's segment holds one f32");
}

// Copies one expert's segments; knows the place of each for messages.
class ExpertPacker {
 public:
  ExpertPacker(const MoeModel& model, const ShardPlan& plan, const RankPlan& rank,
               const LayerExperts& layer, std::uint64_t expert, const SourceBytes& source)
      : model_(model), plan_(plan), rank_(rank), layer_(layer), expert_(expert), source_(source) {}

  // Writes what lies in `part` and nothing else.
  void pack(BlobPart part, std::span<std::byte> blob) const {
    std::uint64_t written = 0;
    for (const PackedSegment& segment : plan_.layout.segments) {
      MOXIE_CHECK(written <= segment.offset, "segments lie in the order of their offsets");
      fill_zero(within(part, {written, segment.offset}, blob));
      written = segment.offset + bytes_of(blob, segment).size();
      const auto out = within(part, {segment.offset, written}, blob);
      if (out.empty() && segment.bytes() > 0) continue;
      const SegmentSource source = source_of(segment.segment);
      if (source.is_scalar()) {
        check_scalar_segment(segment);
        pack_scalar(source, out);
      } else {
        pack_rows(source, segment, std::max(part.begin, segment.offset) - segment.offset, out);
      }
    }
    fill_zero(within(part, {written, blob.size()}, blob));
  }

 private:
  // The bytes of a range that a part holds.
  static std::span<std::byte> within(BlobPart part, BlobPart range, std::span<std::byte> blob) {
    const std::uint64_t begin = std::max(part.begin, range.begin);
    const std::uint64_t end = std::min(part.end, range.end);
    return begin < end ? blob.subspan(begin, end - begin) : std::span<std::byte>();
  }

  [[nodiscard]] const ExpertTensors& tensors() const { return layer_.experts[expert_]; }

  // `out` holds rows of the segment, those from byte `at` of it on.
  void pack_rows(SegmentSource source, const PackedSegment& segment, std::uint64_t at,
                 std::span<std::byte> out) const {
    const RowsView& view = rows_of(tensors(), source);
    const SegmentCut whole = checked_cut(segment, source, rank_, view.rows, view.row_bytes);
    const std::uint64_t band = band_rows(plan_.layout.kind, segment) * segment.row_bytes;
    MOXIE_CHECK(out.empty() || (at % band == 0 && out.size() % band == 0),
                "a part holds whole rows, and bands");
    const std::uint64_t first = out.empty() ? 0 : at / segment.row_bytes;
    const std::uint64_t rows = out.empty() ? 0 : out.size() / segment.row_bytes;
    SegmentCut cut = whole;
    cut.first_row += std::min(first, whole.rows);
    cut.rows = std::min(rows, whole.rows - std::min(first, whole.rows));
    const bool complete = cut.rows == rows && cut.row_bytes == segment.row_bytes;
    if (!complete) fill_zero(out);
    if (cut.row_bytes == 0 || cut.rows == 0) return;
    const TensorRange range = stored_range(view, cut.first_row, cut.rows);
    const std::byte* stored = source_.find(*view.tensor, range.offset, range.bytes);
    if (complete && view.packing == RowPacking::plain) {
      // Every byte is written once, where it stays.
      place_rows(plan_.layout.kind, segment, stored + cut.first_byte, view.row_stride, out);
    } else {
      for (std::uint64_t row = 0; row < cut.rows; ++row) {
        read_row(stored + row * view.row_stride, view, cut.first_byte,
                 out.subspan(row * segment.row_bytes, cut.row_bytes));
      }
      arrange_rows(plan_.layout.kind, segment, out);
    }
    if (source.part == Part::block_scales) check_scales(view, cut, segment, out);
    if (source.part == Part::bias) {
      check_biases(out, cut.first_row, place_of(model_.checkpoint, layer_, expert_, *view.tensor));
    }
  }

  // The tail is zero, which is a legal code, so all of `out` can be searched at once. It is
  // arranged already.
  void check_scales(const RowsView& view, const SegmentCut& cut, const PackedSegment& segment,
                    std::span<const std::byte> out) const {
    const std::size_t bad = first_bad_scale(layer_.format, out);
    if (bad == out.size()) return;
    const RowByte at = row_byte_of(plan_.layout.kind, segment, bad);
    refuse_scale(model_.checkpoint, layer_, expert_, *view.tensor, cut.first_row + at.row,
                 cut.first_byte + at.byte, out[bad]);
  }

  void pack_scalar(SegmentSource source, std::span<std::byte> out) const {
    const ScalarRef scalar = scalar_of(tensors(), source);
    const bool consumed = source.part == Part::dequant_mul || consumes_act_scales(plan_);
    if (consumed) require_scalar(source, scalar);
    float value = kAbsent;
    if (scalar.present()) value = scalar.multiplier(stored_scalar(model_.checkpoint, scalar));
    std::memcpy(out.data(), &value, sizeof value);
  }

  void require_scalar(SegmentSource source, const ScalarRef& scalar) const {
    const Checkpoint& checkpoint = model_.checkpoint;
    if (source.part == Part::dequant_mul) {
      read_global(checkpoint, layer_, expert_, source.projection, scalar);
      return;
    }
    if (!scalar.present()) {
      throw Error(
          ErrorCode::input,
          {.code = "MOXIE-M006",
           .message = std::string(name_of(source.projection)) +
                      " has no activation scale, which act_format " +
                      std::string(name_of(plan_.act_format)) + " consumes",
           .where = {.file = checkpoint.path().string(), .layer = layer_.layer, .expert = expert_},
           .expected = "an f32 scalar",
           .got = "none",
           .hint = "use --act-scale warmup, row or dynamic, or act_format bf16"});
    }
    read_act_scale(checkpoint, layer_, expert_, source.projection, scalar);
  }

  const MoeModel& model_;
  const ShardPlan& plan_;
  const RankPlan& rank_;
  const LayerExperts& layer_;
  std::uint64_t expert_;
  const SourceBytes& source_;
};

// Rows and bytes per row of a whole source tensor, as the plan's widths give them.
SegmentCut whole_of(const ShardPlan& plan, SegmentSource source) {
  if (source.is_scalar()) return {.rows = 1, .row_bytes = sizeof(float)};
  const Elems rows = source.is_cut_by_rows() ? plan.inter().original : Elems{plan.hidden};
  if (source.part == Part::bias) return {.rows = rows.value, .row_bytes = sizeof(float)};
  const Elems columns = source.is_cut_by_rows() ? Elems{plan.hidden} : plan.inter().original;
  const std::uint64_t bytes = source.part == Part::codes
                                  ? to_packed_bytes(columns).value
                                  : to_scale_groups(columns, plan.format).value;
  return {.rows = rows.value, .row_bytes = bytes};
}

}  // namespace

std::vector<BlobPart> parts_of(const PackedLayout& layout, std::uint64_t part_bytes) {
  // Down to where a row begins, or a band of rows. Between segments every byte will do.
  const auto row_begin = [&](std::uint64_t at) {
    for (const PackedSegment& segment : layout.segments) {
      if (at >= segment.offset && at - segment.offset < segment.bytes())
        return at - (at - segment.offset) % (band_rows(layout.kind, segment) * segment.row_bytes);
    }
    return at;
  };
  const std::uint64_t wanted =
      std::max<std::uint64_t>(1, divide_up(layout.stride, std::max<std::uint64_t>(1, part_bytes)));
  std::vector<BlobPart> parts;
  std::uint64_t begin = 0;
  for (std::uint64_t i = 1; i <= wanted; ++i) {
    const std::uint64_t end = i == wanted ? layout.stride : row_begin(layout.stride * i / wanted);
    if (end <= begin && i < wanted) continue;  // a row that is longer than a part
    parts.push_back({begin, end});
    begin = end;
  }
  return parts;
}

void pack_expert(const MoeModel& model, const ShardPlan& plan, const RankPlan& rank,
                 const LayerExperts& layer, std::uint64_t expert, std::span<std::byte> blob) {
  pack_expert_part(model, plan, rank, layer, expert, {0, plan.layout.stride},
                   SourceBytes(model.checkpoint), blob);
}

void pack_expert_part(const MoeModel& model, const ShardPlan& plan, const RankPlan& rank,
                      const LayerExperts& layer, std::uint64_t expert, BlobPart part,
                      const SourceBytes& source, std::span<std::byte> blob) {
  MOXIE_CHECK(blob.size() == plan.layout.stride, "a blob holds one stride");
  MOXIE_CHECK(part.begin <= part.end && part.end <= blob.size(), "a part lies inside its blob");
  MOXIE_CHECK(expert < layer.experts.size(), "an expert id lies inside the layer");
  if (!layer.problems.empty()) throw Error::of(ErrorCode::input, layer.problems);
  if (layer.format != plan.format) {
    throw Error(ErrorCode::unsupported, {.code = "MOXIE-M009",
                                         .message = "the layer is in another format than the plan",
                                         .where = {.layer = layer.layer},
                                         .expected = std::string(name_of(plan.format)),
                                         .got = std::string(name_of(layer.format))});
  }
  ExpertPacker(model, plan, rank, layer, expert, source).pack(part, blob);
}

UnpackedExpert make_unpacked(const ShardPlan& plan, std::byte fill) {
  UnpackedExpert unpacked;
  unpacked.tensors.resize(static_cast<std::size_t>(Segment::down_bias) + 1);
  for (const PackedSegment& segment : plan.layout.segments) {
    const SegmentCut whole = whole_of(plan, source_of(segment.segment));
    unpacked.tensors[static_cast<std::size_t>(segment.segment)].assign(whole.rows * whole.row_bytes,
                                                                       fill);
  }
  return unpacked;
}

void unpack_expert(const ShardPlan& plan, const RankPlan& rank, std::span<const std::byte> blob,
                   UnpackedExpert& out) {
  MOXIE_CHECK(blob.size() == plan.layout.stride && plan.layout.expert_bytes <= blob.size(),
              "a blob holds one stride");
  const auto refuse_tail = [&](std::string tensor, std::uint64_t row, std::uint64_t byte) {
    throw Error(ErrorCode::verdict, {.code = "MOXIE-V003",
                                     .message = "tail is not zero at row " + std::to_string(row) +
                                                ", byte " + std::to_string(byte),
                                     .where = {.tensor = std::move(tensor), .rank = rank.rank}});
  };
  const auto non_zero = [](std::span<const std::byte> bytes) {
    return static_cast<std::uint64_t>(
        std::ranges::find_if(bytes, [](std::byte b) { return b != std::byte{0}; }) - bytes.begin());
  };
  for (const PackedSegment& segment : plan.layout.segments) {
    const SegmentSource source = source_of(segment.segment);
    const SegmentCut whole = whole_of(plan, source);
    if (source.is_scalar()) check_scalar_segment(segment);
    const SegmentCut cut = source.is_scalar()
                               ? whole
                               : checked_cut(segment, source, rank, whole.rows, whole.row_bytes);
    const auto index = static_cast<std::size_t>(segment.segment);
    MOXIE_CHECK(
        index < out.tensors.size() && out.tensors[index].size() == whole.rows * whole.row_bytes,
        "buffers come from make_unpacked");
    std::vector<std::byte>& tensor = out.tensors[index];
    const auto packed = bytes_of(blob, segment);
    std::vector<std::byte> bytes(packed.begin(), packed.end());
    restore_rows(plan.layout.kind, segment, bytes);
    for (std::uint64_t row = 0; row < segment.rows; ++row) {
      const auto from =
          std::span(std::as_const(bytes)).subspan(row * segment.row_bytes, segment.row_bytes);
      const std::uint64_t real = row < cut.rows ? cut.row_bytes : 0;
      if (real > 0) {
        std::memcpy(tensor.data() + (cut.first_row + row) * whole.row_bytes + cut.first_byte,
                    from.data(), real);
      }
      const auto tail = from.subspan(real);
      if (const std::uint64_t at = non_zero(tail); at != tail.size()) {
        refuse_tail(std::string(name_of(segment.segment)), row, real + at);
      }
    }
  }
  const auto rest = blob.subspan(plan.layout.expert_bytes);
  if (const std::uint64_t at = non_zero(rest); at != rest.size())
    refuse_tail("blob", 0, plan.layout.expert_bytes + at);
}

}  // namespace moxie

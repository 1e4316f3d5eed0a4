// SPDX-License-Identifier: Apache-2.0
// Real parts against the source, tails against zero, row by row.
#include "verify/expert_comparison.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <span>
#include <string>
#include <utility>

#include "pack/bands.hpp"
#include "pack/logical_tensor.hpp"
#include "pack/packed_names.hpp"
#include "pack/scale_check.hpp"
#include "pack/segment_source.hpp"
#include "verify/byte_search.hpp"

namespace moxie {

namespace {

// Where one rank holds one segment of one expert.
struct PackedPart {
  const RankPlan* rank = nullptr;
  const PackedRank* packed = nullptr;  // nullptr when the rank can not be read
  const TensorInfo* tensor = nullptr;
  std::span<const std::byte> bytes;    // rows * row_bytes of the segment
  std::vector<std::byte> rewritten{};  // where the file holds narrower biases, or bands of rows
};

std::size_t first_non_zero(std::span<const std::byte> bytes) {
  return static_cast<std::size_t>(
      std::ranges::find_if(bytes, [](std::byte b) { return b != std::byte{0}; }) - bytes.begin());
}

class ExpertComparison {
 public:
  ExpertComparison(const PackedSet& set, const ShardPlan& plan, const MoeModel& source,
                   const LayerExperts& layer, std::uint64_t expert)
      : set_(set), plan_(plan), source_(source), layer_(layer), expert_(expert) {}

  // Every expert-parallel group that holds the expert holds all of it.
  Tally compare() {
    for (ep_rank_ = 0; ep_rank_ < plan_.ep; ++ep_rank_) {
      if (!plan_.ranks[ep_rank_ * std::size_t{plan_.tp}].experts.holds(expert_)) continue;
      compare_group();
      is_first_group_ = false;
    }
    return std::move(tally_);
  }

 private:
  void compare_group() {
    for (const PackedSegment& segment : plan_.layout.segments) {
      const SegmentSource from = source_of(segment.segment);
      const std::vector<PackedPart> parts = parts_of(segment, from);
      if (parts.empty()) continue;
      if (has_source(from) && is_first_group_) ++tally_.tensors;
      if (from.is_scalar()) {
        compare_scalar(from, parts);
      } else {
        compare_rows(segment, from, parts);
      }
    }
    if (set_.layout == FileLayout::kernel) compare_padding();
  }

  [[nodiscard]] bool has_source(SegmentSource from) const {
    const ExpertTensors& expert = layer_.experts[expert_];
    return from.is_scalar() ? scalar_of(expert, from).present() : rows_of(expert, from).present();
  }

  void report(std::string code, std::string message, const PackedPart& part, std::string expected,
              std::string got) {
    tally_.findings.push_back({.code = std::move(code),
                               .message = std::move(message),
                               .where = {.file = (set_.folder / rank_folder_name(part.rank->rank) /
                                                  layer_file_name(layer_.layer))
                                                     .string(),
                                         .tensor = name_,
                                         .layer = layer_.layer,
                                         .expert = expert_,
                                         .rank = part.rank->rank},
                               .expected = std::move(expected),
                               .got = std::move(got)});
  }

  // The group's ranks in order, those that can not be read too.
  [[nodiscard]] std::vector<PackedPart> owners() const {
    std::vector<PackedPart> parts;
    for (const RankPlan& rank : plan_.ranks) {
      if (rank.ep_rank != ep_rank_) continue;
      const auto packed = std::ranges::find(set_.ranks, rank.rank, &PackedRank::rank);
      const bool readable = packed != set_.ranks.end() && packed->checkpoint.has_value();
      parts.push_back(
          {.rank = &rank, .packed = readable ? &*packed : nullptr, .tensor = nullptr, .bytes = {}});
    }
    return parts;
  }

  // The expert's blob in the kernel layout. False after reporting what is wrong with its tensor.
  bool find_blob(PackedPart& part) {
    const std::uint64_t stride = plan_.layout.stride;
    part.tensor = part.packed->checkpoint->find(blobs_tensor_name(layer_.layer));
    if (!check_tensor(part, DType::u8, {part.rank->experts.count(), stride})) return false;
    part.bytes = part.packed->checkpoint->bytes(*part.tensor)
                     .subspan(part.rank->experts.slot_of(expert_).value() * stride, stride);
    return true;
  }

  // The segment on every owner. Reports tensors that are absent or of another type; returns nothing
  // when any is.
  std::vector<PackedPart> parts_of(const PackedSegment& segment, SegmentSource from) {
    const auto logical = logical_tensor(source_.checkpoint, layer_, expert_, segment);
    name_ = logical ? logical->entry.name : std::string(name_of(segment.segment));
    // What the source does not have is left out of logical files.
    if (set_.layout == FileLayout::logical && !logical) return {};
    std::vector<PackedPart> parts = owners();
    for (PackedPart& part : parts) {
      if (part.packed == nullptr) continue;
      if (set_.layout == FileLayout::kernel) {
        if (!find_blob(part)) return {};
        part.bytes = part.bytes.subspan(segment.offset, segment.bytes());
        if (band_rows(plan_.layout.kind, segment) > 1) {
          part.rewritten.assign(part.bytes.begin(), part.bytes.end());
          restore_rows(plan_.layout.kind, segment, part.rewritten);
          part.bytes = part.rewritten;
        }
      } else {
        part.tensor = part.packed->checkpoint->find(logical->entry.name);
        if (!check_tensor(part, logical->entry.dtype, logical->entry.shape)) return {};
        part.bytes = part.packed->checkpoint->bytes(*part.tensor);
        if (from.part == Part::bias) {
          part.rewritten = canonical_biases(logical->entry.dtype, part.bytes);
          part.bytes = part.rewritten;
        }
      }
    }
    return parts;
  }

  // Between one expert's last byte and the next expert.
  void compare_padding() {
    name_ = blobs_tensor_name(layer_.layer);
    const std::uint64_t begin = plan_.layout.expert_bytes;
    for (PackedPart& part : owners()) {
      if (part.packed == nullptr || !find_blob(part)) continue;
      const auto padding = part.bytes.subspan(begin);
      if (const std::size_t at = first_non_zero(padding); at != padding.size()) {
        report("MOXIE-V003", "padding is not zero at byte " + std::to_string(begin + at), part,
               "0x00", hex(padding[at]));
      }
      tally_.tail_bytes += padding.size();
    }
  }

  bool check_tensor(const PackedPart& part, DType dtype, const Shape& shape) {
    const std::string expected = std::string(name_of(dtype)) + " " + to_string(shape);
    if (part.tensor == nullptr) {
      report("MOXIE-V004", "tensor is absent", part, expected, "none");
      return false;
    }
    const auto& file = part.packed->checkpoint->files()[part.tensor->file].path;
    if (file.filename() != layer_file_name(layer_.layer)) {
      report("MOXIE-V004", "tensor is in another layer's file", part, layer_file_name(layer_.layer),
             file.filename().string());
      return false;
    }
    if (part.tensor->dtype == dtype && part.tensor->shape == shape) return true;
    report("MOXIE-V004", "tensor has another type or shape", part, expected,
           std::string(name_of(part.tensor->dtype)) + " " + to_string(part.tensor->shape));
    return false;
  }

  // Logical files hold what the source stores, blobs what multiplies; an absent scalar is NaN in a
  // blob, with the bits that pack_expert writes.
  [[nodiscard]] std::array<std::byte, 4> expected_scalar(const ScalarRef& scalar) const {
    if (!scalar.present()) return {std::byte{0}, std::byte{0}, std::byte{0xC0}, std::byte{0x7F}};
    const float stored = stored_scalar(source_.checkpoint, scalar);
    const bool as_stored = set_.layout == FileLayout::logical || !scalar.reciprocal;
    return std::bit_cast<std::array<std::byte, 4>>(as_stored ? stored : scalar.multiplier(stored));
  }

  void compare_scalar(SegmentSource from, const std::vector<PackedPart>& parts) {
    const ScalarRef scalar = scalar_of(layer_.experts[expert_], from);
    const std::array<std::byte, 4> bytes = expected_scalar(scalar);
    bool equal = scalar.present();  // on every rank; counted once
    for (const PackedPart& part : parts) {
      if (part.packed == nullptr) continue;
      const std::size_t at = first_difference(bytes, part.bytes);
      if (at == bytes.size()) continue;
      equal = false;
      report("MOXIE-V002", "scalar differs from the source at byte " + std::to_string(at), part,
             hex(bytes[at]), hex(part.bytes[at]));
    }
    if (equal) tally_.real_bytes += bytes.size();
  }

  void compare_rows(const PackedSegment& segment, SegmentSource from,
                    const std::vector<PackedPart>& parts) {
    const RowsView& view = rows_of(layer_.experts[expert_], from);
    if (from.part == Part::block_scales) check_source_scales(view);
    if (from.part == Part::bias) check_source_biases(view);
    // Rows, packed bytes or scale groups joined so far, along the cut axis.
    std::uint64_t position = 0;
    const bool by_rows = is_joined_by_rows(from);
    for (const PackedPart& part : parts) {
      const SegmentCut planned = cut_of(from, *part.rank, view.rows, view.row_bytes);
      const std::uint64_t count = by_rows ? planned.rows : planned.row_bytes;
      const std::uint64_t room = (by_rows ? view.rows : view.row_bytes) - position;
      if (count > room) {
        report("MOXIE-V006", "real parts reach past the source", part,
               std::to_string(room) + " units left", std::to_string(count));
        return;
      }
      const SegmentCut joined = by_rows ? SegmentCut{position, count, 0, view.row_bytes}
                                        : SegmentCut{0, view.rows, position, count};
      if (part.packed != nullptr) compare_part(segment, from, view, part, joined);
      position += count;
    }
    const std::uint64_t whole = by_rows ? view.rows : view.row_bytes;
    if (position != whole) {
      report("MOXIE-V006", "real parts do not cover the source", parts.back(),
             std::to_string(whole) + " units", std::to_string(position));
    }
  }

  // The bias of down is whole on one rank.
  static bool is_joined_by_rows(SegmentSource from) {
    return from.is_cut_by_rows() || from.part == Part::bias;
  }

  static std::string_view unit_of(SegmentSource from) {
    return is_joined_by_rows(from) ? "row" : from.part == Part::codes ? "byte" : "group";
  }

  void compare_part(const PackedSegment& segment, SegmentSource from, const RowsView& view,
                    const PackedPart& part, const SegmentCut& cut) {
    const std::string unit(unit_of(from));
    const auto place = [&](std::uint64_t row, std::uint64_t byte) {
      return " at row " + std::to_string(row) + ", offset " + std::to_string(byte) + " (unit " +
             unit + ")";
    };
    std::vector<std::byte> original(cut.row_bytes);
    for (std::uint64_t row = 0; row < segment.rows; ++row) {
      const auto packed = part.bytes.subspan(row * segment.row_bytes, segment.row_bytes);
      const std::uint64_t real = row < cut.rows ? cut.row_bytes : 0;
      if (real > 0) {
        read_row(source_.checkpoint, view, cut.first_row + row, cut.first_byte, original);
        const std::size_t at = first_difference(original, packed.first(real));
        if (at != real) {
          report("MOXIE-V002", "real part differs from the source" + place(row, at), part,
                 hex(original[at]), hex(packed[at]));
          return;
        }
      }
      const auto tail = packed.subspan(real);
      if (const std::size_t at = first_non_zero(tail); at != tail.size()) {
        report("MOXIE-V003", "tail is not zero" + place(row, real + at), part, "0x00",
               hex(tail[at]));
        return;
      }
      tally_.real_bytes += real;
      tally_.tail_bytes += tail.size();
    }
  }

  void check_source_scales(const RowsView& view) const {
    std::vector<std::byte> scales(view.row_bytes);
    for (std::uint64_t row = 0; row < view.rows; ++row) {
      read_row(source_.checkpoint, view, row, 0, scales);
      const std::size_t bad = first_bad_scale(layer_.format, scales);
      if (bad != scales.size()) {
        refuse_scale(source_.checkpoint, layer_, expert_, *view.tensor, row, bad, scales[bad]);
      }
    }
  }

  void check_source_biases(const RowsView& view) const {
    std::vector<std::byte> bias(view.row_bytes);
    for (std::uint64_t row = 0; row < view.rows; ++row) {
      read_row(source_.checkpoint, view, row, 0, bias);
      check_biases(bias, row, place_of(source_.checkpoint, layer_, expert_, *view.tensor));
    }
  }

  const PackedSet& set_;
  const ShardPlan& plan_;
  const MoeModel& source_;
  const LayerExperts& layer_;
  std::uint64_t expert_;
  unsigned ep_rank_ = 0;  // of the group that is compared
  bool is_first_group_ = true;
  std::string name_;
  Tally tally_;
};

}  // namespace

Tally compare_expert(const PackedSet& set, const ShardPlan& plan, const MoeModel& source,
                     const LayerExperts& layer, std::uint64_t expert) {
  return ExpertComparison(set, plan, source, layer, expert).compare();
}

std::uint64_t expected_tensors(const PackedSet& set, const ShardPlan& plan, const RankPlan& rank,
                               const MoeModel& source, const LayerExperts& layer) {
  if (set.layout == FileLayout::kernel) return 1;
  std::uint64_t count = 0;
  for (std::uint64_t slot = 0; slot < rank.experts.count(); ++slot) {
    for (const PackedSegment& segment : plan.layout.segments) {
      const auto tensor = logical_tensor(source.checkpoint, layer, rank.experts.id(slot), segment);
      count += tensor ? 1 : 0;
    }
  }
  return count;
}

}  // namespace moxie

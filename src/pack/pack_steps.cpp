// SPDX-License-Identifier: Apache-2.0
// Experts by slot, then tensors: rows of one rank after another where rows are cut, the same rows
// of all ranks where columns are.
#include "pack/pack_steps.hpp"

#include <algorithm>
#include <set>
#include <span>
#include <utility>

#include "pack/segment_source.hpp"

namespace moxie {

namespace {

// Enough for one thread's turn.
constexpr std::uint64_t kPieceBytes = std::uint64_t{4} << 20;

std::uint64_t rows_in(std::uint64_t bytes, std::uint64_t row_bytes) {
  return std::max<std::uint64_t>(bytes / std::max<std::uint64_t>(row_bytes, 1), 1);
}

class StepList {
 public:
  StepList(const PackedFile& file, const std::vector<unsigned>& ranks, const StepLimits& limits)
      : file_(file), ranks_(ranks), limits_(limits) {
    for (const unsigned rank : ranks) tp_ranks_.insert(file.plan.ranks[rank].tp_rank);
  }

  std::vector<Step> make() {
    steps_.emplace_back();  // a file that holds nothing is made too
    if (file_.layer != nullptr) add_experts();
    for (const SourceTensor& tensor : file_.tensors) add_tensor(tensor);
    return std::move(steps_);
  }

 private:
  // Whether a piece is made from what the piece before it is made from.
  enum class Sources : std::uint8_t { own, same };

  // A step holds the sources of all of its pieces, each once.
  void add(Piece piece, const std::vector<SourceRange>& sources, Sources kind = Sources::own) {
    std::uint64_t bytes = 0;
    for (const SourceRange& source : sources) bytes += source.bytes;
    const bool shares = kind == Sources::same;
    const bool full = used_ + piece.bytes > limits_.buffer_bytes ||
                      (!shares && steps_.back().source_bytes + bytes > limits_.source_bytes);
    const bool begins = full && !steps_.back().pieces.empty();
    if (begins) {
      steps_.emplace_back();
      used_ = 0;
    }
    Step& step = steps_.back();
    piece.offset = used_;
    used_ += piece.bytes;
    step.pieces.push_back(piece);
    if (shares && !begins) return;
    step.sources.insert(step.sources.end(), sources.begin(), sources.end());
    step.source_bytes += bytes;
  }

  // Ranks of one expert-parallel group stand together and hold the same experts.
  void add_experts() {
    for (std::size_t begin = 0, end = 0; begin < ranks_.size(); begin = end) {
      const unsigned group = file_.plan.ranks[ranks_[begin]].ep_rank;
      while (end < ranks_.size() && file_.plan.ranks[ranks_[end]].ep_rank == group) ++end;
      for (const std::uint64_t expert : file_.experts_of(ranks_[begin]).ids()) {
        const std::vector<SourceRange> sources =
            sources_of(expert, std::span(ranks_).subspan(begin, end - begin));
        for (std::size_t i = begin; i < end; ++i) {
          add({.expert = expert, .rank = ranks_[i], .bytes = file_.plan.layout.stride}, sources,
              i == begin ? Sources::own : Sources::same);
        }
      }
    }
  }

  // The rows of an expert that these ranks cut theirs from.
  [[nodiscard]] std::vector<SourceRange> sources_of(std::uint64_t expert,
                                                    std::span<const unsigned> ranks) const {
    std::vector<SourceRange> sources;
    for (const PackedSegment& segment : file_.plan.layout.segments) {
      const SegmentSource source = source_of(segment.segment);
      if (source.part != Part::codes && source.part != Part::block_scales) continue;
      const RowsView& view = rows_of(file_.layer->experts[expert], source);
      if (!view.present()) continue;
      std::uint64_t begin = view.rows;
      std::uint64_t end = 0;
      for (const unsigned rank : ranks) {
        const SegmentCut cut = cut_of(source, file_.plan.ranks[rank], view.rows, view.row_bytes);
        if (cut.rows == 0) continue;
        begin = std::min(begin, cut.first_row);
        end = std::max(end, cut.first_row + cut.rows);
      }
      if (begin >= end) continue;
      const TensorRange range = stored_range(view, begin, end - begin);
      sources.push_back({view.tensor, range.offset, range.bytes});
    }
    return sources;
  }

  void add_tensor(const SourceTensor& tensor) {
    if (!tensor.tensor.cut) return add_rows(tensor, 0);
    if (dimension_of(tensor.tensor.cut->unit) == 1) return add_columns(tensor);
    for (const unsigned tp_rank : tp_ranks_) add_rows(tensor, tp_rank);
  }

  void add_rows(const SourceTensor& tensor, unsigned tp_rank) {
    const TensorPart part = part_of(tensor.tensor, file_.plan, tp_rank);
    const std::uint64_t most = rows_in(kPieceBytes, part.row_bytes);
    const std::uint64_t each = std::min(most, rows_in(limits_.buffer_bytes, part.row_bytes));
    for (std::uint64_t row = 0; row < part.rows; row += each) {
      const std::uint64_t count = std::min(each, part.rows - row);
      const TensorRange source = source_of(part, row, count);
      add({.tensor = &tensor, .rank = tp_rank, .first_row = row, .bytes = count * part.row_bytes},
          {{tensor.source, source.offset, source.bytes}});
    }
  }

  void add_columns(const SourceTensor& tensor) {
    const TensorRows whole = rows_of(tensor.tensor);
    const std::uint64_t row_bytes = part_of(tensor.tensor, file_.plan, 0).row_bytes;
    const std::uint64_t each = std::min(
        {rows_in(kPieceBytes, whole.row_bytes), rows_in(limits_.source_bytes, whole.row_bytes),
         rows_in(limits_.buffer_bytes, row_bytes * tp_ranks_.size())});
    for (std::uint64_t row = 0; row < whole.rows; row += each) {
      const std::uint64_t count = std::min(each, whole.rows - row);
      const std::vector<SourceRange> sources{
          {tensor.source, row * whole.row_bytes, count * whole.row_bytes}};
      for (const unsigned tp_rank : tp_ranks_) {
        add({.tensor = &tensor, .rank = tp_rank, .first_row = row, .bytes = count * row_bytes},
            sources, tp_rank == *tp_ranks_.begin() ? Sources::own : Sources::same);
      }
    }
  }

  const PackedFile& file_;
  const std::vector<unsigned>& ranks_;
  const StepLimits& limits_;
  std::set<unsigned> tp_ranks_;
  std::vector<Step> steps_{};
  std::uint64_t used_ = 0;  // of the last step's buffer
};

}  // namespace

std::uint64_t largest_piece(const PackedFile& file) {
  std::uint64_t bytes = file.layer != nullptr ? file.plan.layout.stride : 0;
  for (const SourceTensor& tensor : file.tensors)
    bytes = std::max(bytes, part_of(tensor.tensor, file.plan, 0).row_bytes);
  return bytes;
}

std::vector<Step> steps_of(const PackedFile& file, const std::vector<unsigned>& ranks,
                           const StepLimits& limits) {
  return StepList(file, ranks, limits).make();
}

}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// Rows of every rank's part against rows of the source, a few megabytes a thread at a time.
#include "verify/tensor_comparison.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <utility>

#include "base/parallel.hpp"
#include "pack/around_values.hpp"
#include "pack/packed_names.hpp"
#include "pack/scale_check.hpp"
#include "pack/tensor_part.hpp"
#include "verify/byte_search.hpp"

namespace moxie {

namespace {

// One thread's turn, and all threads' between two releases of pages.
constexpr std::uint64_t kTurnBytes = std::uint64_t{4} << 20;
constexpr std::uint64_t kChunkBytes = std::uint64_t{128} << 20;

// One rank's part of one tensor, placed by the counts of the ranks before it.
struct RankPart {
  const SourceTensor* tensor = nullptr;
  const RankPlan* rank = nullptr;
  TensorPart part;
  std::span<const std::byte> bytes;
  bool counts = false;  // its real bytes are no other rank's
};

// Rows [first, first + count) of a part.
struct Turn {
  std::size_t part = 0;
  std::uint64_t first = 0;
  std::uint64_t count = 0;
};

struct TurnTally {
  std::uint64_t real_bytes = 0;
  std::uint64_t tail_bytes = 0;
  std::optional<Finding> finding;
};

class TensorComparison {
 public:
  TensorComparison(const PackedSet& set, const MoeModel& source, const FilePlace& file)
      : set_(set), source_(source), file_(file) {}

  Tally compare(const std::vector<SourceTensor>& tensors,
                const std::function<void(std::uint64_t)>& release) {
    for (const SourceTensor& tensor : tensors) {
      ++tally_.tensors;
      place(tensor);
    }
    std::vector<Turn> turns;
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const TensorPart& part = parts_[i].part;
      const std::uint64_t each = std::max<std::uint64_t>(
          kTurnBytes / std::max<std::uint64_t>({part.row_bytes, part.source_row_bytes, 1}), 1);
      for (std::uint64_t row = 0; row < part.rows; row += each) {
        turns.push_back({i, row, std::min(each, part.rows - row)});
        bytes += turns.back().count * (part.row_bytes + part.source_row_bytes);
        if (bytes < kChunkBytes) continue;
        release(take(turns));
        turns.clear();
        bytes = 0;
      }
    }
    release(take(turns));
    return std::move(tally_);
  }

 private:
  Finding finding(std::string code, std::string message, const RankPlan& rank,
                  const std::string& tensor, std::string expected, std::string got) const {
    return {.code = std::move(code),
            .message = std::move(message),
            .where = {.file = (set_.folder / rank_folder_name(rank.rank) / file_.name).string(),
                      .tensor = tensor,
                      .layer = file_.layer,
                      .rank = rank.rank},
            .expected = std::move(expected),
            .got = std::move(got)};
  }

  // Finds the tensor on every rank; reports one that is absent, elsewhere or of another type.
  void place(const SourceTensor& tensor) {
    std::map<unsigned, std::uint64_t> position;  // by expert-parallel group
    for (const RankPlan& rank : set_.plan.ranks) {
      TensorPart part = part_of(tensor.tensor, set_.plan, rank.tp_rank);
      const bool cut = tensor.tensor.cut.has_value();
      if (cut && !join(tensor, rank, position[rank.ep_rank], part)) return;
      const auto packed = std::ranges::find(set_.ranks, rank.rank, &PackedRank::rank);
      if (packed == set_.ranks.end() || !packed->checkpoint) continue;
      const TensorInfo* found = packed->checkpoint->find(tensor.tensor.name);
      if (!is_as_planned(tensor.tensor, rank, *packed, found)) continue;
      parts_.push_back({.tensor = &tensor,
                        .rank = &rank,
                        .part = part,
                        .bytes = packed->checkpoint->bytes(*found),
                        .counts = rank.ep_rank == 0 && (cut || rank.tp_rank == 0)});
    }
  }

  // Moves the part to where the parts before it end. False after reporting that it does not fit.
  bool join(const SourceTensor& tensor, const RankPlan& rank, std::uint64_t& position,
            TensorPart& part) {
    const bool by_rows = dimension_of(tensor.tensor.cut->unit) == 0;
    const TensorRows whole = rows_of(tensor.tensor);
    const std::uint64_t length = by_rows ? whole.rows : whole.row_bytes;
    const std::uint64_t count = by_rows ? part.real_rows : part.real_row_bytes;
    const bool last = rank.tp_rank + 1 == set_.plan.tp;
    const auto units = [&](std::uint64_t number) {
      return std::to_string(number) + (by_rows ? " rows" : " bytes of a row");
    };
    if (count > length - position || (last && position + count != length)) {
      tally_.findings.push_back(
          finding("MOXIE-V006",
                  count > length - position ? "real parts reach past the source"
                                            : "real parts do not cover the source",
                  rank, tensor.tensor.name, units(length), units(position + count)));
      return false;
    }
    (by_rows ? part.first_row : part.first_byte) = position;
    position += count;
    return true;
  }

  bool is_as_planned(const ModelTensor& tensor, const RankPlan& rank, const PackedRank& packed,
                     const TensorInfo* found) {
    const auto text = [](DType dtype, const Shape& shape) {
      return std::string(name_of(dtype)) + " " + to_string(shape);
    };
    const Shape shape = part_shape(tensor, set_.plan);
    if (found == nullptr) {
      tally_.findings.push_back(finding("MOXIE-V004", "tensor is absent", rank, tensor.name,
                                        text(tensor.dtype, shape), "none"));
      return false;
    }
    const auto& path = packed.checkpoint->files()[found->file].path;
    if (path.filename() != file_.name) {
      tally_.findings.push_back(finding("MOXIE-V004", "tensor is in another file", rank,
                                        tensor.name, file_.name, path.filename().string()));
      return false;
    }
    if (found->dtype == tensor.dtype && found->shape == shape) return true;
    tally_.findings.push_back(finding("MOXIE-V004", "tensor has another type or shape", rank,
                                      tensor.name, text(tensor.dtype, shape),
                                      text(found->dtype, found->shape)));
    return false;
  }

  // Bytes that were compared. Of a part the first difference counts.
  std::uint64_t take(const std::vector<Turn>& turns) {
    std::vector<TurnTally> tallies(turns.size());
    parallel_for(turns.size(), [&](std::uint64_t i) { tallies[i] = compare_rows(turns[i]); });
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < turns.size(); ++i) {
      TurnTally& tally = tallies[i];
      bytes += turns[i].count * parts_[turns[i].part].part.row_bytes;
      if (parts_[turns[i].part].counts) tally_.real_bytes += tally.real_bytes;
      tally_.tail_bytes += tally.tail_bytes;
      if (tally.finding && differing_.insert(turns[i].part).second)
        tally_.findings.push_back(*std::move(tally.finding));
    }
    return bytes;
  }

  [[nodiscard]] TurnTally compare_rows(const Turn& turn) const {
    const RankPart& rank = parts_[turn.part];
    const TensorPart& part = rank.part;
    const auto source = source_.checkpoint.bytes(*rank.tensor->source);
    TurnTally tally;
    for (std::uint64_t row = turn.first; row < turn.first + turn.count; ++row) {
      const auto packed = rank.bytes.subspan(row * part.row_bytes, part.row_bytes);
      const std::uint64_t real = row < part.real_rows ? part.real_row_bytes : 0;
      if (real > 0) {
        const auto original =
            source.subspan((part.first_row + row) * part.source_row_bytes + part.first_byte, real);
        if (rank.tensor->tensor.dtype == DType::f8_e8m0)
          check_tile_scales(source_.checkpoint, *rank.tensor->source, part, row, original);
        if (file_.layer && is_router_tensor(rank.tensor->source->name)) {
          check_router_rows(*rank.tensor->source, router_place(*rank.tensor->source),
                            part.first_row + row, original);
        }
        const std::size_t at = first_difference(original, packed.first(real));
        if (at != real) {
          tally.finding = differs("MOXIE-V002", "real part differs from the source", rank, row, at,
                                  original[at], packed[at]);
          return tally;
        }
      }
      const auto tail = packed.subspan(real);
      if (const std::size_t at = first_off_tail(tail, part.tail); at != tail.size()) {
        tally.finding =
            differs("MOXIE-V003",
                    part.tail == Tail::zero ? "tail is not zero" : "tail is not minus infinity",
                    rank, row, real + at, tail_byte(part.tail, at), tail[at]);
        return tally;
      }
      tally.real_bytes += real;
      tally.tail_bytes += tail.size();
    }
    return tally;
  }

  [[nodiscard]] AroundPlace router_place(const TensorInfo& tensor) const {
    const auto layer = std::ranges::find(source_.layers, *file_.layer, &LayerExperts::layer);
    return place_around(source_, tensor, layer == source_.layers.end() ? nullptr : &*layer);
  }

  [[nodiscard]] Finding differs(std::string code, std::string message, const RankPart& rank,
                                std::uint64_t row, std::uint64_t byte, std::byte expected,
                                std::byte got) const {
    const auto& cut = rank.tensor->tensor.cut;
    message += " at row " + std::to_string(row) + ", offset " + std::to_string(byte) + " (unit " +
               std::string(cut ? name_of(cut->unit) : "byte") + ")";
    return finding(std::move(code), std::move(message), *rank.rank, rank.tensor->tensor.name,
                   hex(expected), hex(got));
  }

  const PackedSet& set_;
  const MoeModel& source_;
  const FilePlace& file_;
  std::vector<RankPart> parts_{};
  std::set<std::size_t> differing_{};
  Tally tally_{};
};

}  // namespace

Tally compare_tensors(const PackedSet& set, const MoeModel& source, const FilePlace& file,
                      const std::vector<SourceTensor>& tensors,
                      const std::function<void(std::uint64_t)>& release) {
  return TensorComparison(set, source, file).compare(tensors, release);
}

}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// Files are written front to back: experts first, then the tensors around them.
#include "pack/rank_files.hpp"

#include <algorithm>

#include "base/parallel.hpp"
#include "pack/around_values.hpp"
#include "pack/expert_parts.hpp"
#include "pack/packed_names.hpp"
#include "pack/scale_check.hpp"
#include "pack/tensor_part.hpp"

namespace moxie {

namespace {

// Blobs that are read where they lie in a file begin at cache lines.
constexpr std::uint64_t kDataAlign = 64;

}  // namespace

RankFiles::RankFiles(const MoeModel& model, const PackedFile& file, FileLayout layout,
                     const std::vector<unsigned>& ranks,
                     const std::vector<std::filesystem::path>& folders, std::size_t direct_bytes)
    : model_(model), file_(file), plan_(file.plan), layout_(layout), ranks_(ranks) {
  // Logical files hold rows.
  if (layout == FileLayout::logical) plan_.layout.kind = LayoutKind::linear;
  if (file.layer != nullptr && layout == FileLayout::logical) list_logical();
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    writers_.push_back(std::make_unique<SafetensorsWriter>(
        folders[i] / file.name, entries_of(ranks[i]), direct_bytes, kDataAlign));
  }
}

void RankFiles::list_logical() {
  logical_.resize(file_.layer->experts.size());
  for (const unsigned rank : ranks_) {
    for (const std::uint64_t expert : file_.experts_of(rank).ids()) {
      if (!logical_[expert].empty()) continue;  // of another rank too
      logical_[expert] =
          logical_tensors(model_.checkpoint, file_.plan.layout, *file_.layer, expert);
    }
  }
}

std::vector<TensorEntry> RankFiles::entries_of(unsigned rank) const {
  std::vector<TensorEntry> entries;
  const RankExperts experts = file_.experts_of(rank);
  if (file_.layer != nullptr && layout_ == FileLayout::kernel) {
    entries.push_back({blobs_tensor_name(file_.layer->layer),
                       DType::u8,
                       {experts.count(), file_.plan.layout.stride}});
  } else {
    for (const std::uint64_t expert : experts.ids()) {
      for (const LogicalTensor& tensor : logical_[expert]) entries.push_back(tensor.entry);
    }
  }
  for (const SourceTensor& tensor : file_.tensors) {
    entries.push_back(
        {tensor.tensor.name, tensor.tensor.dtype, part_shape(tensor.tensor, file_.plan)});
  }
  return entries;
}

void RankFiles::fill(const Piece& piece, const SourceWindow& window,
                     std::span<std::byte> buffer) const {
  const auto out = buffer.subspan(piece.offset, piece.bytes);
  const SourceBytes source(model_.checkpoint, &window);
  if (piece.tensor == nullptr) {
    pack_expert_part(model_, plan_, plan_.ranks[piece.rank], *file_.layer, piece.expert,
                     {0, plan_.layout.stride}, source, out);
    return;
  }
  const TensorPart part = part_of(piece.tensor->tensor, file_.plan, piece.rank);
  const TensorRange rows = source_of(part, piece.first_row, out.size() / part.row_bytes);
  const std::byte* stored = source.find(*piece.tensor->source, rows.offset, rows.bytes);
  copy_rows(part, {stored, rows.bytes}, piece.first_row, out);
  // The tail of scales is a legal scale: all of it can be searched at once.
  if (piece.tensor->tensor.dtype == DType::f8_e8m0)
    check_tile_scales(model_.checkpoint, *piece.tensor->source, part, piece.first_row, out);
  check_router_rows(*piece.tensor->source, place_around(model_, *piece.tensor->source, file_.layer),
                    piece.first_row, out);
}

std::uint64_t RankFiles::file_bytes(const Piece& piece) const {
  if (piece.tensor == nullptr) return file_.plan.layout.expert_bytes;
  const auto files = std::ranges::count_if(
      ranks_, [&](unsigned rank) { return piece.is_for(file_.plan.ranks[rank]); });
  return static_cast<std::uint64_t>(files) * piece.bytes;
}

void RankFiles::write(const std::vector<Piece>& pieces, std::span<const std::byte> buffer) {
  parallel_for(ranks_.size(), [&](std::uint64_t i) {
    for (const Piece& piece : pieces) {
      if (piece.is_for(file_.plan.ranks[ranks_[i]]))
        write_piece(piece, buffer.subspan(piece.offset, piece.bytes), *writers_[i]);
    }
  });
}

void RankFiles::write_piece(const Piece& piece, std::span<const std::byte> bytes,
                            SafetensorsWriter& writer) const {
  if (piece.tensor != nullptr || layout_ == FileLayout::kernel) return writer.write(bytes);
  for (const LogicalTensor& tensor : logical_[piece.expert]) write_logical(tensor, bytes, writer);
}

std::vector<WrittenFile> RankFiles::commit() {
  std::vector<WrittenFile> written;
  for (const auto& writer : writers_) {
    writer->commit();
    written.push_back({writer->bytes(), writer->checksum()});
  }
  return written;
}

}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// One thread of the caller's packs with all others, one beside it reads and one writes.
#include "pack/folder_stream.hpp"

#include <algorithm>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "base/parallel.hpp"
#include "base/staged_file.hpp"

namespace moxie {

namespace {

// Larger buffers gain nothing: packed bytes should not go far before they are written.
constexpr std::uint64_t kLargestBuffer = std::uint64_t{64} << 20;

// What each of so many files gathers before it is written: out of the slack half, or nothing where
// writes would become small.
std::size_t direct_bytes_of(std::uint64_t memory_bytes, std::uint64_t files) {
  constexpr std::uint64_t kLeast = std::uint64_t{1} << 18;
  constexpr std::uint64_t kMost = std::uint64_t{4} << 20;
  const std::uint64_t share = std::min(memory_bytes / 4 / files, kMost);
  return share < kLeast ? 0 : share / StagedFile::kDirectUnit * StagedFile::kDirectUnit;
}

std::uint64_t source_of_expert(const MoeModel& model, const PackedFile& file) {
  return file.layer != nullptr ? expert_bytes(model.config, file.plan.format) : 0;
}

}  // namespace

StreamBudget budget_of(const MoeModel& model, const std::vector<PackedFile>& files,
                       const PackOptions& options) {
  std::uint64_t piece = 1;
  std::uint64_t source = 1;
  std::uint64_t owners = 1;
  for (const PackedFile& file : files) {
    piece = std::max(piece, largest_piece(file));
    source = std::max(source, source_of_expert(model, file));
    owners = file.plan.tp;
  }
  const std::uint64_t half = options.memory_bytes / 2;
  if (half < piece + source) {
    throw Error(ErrorCode::usage,
                {.code = "MOXIE-K004",
                 .message = "--memory is too small for one expert of " + std::to_string(piece) +
                            " packed bytes and its source",
                 .where = {.file = options.out.string()},
                 .hint = "give at least " + std::to_string(2 * (piece + source)) + " bytes"});
  }
  const std::uint64_t quarter = half / 2;
  if (quarter < piece + source)
    return {.step = {.buffer_bytes = piece, .source_bytes = half - piece}, .buffers = 1};
  // Buffers of as many experts as the windows of the source.
  const std::uint64_t experts = quarter / (piece * owners + source);
  const std::uint64_t wanted = std::clamp(experts * piece * owners, piece, quarter - source);
  const std::uint64_t buffer = std::max(std::min(wanted, kLargestBuffer), piece);
  return {.step = {.buffer_bytes = buffer, .source_bytes = quarter - buffer}, .buffers = 2};
}

FolderStream::FolderStream(const MoeModel& model, const std::vector<PackedFile>& files,
                           const PackOptions& options, std::function<void(std::uint64_t)> advance)
    : model_(model),
      files_(files),
      options_(options),
      advance_(std::move(advance)),
      budget_(budget_of(model, files, options)) {}

std::vector<std::vector<WrittenFile>> FolderStream::write(
    const std::vector<unsigned>& ranks, const std::vector<std::filesystem::path>& folders) {
  std::vector<std::vector<WrittenFile>> written(files_.size());
  next_file_ = 0;
  steps_.clear();
  // Files of two layers may be open at once.
  const std::size_t direct_bytes = direct_bytes_of(options_.memory_bytes, 2 * ranks.size());
  WriteBehind behind(budget_.buffers, budget_.step.buffer_bytes);
  ReadAhead ahead(model_.checkpoint, budget_.buffers);
  std::shared_ptr<RankFiles> open;  // what is submitted keeps it too
  const auto use = [&](const NextStep& next, const SourceWindow& window) {
    if (!open) {
      open = std::make_shared<RankFiles>(model_, files_[next.file], options_.layout, ranks, folders,
                                         direct_bytes);
    }
    const WriteBehind::Buffer buffer = behind.free_buffer();
    pack(next.step, window, *open, buffer);
    behind.submit(buffer,
                  [open, buffer, pieces = next.step.pieces] { open->write(pieces, buffer); });
    if (!next.last) return;
    behind.submit({}, [file = std::exchange(open, nullptr), &to = written[next.file]] {
      to = file->commit();
    });
  };
  behind.run([&] { ahead.run([&] { return next_step(ranks); }, use); });
  return written;
}

std::optional<NextStep> FolderStream::next_step(const std::vector<unsigned>& ranks) {
  if (steps_.empty()) {
    if (next_file_ == files_.size()) return std::nullopt;
    std::vector<Step> steps = steps_of(files_[next_file_++], ranks, budget_.step);
    steps_.assign(std::make_move_iterator(steps.begin()), std::make_move_iterator(steps.end()));
  }
  NextStep next{
      .file = next_file_ - 1, .last = steps_.size() == 1, .step = std::move(steps_.front())};
  steps_.pop_front();
  return next;
}

void FolderStream::pack(const Step& step, const SourceWindow& window, const RankFiles& files,
                        std::span<std::byte> buffer) {
  parallel_for(step.pieces.size(),
               [&](std::uint64_t i) { files.fill(step.pieces[i], window, buffer); });
  // Scalars and biases were read where they are mapped.
  std::set<std::uint32_t> touched;
  for (const SourceRange& range : step.sources) touched.insert(range.tensor->file);
  for (const std::uint32_t file : touched) model_.checkpoint.release(file);
  for (const Piece& piece : step.pieces) advance_(files.file_bytes(piece));
}

}  // namespace moxie

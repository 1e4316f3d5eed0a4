// SPDX-License-Identifier: Apache-2.0
// Ranges that touch are read as one.
#include "pack/source_window.hpp"

#include <algorithm>
#include <tuple>

namespace moxie {

namespace {

// Of one read: what the system copies while it reads the rest.
constexpr std::uint64_t kRequest = std::uint64_t{8} << 20;

}  // namespace

std::vector<SourceWindow::Run> SourceWindow::runs_of(std::span<const SourceRange> ranges) {
  std::vector<Run> all;
  for (const SourceRange& range : ranges) {
    if (range.bytes == 0) continue;
    const std::uint64_t begin = range.tensor->offset + range.offset;
    all.push_back({.file = range.tensor->file, .begin = begin, .end = begin + range.bytes});
  }
  std::ranges::sort(all, {}, [](const Run& run) { return std::tuple(run.file, run.begin); });
  std::vector<Run> runs;
  for (const Run& run : all) {
    const bool joins =
        !runs.empty() && runs.back().file == run.file && run.begin <= runs.back().end;
    if (joins)
      runs.back().end = std::max(runs.back().end, run.end);
    else
      runs.push_back(run);
  }
  std::uint64_t at = 0;
  for (Run& run : runs) {
    run.at = at;
    at += run.end - run.begin;
  }
  return runs;
}

void SourceWindow::fill(const Checkpoint& checkpoint, std::span<const SourceRange> ranges) {
  runs_ = runs_of(ranges);
  if (runs_.empty()) return;
  const std::uint64_t bytes = runs_.back().at + runs_.back().end - runs_.back().begin;
  if (memory_.bytes().size() < bytes) {
    memory_ = WritableMemory();  // before the larger one is there
    memory_ = WritableMemory(bytes);
  }
  // All of it is asked for at once: a disk that also writes is kept busy, however little the system
  // reads ahead by itself.
  for (const Run& run : runs_) checkpoint.read_ahead(run.file, run.begin, run.end - run.begin);
  for (const Run& run : runs_) {
    for (std::uint64_t begin = run.begin; begin < run.end; begin += kRequest) {
      const std::uint64_t size = std::min(kRequest, run.end - begin);
      checkpoint.read(run.file, begin, memory_.bytes().subspan(run.at + begin - run.begin, size));
    }
  }
}

const std::byte* SourceWindow::find(const TensorInfo& tensor, std::uint64_t offset,
                                    std::uint64_t bytes) const {
  const std::uint64_t begin = tensor.offset + offset;
  const auto after =
      std::ranges::upper_bound(runs_, std::tuple(tensor.file, begin), {},
                               [](const Run& run) { return std::tuple(run.file, run.begin); });
  if (after == runs_.begin()) return nullptr;
  const Run& run = *(after - 1);
  if (run.file != tensor.file || begin + bytes > run.end) return nullptr;
  return memory_.bytes().data() + run.at + (begin - run.begin);
}

const std::byte* SourceBytes::find(const TensorInfo& tensor, std::uint64_t offset,
                                   std::uint64_t bytes) const {
  if (window_ != nullptr) {
    if (const std::byte* held = window_->find(tensor, offset, bytes); held != nullptr) return held;
  }
  return checkpoint_->bytes(tensor).subspan(offset, bytes).data();
}

}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// The order in which a source is read: once from front to back of every file, for all ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "moxie/model.hpp"
#include "moxie/plan.hpp"
#include "pack/packed_files.hpp"

namespace moxie {

// What is filled by one thread: one expert of one rank, or rows of a tensor's part.
struct Piece {
  const SourceTensor* tensor = nullptr;
  std::uint64_t expert = 0;
  unsigned rank = 0;  // the rank; of a tensor the tp rank, of one without a cut all of them
  std::uint64_t first_row = 0;
  std::uint64_t offset = 0;  // in the buffer
  std::uint64_t bytes = 0;

  // Whether these bytes go into the rank's file.
  [[nodiscard]] bool is_for(const RankPlan& to) const {
    if (tensor == nullptr) return to.rank == rank;
    return !tensor->tensor.cut || to.tp_rank == rank;
  }
};

// Bytes of a source tensor.
struct SourceRange {
  const TensorInfo* tensor = nullptr;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

// What is filled and written at a time.
struct Step {
  std::vector<Piece> pieces;
  std::vector<SourceRange> sources;
  std::uint64_t source_bytes = 0;
};

// Of a step: of its buffer, and of the source pages that it touches.
struct StepLimits {
  std::uint64_t buffer_bytes = 0;
  std::uint64_t source_bytes = 0;
};

// The largest piece that can not be made smaller: an expert of a rank or a row of a tensor's part.
std::uint64_t largest_piece(const PackedFile& file);

// A file's steps. In each rank's file pieces follow each other in the order of the steps. A piece
// or a source that is larger than a limit is alone in its step.
std::vector<Step> steps_of(const PackedFile& file, const std::vector<unsigned>& ranks,
                           const StepLimits& limits);

}  // namespace moxie

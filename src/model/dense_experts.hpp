// SPDX-License-Identifier: Apache-2.0
// Finds experts that are stored without FP4, and reads their values.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "model/expert_names.hpp"
#include "moxie/model.hpp"

namespace moxie {

// The main layers whose experts are BF16, F16, F32 or block-scaled FP8, one by one or stacked.
// Headers only. Which axis of a stacked tensor is the input, and how gate and up share one, is the
// family's: shapes that contradict it go into `problems`, as does what is absent or of another
// type.
std::vector<DenseExperts> find_dense_experts(const Checkpoint& checkpoint,
                                             const ModelConfig& config, const ExpertNames& names);

// The matrix where it lies, when its rows can be read as they are.
std::optional<MatrixRef> matrix_in_place(const Checkpoint& checkpoint, const DenseMatrix& matrix);

// The first scale that is not finite and greater than zero, by its place among the tiles.
struct BadScale {
  std::uint64_t row = 0;
  std::uint64_t col = 0;
  float value = 0;
};
std::optional<BadScale> find_bad_scale(const Checkpoint& checkpoint, const DenseMatrix& matrix);

// All values, row by row.
void read_values(const Checkpoint& checkpoint, const DenseMatrix& matrix,
                 float* values);  // [rows, cols]

}  // namespace moxie

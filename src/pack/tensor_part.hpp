// SPDX-License-Identifier: Apache-2.0
// Where a rank's part of a stored tensor lies, as rows of bytes; for packing and for its proof.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "moxie/plan.hpp"
#include "moxie/tensors.hpp"

namespace moxie {

// A whole stored tensor: `rows` rows of `row_bytes`. One of a scalar; of types that do not fill
// bytes, bytes.
struct TensorRows {
  std::uint64_t rows = 0;
  std::uint64_t row_bytes = 0;
};
TensorRows rows_of(const ModelTensor& tensor);

// What one rank takes of a tensor and how much room it has: `rows` rows of `row_bytes`, of which
// the first `real_rows` begin with `real_row_bytes` of the source. The rest is tail.
struct TensorPart {
  std::uint64_t first_row = 0;   // of the source
  std::uint64_t first_byte = 0;  // inside a source row
  std::uint64_t real_rows = 0;
  std::uint64_t real_row_bytes = 0;
  std::uint64_t source_row_bytes = 0;
  std::uint64_t rows = 0;
  std::uint64_t row_bytes = 0;
  Tail tail = Tail::zero;

  [[nodiscard]] std::uint64_t bytes() const { return rows * row_bytes; }
  [[nodiscard]] std::uint64_t real_bytes() const { return real_rows * real_row_bytes; }
};
// Of a tensor without a cut every rank's part is the whole. A plan or a cut under which the part
// would lie outside the tensor is a bug.
TensorPart part_of(const ModelTensor& tensor, const ShardPlan& plan, unsigned tp_rank);
// The extents of a part, the same on all ranks.
Shape part_shape(const ModelTensor& tensor, const ShardPlan& plan);

// Bytes of a stored tensor.
struct TensorRange {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};
// The whole rows of the tensor that rows [first, first + count) of the part are cut from.
TensorRange source_of(const TensorPart& part, std::uint64_t first, std::uint64_t count);

// Writes rows [first, first + out.size() / row_bytes) of the part, all bytes of them. `source` is
// the bytes of source_of() these rows.
void copy_rows(const TensorPart& part, std::span<const std::byte> source, std::uint64_t first,
               std::span<std::byte> out);

// What byte `at` of a tail is, counted from its begin.
std::byte tail_byte(Tail tail, std::uint64_t at);
// The first byte that is not the tail's; tail.size() when there is none.
std::size_t first_off_tail(std::span<const std::byte> bytes, Tail tail);

}  // namespace moxie

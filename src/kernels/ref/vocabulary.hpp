// SPDX-License-Identifier: Apache-2.0
// Embedding and head of one rank's rows of the vocabulary.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace moxie::ref {

// Rows are ids `first`, `first` + 1, ...; those from `real_rows` on are virtual: no token has them.
struct VocabularyShard {
  std::uint64_t first = 0;
  std::uint64_t real_rows = 0;
  std::uint64_t hidden = 0;
  std::span<const std::uint16_t> rows;  // [local rows, hidden] bf16
};

struct ShardLogits {
  std::uint64_t first = 0;
  std::vector<double> logits;     // [local rows]; -infinity for virtual rows whatever they hold
  std::vector<double> magnitude;  // [local rows] sums of |row| |x|; 0 for virtual rows
};

ShardLogits logits(const VocabularyShard& shard, std::span<const double> x);

// The id of the largest logit over all shards, the lowest of those that share it. None where a
// logit is NaN, or where no logit is above -infinity.
std::optional<std::uint64_t> argmax(std::span<const ShardLogits> shards);

// The row of a token; zeros where the shard does not have it, so that the sum over shards is the
// row.
std::vector<double> embed(const VocabularyShard& shard, std::uint64_t id);

}  // namespace moxie::ref

// SPDX-License-Identifier: Apache-2.0
// Virtual rows are masked by their number and never read.
#include "kernels/ref/vocabulary.hpp"

#include <cmath>
#include <limits>

#include "base/checked.hpp"
#include "formats/bf16.hpp"

namespace moxie::ref {

namespace {

constexpr double kMasked = -std::numeric_limits<double>::infinity();

void check(const VocabularyShard& shard) {
  MOXIE_CHECK(shard.hidden > 0 && shard.rows.size() % shard.hidden == 0, "rows are whole");
  MOXIE_CHECK(shard.real_rows <= shard.rows.size() / shard.hidden, "real rows are local rows");
}

double value_at(const VocabularyShard& shard, std::uint64_t row, std::uint64_t i) {
  return static_cast<double>(decode_bf16(shard.rows[row * shard.hidden + i]));
}

}  // namespace

ShardLogits logits(const VocabularyShard& shard, std::span<const double> x) {
  check(shard);
  MOXIE_CHECK(x.size() == shard.hidden, "x is as wide as a row");
  const std::uint64_t rows = shard.rows.size() / shard.hidden;
  ShardLogits result{.first = shard.first,
                     .logits = std::vector<double>(rows, kMasked),
                     .magnitude = std::vector<double>(rows)};
  for (std::uint64_t row = 0; row < shard.real_rows; ++row) {
    double sum = 0;
    for (std::uint64_t i = 0; i < shard.hidden; ++i) {
      const double term = value_at(shard, row, i) * x[i];
      sum += term;
      result.magnitude[row] += std::abs(term);
    }
    result.logits[row] = sum;
  }
  return result;
}

std::optional<std::uint64_t> argmax(std::span<const ShardLogits> shards) {
  std::optional<std::uint64_t> best;
  double most = kMasked;
  for (const ShardLogits& shard : shards) {
    for (std::uint64_t row = 0; row < shard.logits.size(); ++row) {
      const double logit = shard.logits[row];
      const std::uint64_t id = shard.first + row;
      if (std::isnan(logit)) return std::nullopt;
      if (logit > most || (best && logit == most && id < *best)) {
        most = logit;
        best = id;
      }
    }
  }
  return best;
}

std::vector<double> embed(const VocabularyShard& shard, std::uint64_t id) {
  check(shard);
  std::vector<double> row(shard.hidden);
  if (id < shard.first || id - shard.first >= shard.real_rows) return row;
  for (std::uint64_t i = 0; i < shard.hidden; ++i) row[i] = value_at(shard, id - shard.first, i);
  return row;
}

}  // namespace moxie::ref

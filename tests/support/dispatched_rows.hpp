// SPDX-License-Identifier: Apache-2.0
// Rows as somebody else's dispatch brings them to a rank, and the same rows as choices.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "moxie/layer.hpp"
#include "moxie/plan.hpp"

namespace moxie::test {

struct DispatchedRows {
  std::uint64_t rows = 0;
  std::uint64_t hidden = 0;
  std::uint64_t apart = 0;
  std::vector<std::int32_t> counts;  // [experts of the rank]
  std::vector<float> x;              // [rows, hidden]
  std::vector<float> scales;         // [rows]
  std::vector<std::int32_t> ids;     // [rows] of the model; -1: nobody's
};

// Experts with 0 to `most` rows; apart, or one behind the other with rows of nobody at the end.
inline DispatchedRows dispatched_rows(const ShardPlan& plan, unsigned rank, std::uint64_t most,
                                      bool apart, std::mt19937_64& random) {
  const RankExperts& experts = plan.ranks[rank].experts;
  DispatchedRows made{.hidden = plan.hidden, .apart = apart ? most + 1 : 0};
  for (std::uint64_t local = 0; local < experts.count(); ++local) {
    made.counts.push_back(static_cast<std::int32_t>(random() % (most + 1)));
    const auto count = static_cast<std::uint64_t>(made.counts.back());
    for (std::uint64_t row = 0; row < (apart ? made.apart : count); ++row)
      made.ids.push_back(row < count ? static_cast<std::int32_t>(experts.id(local)) : -1);
  }
  if (!apart) made.ids.insert(made.ids.end(), 3, -1);
  made.rows = made.ids.size();
  std::normal_distribution<float> value;
  for (std::uint64_t at = 0; at < made.rows * made.hidden; ++at) made.x.push_back(value(random));
  for (std::uint64_t row = 0; row < made.rows; ++row) made.scales.push_back(value(random));
  return made;
}

inline MatrixRef rows_ref(const DispatchedRows& rows, const void* data) {
  return {.data = data,
          .dtype = DType::f32,
          .rows = rows.rows,
          .cols = rows.hidden,
          .row_stride = rows.hidden};
}
inline MutableMatrixRef rows_ref(const DispatchedRows& rows, void* data, DType dtype) {
  return {.data = data,
          .dtype = dtype,
          .rows = rows.rows,
          .cols = rows.hidden,
          .row_stride = rows.hidden};
}

}  // namespace moxie::test

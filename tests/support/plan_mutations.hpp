// SPDX-License-Identifier: Apache-2.0
// Every plan that differs from a right one by one in one number.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "moxie/plan.hpp"

namespace moxie::test {

struct PlanMutation {
  std::string what;  // "rank 1 bytes.src -1", "segment up offset +1"
  ShardPlan plan;
};

inline std::string signed_step(std::uint64_t step) { return step == 1 ? " +1" : " -1"; }

// src, count and dst of each unit on each rank, one more and one less. Less than 0 wraps around.
inline std::vector<PlanMutation> slice_mutations(const ShardPlan& plan) {
  static constexpr std::array kFields = {"src", "count", "dst"};
  std::vector<PlanMutation> mutations;
  const auto mutate = [&](std::size_t rank, const char* unit, auto InterSlice::* range) {
    for (std::size_t field = 0; field < kFields.size(); ++field) {
      for (const std::uint64_t step : {std::uint64_t{1}, ~std::uint64_t{0}}) {
        PlanMutation mutation{
            "rank " + std::to_string(rank) + " " + unit + "." + kFields[field] + signed_step(step),
            plan};
        auto& changed = mutation.plan.ranks[rank].slice.*range;
        (field == 0 ? changed.src : field == 1 ? changed.count : changed.dst).value += step;
        mutations.push_back(std::move(mutation));
      }
    }
  };
  for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank) {
    mutate(rank, "rows", &InterSlice::rows);
    mutate(rank, "bytes", &InterSlice::bytes);
    mutate(rank, "groups", &InterSlice::groups);
  }
  return mutations;
}

// offset, rows and row_bytes of each segment, one more and one less.
inline std::vector<PlanMutation> layout_mutations(const ShardPlan& plan) {
  std::vector<PlanMutation> mutations;
  const auto mutate = [&](std::size_t i, const char* name, std::uint64_t PackedSegment::* field) {
    for (const std::uint64_t step : {std::uint64_t{1}, ~std::uint64_t{0}}) {
      const Segment segment = plan.layout.segments[i].segment;
      PlanMutation mutation{
          "segment " + std::string(name_of(segment)) + " " + name + signed_step(step), plan};
      mutation.plan.layout.segments[i].*field += step;
      mutations.push_back(std::move(mutation));
    }
  };
  for (std::size_t i = 0; i < plan.layout.segments.size(); ++i) {
    mutate(i, "offset", &PackedSegment::offset);
    mutate(i, "rows", &PackedSegment::rows);
    mutate(i, "row_bytes", &PackedSegment::row_bytes);
  }
  return mutations;
}

}  // namespace moxie::test

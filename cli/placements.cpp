// SPDX-License-Identifier: Apache-2.0
// The one place of the command that reads a placement file.
#include "cli/placements.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "cli/open_file.hpp"

namespace moxie::cli {

namespace {

constexpr std::size_t kMostRuns = 8;

// Ids from `first` on that ascend by one.
struct Run {
  std::uint64_t first = 0;
  std::uint64_t last = 0;
};

std::vector<Run> runs_of(const RankExperts& experts) {
  std::vector<Run> runs;
  for (const std::uint64_t id : experts.ids()) {
    if (!runs.empty() && runs.back().last + 1 == id)
      runs.back().last = id;
    else
      runs.push_back({id, id});
  }
  return runs;
}

}  // namespace

Placement read_placement(const std::optional<GivenPlacement>& given) {
  if (!given) return {};
  if (given->kind != PlacementKind::file) return {.kind = given->kind};
  std::ifstream stream = open_file(given->file);
  if (!stream) {
    throw Error(ErrorCode::input, {.code = "MOXIE-P023",
                                   .message = "the placement can not be read",
                                   .where = {.file = given->file.string()},
                                   .expected = "a JSON file",
                                   .got = "none"});
  }
  const std::string text((std::istreambuf_iterator<char>(stream)), {});
  return placement_from_json(Json::parse(text, given->file.string()), given->file.string());
}

std::string word_of(const GivenPlacement& given) {
  const std::string name(name_of(given.kind));
  return given.kind == PlacementKind::file ? name + ":" + given.file.string() : name;
}

bool is_placed(const ShardPlan& plan, const Placement& placement) {
  if (placement.kind == PlacementKind::file && placement.map.size() != plan.ep) return false;
  return std::ranges::all_of(plan.ranks, [&](const RankPlan& rank) {
    return experts_of(placement, plan.experts, plan.ep, rank.ep_rank) == rank.experts;
  });
}

std::string experts_text(const RankExperts& experts) {
  if (const auto range = experts.range()) return fmt::format("[{}, {})", range->first, range->end);
  const std::vector<std::uint64_t> ids = experts.ids();
  const std::uint64_t step = ids[1] - ids[0];
  const bool steady = ids.size() > 2 && ids[1] > ids[0] &&
                      std::ranges::adjacent_find(ids, [&](std::uint64_t a, std::uint64_t b) {
                        return a + step != b;
                      }) == ids.end();
  if (steady) return fmt::format("{}..{} step {}", ids.front(), ids.back(), step);
  const std::vector<Run> runs = runs_of(experts);
  std::string text;
  for (std::size_t i = 0; i < std::min(runs.size(), kMostRuns); ++i) {
    if (i > 0) text += ", ";
    text += runs[i].first == runs[i].last ? fmt::to_string(runs[i].first)
                                          : fmt::format("{}..{}", runs[i].first, runs[i].last);
  }
  return runs.size() > kMostRuns ? fmt::format("{}, … ({})", text, ids.size()) : text;
}

}  // namespace moxie::cli

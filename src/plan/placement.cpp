// SPDX-License-Identifier: Apache-2.0
// Placements and what follows from them; a map is checked once, before anything is made of it.
#include "moxie/placement.hpp"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "moxie/status.hpp"

namespace moxie {

namespace {

[[noreturn]] void refuse_map(std::string code, std::string message, std::string expected,
                             std::string got, std::optional<std::uint64_t> expert = {}) {
  throw Error(ErrorCode::input, {.code = std::move(code),
                                 .message = std::move(message),
                                 .where = {.expert = expert},
                                 .expected = std::move(expected),
                                 .got = std::move(got)});
}

[[noreturn]] void refuse_document(std::string_view origin, std::string message, std::string got) {
  throw Error(ErrorCode::input, {.code = "MOXIE-P023",
                                 .message = std::move(message),
                                 .where = {.file = std::string(origin)},
                                 .expected = R"({"experts": [[0, 2], [1, 3]]}: a list of ids for )"
                                             "each expert-parallel rank",
                                 .got = std::move(got)});
}

}  // namespace

RankExperts::RankExperts(std::vector<std::uint64_t> ids) {
  const bool gap = std::ranges::adjacent_find(ids, [](std::uint64_t a, std::uint64_t b) {
                     return a + 1 != b;
                   }) != ids.end();
  if (!gap) {
    if (!ids.empty()) range_ = {.first = ids.front(), .end = ids.back() + 1};
    return;
  }
  ids_ = std::move(ids);
  slots_by_id_.resize(ids_.size());
  std::iota(slots_by_id_.begin(), slots_by_id_.end(), 0);
  std::ranges::sort(slots_by_id_, {}, [this](std::uint64_t slot) { return ids_[slot]; });
}

std::optional<std::uint64_t> RankExperts::slot_of(std::uint64_t expert) const {
  if (ids_.empty()) {
    if (expert < range_.first || expert >= range_.end) return std::nullopt;
    return expert - range_.first;
  }
  const auto found = std::ranges::lower_bound(slots_by_id_, expert, {},
                                              [this](std::uint64_t slot) { return ids_[slot]; });
  if (found == slots_by_id_.end() || ids_[*found] != expert) return std::nullopt;
  return *found;
}

std::vector<std::uint64_t> RankExperts::ids() const {
  if (!ids_.empty()) return ids_;
  std::vector<std::uint64_t> ids(range_.count());
  std::iota(ids.begin(), ids.end(), range_.first);
  return ids;
}

std::optional<ExpertRange> RankExperts::range() const {
  return ids_.empty() ? std::optional(range_) : std::nullopt;
}

std::string_view name_of(PlacementKind kind) {
  switch (kind) {
    case PlacementKind::contiguous:
      return "contiguous";
    case PlacementKind::interleaved:
      return "interleaved";
    case PlacementKind::file:
      return "file";
  }
  return "unknown";
}

ExpertRange experts_of(std::uint64_t experts, unsigned ep, unsigned ep_rank) {
  const std::uint64_t each = experts / ep;
  const std::uint64_t longer = experts % ep;  // ranks that hold one more
  const std::uint64_t first = each * ep_rank + std::min<std::uint64_t>(ep_rank, longer);
  return {.first = first, .end = first + each + (ep_rank < longer ? 1 : 0)};
}

RankExperts experts_of(const Placement& placement, std::uint64_t experts, unsigned ep,
                       unsigned ep_rank) {
  if (placement.kind == PlacementKind::contiguous) return experts_of(experts, ep, ep_rank);
  if (placement.kind == PlacementKind::file) return RankExperts(placement.map[ep_rank]);
  std::vector<std::uint64_t> ids;
  for (std::uint64_t expert = ep_rank; expert < experts; expert += ep) ids.push_back(expert);
  return RankExperts(std::move(ids));
}

void check_placement(const Placement& placement, std::uint64_t experts, unsigned ep) {
  if (placement.kind != PlacementKind::file) return;
  if (placement.map.size() != ep) {
    throw Error(ErrorCode::usage,
                {.code = "MOXIE-P020",
                 .message = "the placement is for another number of expert-parallel ranks",
                 .expected = std::to_string(ep) + " lists of experts",
                 .got = std::to_string(placement.map.size()),
                 .hint = "say --ep " + std::to_string(placement.map.size())});
  }
  std::vector<unsigned> seen(experts, 0);  // one more than the last rank that named it
  for (unsigned rank = 0; rank < ep; ++rank) {
    const std::string of_rank = " of expert-parallel rank " + std::to_string(rank);
    if (placement.map[rank].empty())
      refuse_map("MOXIE-P021", "the list" + of_rank + " is empty", "at least one expert", "none");
    for (const std::uint64_t expert : placement.map[rank]) {
      if (expert >= experts) {
        refuse_map("MOXIE-P021", "the list" + of_rank + " names an expert that the model lacks",
                   "ids below " + std::to_string(experts), std::to_string(expert));
      }
      if (std::exchange(seen[expert], rank + 1) == rank + 1) {
        refuse_map("MOXIE-P021", "the list" + of_rank + " names an expert twice",
                   "every id at most once", std::to_string(expert), expert);
      }
    }
  }
  const auto missing = std::ranges::find(seen, 0U);
  if (missing == seen.end()) return;
  refuse_map("MOXIE-P022", "the placement puts an expert on no rank",
             "every expert on at least one", "none",
             static_cast<std::uint64_t>(missing - seen.begin()));
}

Placement placement_from_json(const Json& document, std::string_view origin) {
  const Json* lists = document.find("experts");
  if (lists == nullptr || !lists->is_array())
    refuse_document(origin, "the placement has no lists of experts", "none");
  if (document.members().size() > 1)
    refuse_document(origin, "a placement has no other key than experts",
                    std::to_string(document.members().size()) + " keys");
  Placement placement{.kind = PlacementKind::file};
  for (const Json& list : lists->elements()) {
    if (!list.is_array())
      refuse_document(origin, "an element of experts is no list", list.dump_compact());
    std::vector<std::uint64_t>& ids = placement.map.emplace_back();
    for (const Json& id : list.elements()) {
      constexpr std::uint64_t kNone = ~std::uint64_t{0};
      ids.push_back(id.as_unsigned(kNone));
      if (ids.back() == kNone)
        refuse_document(origin, "an expert's id is no whole number", id.dump_compact());
    }
  }
  return placement;
}

ExpertOwners::ExpertOwners(std::uint64_t experts, std::span<const RankExperts> of_ep_ranks)
    : first_(experts + 1, 0) {
  for (const RankExperts& rank : of_ep_ranks) {
    for (std::uint64_t slot = 0; slot < rank.count(); ++slot) ++first_[rank.id(slot) + 1];
  }
  redundant_ = std::ranges::any_of(first_, [](std::uint64_t count) { return count > 1; });
  std::partial_sum(first_.begin(), first_.end(), first_.begin());
  holders_.resize(first_.back());
  std::vector<std::uint64_t> next(first_.begin(), first_.end() - 1);
  for (std::uint32_t number = 0; number < of_ep_ranks.size(); ++number) {
    const RankExperts& rank = of_ep_ranks[number];
    for (std::uint64_t slot = 0; slot < rank.count(); ++slot)
      holders_[next[rank.id(slot)]++] = number;
  }
}

std::span<const std::uint32_t> ExpertOwners::holders(std::uint64_t expert) const {
  return std::span(holders_).subspan(first_[expert], first_[expert + 1] - first_[expert]);
}

std::optional<std::uint32_t> ExpertOwners::owner(std::span<const std::int32_t> topk_ids,
                                                 std::size_t choice) const {
  if (!names_expert(topk_ids[choice])) return std::nullopt;
  const auto held = holders(static_cast<std::uint64_t>(topk_ids[choice]));
  if (held.size() <= 1) return held.empty() ? std::nullopt : std::optional(held.front());
  std::uint64_t sum = 0;
  for (const std::int32_t id : topk_ids) sum += names_expert(id) ? static_cast<unsigned>(id) : 0U;
  return held[sum % held.size()];
}

}  // namespace moxie

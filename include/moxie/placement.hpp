// SPDX-License-Identifier: Apache-2.0
// The one map between experts and expert-parallel ranks: who holds which, in which slot, and who
// of several holders computes a choice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "moxie/api.hpp"
#include "moxie/json.hpp"

namespace moxie {

// Global expert ids [first, end).
struct ExpertRange {
  std::uint64_t first = 0;
  std::uint64_t end = 0;

  [[nodiscard]] constexpr std::uint64_t count() const { return end - first; }
  friend constexpr bool operator==(const ExpertRange&, const ExpertRange&) = default;
};

// Global ids of the experts that a rank holds, in slot order: its local expert l is id(l).
class MOXIE_API RankExperts {
 public:
  RankExperts() = default;
  RankExperts(ExpertRange range) : range_(range) {}  // NOLINT(google-explicit-constructor)
  // Ids in slot order, none twice. Those of a range in ascending order are held as one.
  explicit RankExperts(std::vector<std::uint64_t> ids);

  [[nodiscard]] std::uint64_t count() const { return ids_.empty() ? range_.count() : ids_.size(); }
  // `slot` is below count().
  [[nodiscard]] std::uint64_t id(std::uint64_t slot) const {
    return ids_.empty() ? range_.first + slot : ids_[slot];
  }
  [[nodiscard]] std::optional<std::uint64_t> slot_of(std::uint64_t expert) const;
  [[nodiscard]] bool holds(std::uint64_t expert) const { return slot_of(expert).has_value(); }
  [[nodiscard]] std::vector<std::uint64_t> ids() const;
  // Nothing where the ids are not those of a range in ascending order.
  [[nodiscard]] std::optional<ExpertRange> range() const;

  friend bool operator==(const RankExperts&, const RankExperts&) = default;

 private:
  ExpertRange range_;               // where ids_ is empty
  std::vector<std::uint64_t> ids_;  // [slots]
  std::vector<std::uint64_t> slots_by_id_;
};

// How experts go to expert-parallel ranks. Contiguous: near-equal ranges. Interleaved: expert e to
// rank e % ep, ascending. File: as a map says, where an expert may lie on several ranks.
enum class PlacementKind : std::uint8_t { contiguous, interleaved, file };
MOXIE_API std::string_view name_of(PlacementKind kind);

struct Placement {
  PlacementKind kind = PlacementKind::contiguous;
  std::vector<std::vector<std::uint64_t>> map{};  // of `file`: [ep] ids in slot order

  friend bool operator==(const Placement&, const Placement&) = default;
};

// Contiguous, near-equal; the first experts % ep ranks hold one more.
MOXIE_API ExpertRange experts_of(std::uint64_t experts, unsigned ep, unsigned ep_rank);
// What a rank holds of a layer with so many experts, under a placement that fits them.
MOXIE_API RankExperts experts_of(const Placement& placement, std::uint64_t experts, unsigned ep,
                                 unsigned ep_rank);

// Whether a map fits: the other kinds always do. Errors: Error(usage) MOXIE-P020 for another number
// of lists than `ep`; Error(input) MOXIE-P021 for a list that is empty, names an expert twice or
// one that is not below `experts`, MOXIE-P022 naming an expert that lies on no rank.
MOXIE_API void check_placement(const Placement& placement, std::uint64_t experts, unsigned ep);

// {"experts": [[ids of ep rank 0 in slot order], [ids of ep rank 1], …]}. Errors: Error(input)
// MOXIE-P023 for another document.
MOXIE_API Placement placement_from_json(const Json& document, std::string_view origin);

// Who computes what: loader, engine, reference and figures ask here.
class MOXIE_API ExpertOwners {
 public:
  ExpertOwners() = default;
  // `of_ep_ranks` in rank order.
  ExpertOwners(std::uint64_t experts, std::span<const RankExperts> of_ep_ranks);

  // Whether an expert lies on several ranks.
  [[nodiscard]] bool redundant() const { return redundant_; }
  // Expert-parallel ranks that hold the expert, ascending.
  [[nodiscard]] std::span<const std::uint32_t> holders(std::uint64_t expert) const;
  // The rank that computes one choice of a token: of the holders in rank order number s modulo
  // their count, where s is the sum of the token's ids that name an expert. It depends on nothing
  // but these, so that a token has one result in every batch. Nothing for an id that names no
  // expert, or one that no rank holds. Allocates nothing.
  [[nodiscard]] std::optional<std::uint32_t> owner(std::span<const std::int32_t> topk_ids,
                                                   std::size_t choice) const;

 private:
  [[nodiscard]] bool names_expert(std::int32_t id) const {
    return id >= 0 && static_cast<std::uint64_t>(id) + 1 < first_.size();
  }

  std::vector<std::uint64_t> first_;    // [experts + 1], into holders_
  std::vector<std::uint32_t> holders_;  // expert by expert
  bool redundant_ = false;
};

}  // namespace moxie

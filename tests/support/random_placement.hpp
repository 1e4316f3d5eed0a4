// SPDX-License-Identifier: Apache-2.0
// Maps of experts to ranks, some of them on several.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "moxie/placement.hpp"

namespace moxie::test {

inline Placement interleaved() { return {.kind = PlacementKind::interleaved}; }

inline Placement placed(std::vector<std::vector<std::uint64_t>> map) {
  return {.kind = PlacementKind::file, .map = std::move(map)};
}

// Every expert on at least one rank and about half of them on more, in any order.
inline Placement random_placement(std::uint64_t experts, unsigned ep, std::mt19937_64& random) {
  std::vector<std::vector<std::uint64_t>> map(ep);
  for (std::uint64_t expert = 0; expert < experts; ++expert) {
    const std::uint64_t first = expert < ep ? expert : random() % ep;
    map[first].push_back(expert);
    for (std::uint64_t rank = 0; rank < ep; ++rank) {
      if (rank != first && random() % (2 * ep) < 2) map[rank].push_back(expert);
    }
  }
  for (auto& ids : map) std::ranges::shuffle(ids, random);
  return placed(std::move(map));
}

}  // namespace moxie::test

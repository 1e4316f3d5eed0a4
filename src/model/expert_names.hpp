// SPDX-License-Identifier: Apache-2.0
// Finds expert tensors by the shape of their names, whatever the model calls its blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "moxie/checkpoint.hpp"

namespace moxie {

// The expert tensors under one prefix, "PREFIX.EXPERT.LEAF": for "layers.3.ffn.experts.7.w1.weight"
// the prefix is "layers.3.ffn.experts" and the leaf "w1.weight".
struct ExpertGroup {
  bool mtp = false;
  int number = 0;  // of the layer, or of the multi-token-prediction block
  std::map<std::string, DType, std::less<>> leaves;  // of any expert, with the type first seen
  std::uint64_t expert_end = 0;                      // largest expert id plus one
  std::uint64_t tensors = 0;
};

struct ExpertNames {
  std::map<std::string, ExpertGroup, std::less<>> groups;  // by prefix
  std::vector<std::string_view>
      unmatched;            // names that speak of routed experts in another way, at most 8
  std::string main_prefix;  // with "{}" for the layer number, from the first group found; empty
                            // when there is none
};

// The layer or multi-token-prediction block that a prefix names; nullopt when it has no number.
// Layers are numbered "layers.0", blocks "mtp.0" or "mtp.layers.0"; `stacked_words` are others that
// a prefix may begin with and that number layers.
struct BlockNumber {
  bool mtp = false;
  int number = 0;
  std::size_t digits_at = 0;  // of a layer: where its number stands
};
std::optional<BlockNumber> block_of(std::string_view prefix,
                                    std::span<const std::string_view> stacked_words = {});

ExpertNames find_expert_names(const Checkpoint& checkpoint);

}  // namespace moxie

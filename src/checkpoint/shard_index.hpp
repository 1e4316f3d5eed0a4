// SPDX-License-Identifier: Apache-2.0
// model.safetensors.index.json: which shard holds which tensor.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace moxie {

struct ShardIndex {
  struct Entry {
    std::string tensor;
    std::uint32_t shard = 0;  // index into `shards`
  };
  std::vector<std::string> shards;  // file names in order of first mention
  std::vector<Entry> weight_map;
  std::optional<std::uint64_t> total_size;  // as stated; never trusted
};

// Reads an index. Extra keys are ignored. Error(input) MOXIE-C009 for an absent weight_map, a shard
// name that is not a plain file name, or a tensor mapped twice.
ShardIndex read_shard_index(std::string_view text, std::string_view origin);

}  // namespace moxie

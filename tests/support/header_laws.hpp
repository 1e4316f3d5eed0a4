// SPDX-License-Identifier: Apache-2.0
// What must hold for every header and index that the readers accept, whatever the bytes were.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/safetensors_header.hpp"
#include "checkpoint/shard_index.hpp"

namespace moxie::test {

// The first law that an accepted header breaks, or nothing. Counts bytes with 128 bits, so that an
// overflow in the reader can not hide.
inline std::string broken_law(const SafetensorsHeader& header, std::span<const std::byte> file) {
  __extension__ using Wide = unsigned __int128;
  if (header.header_bytes < 10 || header.header_bytes > file.size())
    return "header outside the file";
  std::set<std::string_view> names;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> spans;
  for (const TensorInfo& tensor : header.tensors) {
    if (!names.insert(tensor.name).second) return "two tensors named " + tensor.name;
    if (tensor.offset < header.header_bytes) return tensor.name + " begins in the header";
    if (Wide{tensor.offset} + tensor.bytes > file.size())
      return tensor.name + " ends behind the file";
    Wide elements = 1;
    for (const std::uint64_t extent : tensor.shape) {
      elements *= extent;
      if (elements >> 64U != 0) return tensor.name + " has an overflowing shape";
    }
    if (elements * bits_of(tensor.dtype) != Wide{tensor.bytes} * 8) {
      return tensor.name + " has another size than its shape";
    }
    spans.emplace_back(tensor.offset, tensor.offset + tensor.bytes);
  }
  std::ranges::sort(spans);
  std::uint64_t end = header.header_bytes;
  for (const auto& [first, last] : spans) {
    if (first != end) return "a hole or an overlap at byte " + std::to_string(first);
    end = last;
  }
  return end == file.size() ? "" : "bytes that belong to no tensor";
}

// The first law that an accepted index breaks, or nothing.
inline std::string broken_law(const ShardIndex& index) {
  std::set<std::string_view> names;
  for (const ShardIndex::Entry& entry : index.weight_map) {
    if (!names.insert(entry.tensor).second) return "tensor " + entry.tensor + " is mapped twice";
    if (entry.shard >= index.shards.size()) return "tensor " + entry.tensor + " is in no shard";
  }
  std::set<std::string_view> shards;
  for (const std::string& shard : index.shards) {
    if (!shards.insert(shard).second) return "shard " + shard + " is listed twice";
    if (shard.empty() || shard == "." || shard == "..") return "shard name \"" + shard + "\"";
    if (shard.find('/') != shard.npos || shard.find('\0') != shard.npos)
      return "shard name " + shard;
  }
  return "";
}

}  // namespace moxie::test

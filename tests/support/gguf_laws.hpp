// SPDX-License-Identifier: Apache-2.0
// What must hold for every GGUF header that the reader accepts, whatever the bytes were.
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

#include "checkpoint/gguf_header.hpp"

namespace moxie::test {

// The first law that an accepted header breaks, or nothing. Counts with 128 bits, so that an
// overflow in the reader can not hide.
inline std::string broken_law(const GgufHeader& header, std::span<const std::byte> file) {
  __extension__ using Wide = unsigned __int128;
  if (header.header_bytes < 24 || header.header_bytes > file.size())
    return "header outside the file";
  std::set<std::string_view> names;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> spans;
  for (const TensorInfo& tensor : header.tensors) {
    if (tensor.name.empty() || !names.insert(tensor.name).second)
      return "no name, or two tensors named " + tensor.name;
    if (tensor.offset < header.header_bytes) return tensor.name + " begins in the header";
    if (Wide{tensor.offset} + tensor.bytes > file.size())
      return tensor.name + " ends behind the file";
    Wide elements = 1;
    for (const std::uint64_t extent : tensor.shape) elements *= extent;
    if (elements >> 64U != 0) return tensor.name + " has an overflowing shape";
    const bool mxfp4 = tensor.dtype == DType::mxfp4_blocks;
    const Wide bits = mxfp4                                 ? elements / 32 * 17 * 8
                      : tensor.dtype == DType::nvfp4_blocks ? elements / 64 * 36 * 8
                                                            : elements * bits_of(tensor.dtype);
    if (tensor.dtype != DType::other_blocks && bits != Wide{tensor.bytes} * 8)
      return tensor.name + " has another size than its shape";
    spans.emplace_back(tensor.offset, tensor.offset + tensor.bytes);
  }
  std::ranges::sort(spans);
  std::uint64_t end = header.header_bytes;
  for (const auto& [first, last] : spans) {
    if (first < end) return "an overlap at byte " + std::to_string(first);
    end = last;
  }
  std::set<std::string_view> keys;
  for (const JsonMember& member : header.metadata.members()) {
    if (!keys.insert(member.key).second) return "key " + member.key + " twice";
    if (member.value.is_array() && member.value.elements().size() > 1024) return "a long list";
  }
  return "";
}

}  // namespace moxie::test

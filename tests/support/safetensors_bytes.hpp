// SPDX-License-Identifier: Apache-2.0
// Safetensors files put together from raw text, so that every part of them can lie.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

namespace moxie::test {

// The 8 bytes that state the header's length.
inline std::string length_field(std::uint64_t length) {
  std::string bytes(8, '\0');
  for (unsigned i = 0; i < 8; ++i) bytes[i] = static_cast<char>((length >> (8 * i)) & 0xFFU);
  return bytes;
}

// A file whose length field tells the truth about `header`.
inline std::string safetensors_bytes(std::string_view header, std::string_view data) {
  return length_field(header.size()) + std::string(header) + std::string(data);
}

// One member of a header: "name":{"dtype":…,"shape":[…],"data_offsets":[begin,end]}. Nothing is
// checked.
inline std::string entry(std::string_view name, std::string_view dtype, std::string_view shape,
                         std::uint64_t begin, std::uint64_t end) {
  return '"' + std::string(name) + R"(":{"dtype":")" + std::string(dtype) + R"(","shape":[)" +
         std::string(shape) + R"(],"data_offsets":[)" + std::to_string(begin) + "," +
         std::to_string(end) + "]}";
}

// A header of these members, joined by commas.
inline std::string header_of(std::initializer_list<std::string> members) {
  std::string text = "{";
  for (const std::string& member : members) text += (text.size() > 1 ? "," : "") + member;
  return text + "}";
}

}  // namespace moxie::test

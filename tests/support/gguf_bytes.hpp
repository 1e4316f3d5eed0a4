// SPDX-License-Identifier: Apache-2.0
// GGUF files put together from parts, so that every part of them can lie.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

namespace moxie::test {

template <class T>
std::string le(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}
inline std::string u32(std::uint32_t value) { return le(value); }
inline std::string u64(std::uint64_t value) { return le(value); }
inline std::string gguf_text(std::string_view text) { return u64(text.size()) + std::string(text); }

// Key, kind, value.
inline std::string pair(std::string_view key, std::uint32_t kind, std::string_view value) {
  return gguf_text(key) + u32(kind) + std::string(value);
}
inline std::string number_pair(std::string_view key, std::uint32_t value) {
  return pair(key, 4, u32(value));
}
inline std::string text_pair(std::string_view key, std::string_view value) {
  return pair(key, 8, gguf_text(value));
}
inline std::string array_pair(std::string_view key, std::uint32_t kind, std::uint64_t count,
                              std::string_view elements) {
  return pair(key, 9, u32(kind) + u64(count) + std::string(elements));
}

// A tensor entry; extents innermost first, as the file has them.
inline std::string gguf_entry(std::string_view name, std::initializer_list<std::uint64_t> extents,
                              std::uint32_t type, std::uint64_t offset) {
  std::string entry = gguf_text(name) + u32(static_cast<std::uint32_t>(extents.size()));
  for (const std::uint64_t extent : extents) entry += u64(extent);
  return entry + u32(type) + u64(offset);
}

inline std::string padded(std::string bytes, std::size_t alignment = 32) {
  bytes.resize((bytes.size() + alignment - 1) / alignment * alignment, '\0');
  return bytes;
}

// Counts tell the truth about the parts.
inline std::string gguf_header(std::initializer_list<std::string> pairs,
                               std::initializer_list<std::string> entries,
                               std::uint32_t version = 3) {
  std::string file = "GGUF" + u32(version) + u64(entries.size()) + u64(pairs.size());
  for (const std::string& part : pairs) file += part;
  for (const std::string& part : entries) file += part;
  return file;
}
inline std::string gguf_bytes(std::initializer_list<std::string> pairs,
                              std::initializer_list<std::string> entries, std::string_view data,
                              std::size_t alignment = 32) {
  return padded(gguf_header(pairs, entries), alignment) + std::string(data);
}

}  // namespace moxie::test

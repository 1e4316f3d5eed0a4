// SPDX-License-Identifier: Apache-2.0
// The header in memory, then the data as it comes.
#include "checkpoint/gguf_writer.hpp"

#include <bit>
#include <cstring>
#include <ranges>
#include <string_view>

#include "base/checked.hpp"
#include "checkpoint/gguf_types.hpp"

namespace moxie {

namespace {

static_assert(std::endian::native == std::endian::little, "GGUF files are little endian");

template <class T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}
void put_text(std::string& out, std::string_view text) {
  put<std::uint64_t>(out, text.size());
  out += text;
}

// Kind and value.
struct PutValue {
  std::string& out;

  void operator()(std::uint32_t value) const {
    put(out, GgufValue::u32);
    put(out, value);
  }
  void operator()(float value) const {
    put(out, GgufValue::f32);
    put(out, value);
  }
  void operator()(bool value) const {
    put(out, GgufValue::boolean);
    put(out, static_cast<std::uint8_t>(value));
  }
  void operator()(const std::string& value) const {
    put(out, GgufValue::string);
    put_text(out, value);
  }
};

}  // namespace

GgufWriter::GgufWriter(const std::filesystem::path& path, const GgufPairs& metadata,
                       const std::vector<TensorEntry>& entries)
    : file_(path) {
  std::string header;
  put(header, kGgufMagic);
  put<std::uint32_t>(header, 3);
  put<std::uint64_t>(header, entries.size());
  put<std::uint64_t>(header, metadata.size());
  for (const auto& [key, value] : metadata) {
    put_text(header, key);
    std::visit(PutValue{header}, value);
  }
  std::uint64_t offset = 0;
  for (const TensorEntry& entry : entries) {
    const auto type = gguf_type(entry.dtype);
    MOXIE_CHECK(type.has_value(), "GGUF has the type of what is written");
    put_text(header, entry.name);
    put(header, static_cast<std::uint32_t>(entry.shape.size()));
    for (const std::uint64_t extent : std::views::reverse(entry.shape)) put(header, extent);
    put(header, type->number);
    put(header, offset);
    ends_.push_back(offset + entry.bytes());
    offset = round_up(ends_.back(), kGgufAlignment);
  }
  file_.write(header);
  pad();
  for (std::uint64_t& end : ends_) end += file_.bytes();
}

void GgufWriter::pad() {
  const std::uint64_t bytes = round_up(file_.bytes(), kGgufAlignment) - file_.bytes();
  file_.write(std::string(bytes, '\0'));
}

void GgufWriter::finish_tensor() {
  MOXIE_CHECK(finished_ < ends_.size() && file_.bytes() == ends_[finished_],
              "a tensor has exactly its announced bytes");
  ++finished_;
  pad();
}

void GgufWriter::commit() {
  MOXIE_CHECK(finished_ == ends_.size(), "every announced tensor is written");
  file_.commit();
}

}  // namespace moxie

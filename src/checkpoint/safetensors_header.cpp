// SPDX-License-Identifier: Apache-2.0
// Rules: 8-byte little-endian header length; a JSON object of {dtype, shape, data_offsets}; no
// duplicate keys; shape and width equal the span; spans cover the data section exactly. Source:
// safetensors README and its reference reader.
#include "checkpoint/safetensors_header.hpp"

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "base/checked.hpp"
#include "base/json_events.hpp"
#include "checkpoint/dtype_name.hpp"
#include "checkpoint/name_table.hpp"

namespace moxie {

namespace {

[[noreturn]] void refuse(Finding finding) { throw Error(ErrorCode::input, std::move(finding)); }

// Collects the entries; states follow the nesting: document, tensor entry or metadata, array inside
// an entry.
class HeaderEvents final : public JsonEvents {
 public:
  explicit HeaderEvents(std::string_view origin) : origin_(origin) {}

  std::vector<TensorInfo> take() { return std::move(tensors_); }

  void null() override { unexpected("null"); }
  void boolean(bool /*value*/) override { unexpected("a boolean"); }
  void negative(std::int64_t value) override { unexpected(std::to_string(value)); }
  void number(double value) override { unexpected(std::to_string(value)); }

  void unsigned_integer(std::uint64_t value) override {
    if (level_ != Level::array) unexpected(std::to_string(value));
    (field_ == Field::shape ? entry_.shape : offsets_).push_back(value);
  }
  void string(std::string_view value) override {
    if (level_ == Level::metadata) return;  // the values are free text
    if (level_ != Level::entry || field_ != Field::dtype) unexpected(quoted(value));
    const auto dtype = dtype_from_name(value);
    if (!dtype) malformed("dtype", "a safetensors dtype", quoted(value));
    entry_.dtype = *dtype;
  }
  void begin_object() override {
    switch (level_) {
      case Level::outside:
        level_ = Level::document;
        return;
      case Level::document:
        level_ = in_metadata_ ? Level::metadata : Level::entry;
        seen_ = {};
        return;
      default:
        unexpected("an object");
    }
  }
  void key(std::string_view value) override {
    switch (level_) {
      case Level::metadata:
        if (!metadata_keys_.emplace(value).second) duplicate(value);
        return;
      case Level::entry:
        return entry_key(value);
      default:
        document_key(value);
    }
  }
  void end_object() override {
    if (level_ == Level::document) {
      level_ = Level::outside;
      return;
    }
    if (level_ == Level::entry) finish_entry();
    level_ = Level::document;
  }
  void begin_array() override {
    if (level_ != Level::entry || field_ == Field::dtype) unexpected("an array");
    level_ = Level::array;
  }
  void end_array() override { level_ = Level::entry; }

 private:
  enum class Level { outside, document, entry, metadata, array };
  enum class Field : std::size_t { dtype, shape, offsets };

  static std::string quoted(std::string_view text) { return '"' + std::string(text) + '"'; }

  void document_key(std::string_view value) {
    in_metadata_ = value == "__metadata__";
    entry_ = {};
    offsets_.clear();
    entry_.name = value;
    if (in_metadata_) {
      if (std::exchange(metadata_seen_, true)) duplicate(value);
      return;
    }
    if (value.find('\0') != value.npos)
      malformed("name", "text without NUL", std::to_string(value.size()) + " bytes");
    const auto position = static_cast<std::uint32_t>(tensors_.size());
    if (names_.add(value, position,
                   [&](std::uint32_t i) -> std::string_view { return tensors_[i].name; })) {
      duplicate(value);
    }
  }
  void entry_key(std::string_view value) {
    if (value == "dtype") {
      field_ = Field::dtype;
    } else if (value == "shape") {
      field_ = Field::shape;
    } else if (value == "data_offsets") {
      field_ = Field::offsets;
    } else {
      malformed("key", "dtype, shape, data_offsets", quoted(value));
    }
    if (std::exchange(seen_[static_cast<std::size_t>(field_)], true)) {
      malformed("key", "each key once", quoted(value) + " twice");
    }
  }

  [[noreturn]] void duplicate(std::string_view key) const {
    refuse({.code = "MOXIE-C003",
            .message = "duplicate key " + quoted(key),
            .where = {.file = origin_}});
  }
  [[noreturn]] void malformed(std::string_view what, std::string expected, std::string got) const {
    refuse({.code = "MOXIE-C004",
            .message = "malformed header entry: " + std::string(what),
            .where = {.file = origin_, .tensor = entry_.name},
            .expected = std::move(expected),
            .got = std::move(got)});
  }
  [[noreturn]] void unexpected(std::string got) const {
    switch (level_) {
      case Level::outside:
        malformed("document", "an object", std::move(got));
      case Level::metadata:
        malformed("__metadata__", "strings", std::move(got));
      case Level::array:
        malformed(field_ == Field::shape ? "shape" : "data_offsets", "whole numbers",
                  std::move(got));
      default:
        malformed("value", "{dtype, shape, data_offsets}", std::move(got));
    }
  }
  [[noreturn]] void wrong_span(std::string expected, std::string got) const {
    refuse({.code = "MOXIE-C005",
            .message = std::string(name_of(entry_.dtype)) + " " + to_string(entry_.shape) +
                       " does not fit its data_offsets",
            .where = {.file = origin_, .tensor = entry_.name},
            .expected = std::move(expected),
            .got = std::move(got)});
  }

  void finish_entry() {
    if (!(seen_[0] && seen_[1] && seen_[2]))
      malformed("key", "dtype, shape and data_offsets", "an entry without all three");
    if (offsets_.size() != 2)
      malformed("data_offsets", "2 numbers", std::to_string(offsets_.size()));
    if (offsets_[0] > offsets_[1]) {
      wrong_span("begin <= end",
                 "[" + std::to_string(offsets_[0]) + ", " + std::to_string(offsets_[1]) + "]");
    }
    entry_.offset = offsets_[0];
    entry_.bytes = offsets_[1] - offsets_[0];
    std::optional<std::uint64_t> bits =
        1;  // elements first: the published reader refuses [2^33, 2^33, 0] too
    for (const std::uint64_t extent : entry_.shape) {
      if (bits) bits = checked_multiply(*bits, extent);
    }
    if (bits) bits = checked_multiply(*bits, bits_of(entry_.dtype));
    if (!bits) wrong_span("a size that fits 64 bits", "an overflow");
    if (*bits % 8 != 0) wrong_span("whole bytes", std::to_string(*bits) + " bits");
    if (*bits / 8 != entry_.bytes) {
      wrong_span(std::to_string(*bits / 8) + " bytes", std::to_string(entry_.bytes) + " bytes");
    }
    tensors_.push_back(std::move(entry_));
  }

  std::string origin_;
  std::vector<TensorInfo> tensors_;
  NameTable names_;  // over tensors_
  std::set<std::string, std::less<>> metadata_keys_;
  bool metadata_seen_ = false;
  bool in_metadata_ = false;
  Level level_ = Level::outside;
  Field field_ = Field::dtype;
  TensorInfo entry_;
  std::vector<std::uint64_t> offsets_;
  std::array<bool, 3> seen_{};
};

// Spans sorted by begin must follow each other exactly, from 0 to the end of the data section.
void check_coverage(const std::vector<TensorInfo>& tensors, std::uint64_t header_bytes,
                    std::uint64_t file_bytes, std::string_view origin) {
  std::vector<std::uint32_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0U);
  std::ranges::sort(
      order, {}, [&](std::uint32_t i) { return std::pair(tensors[i].offset, tensors[i].bytes); });
  std::uint64_t end = 0;
  std::string_view previous;
  for (const std::uint32_t i : order) {
    const TensorInfo& tensor = tensors[i];
    if (tensor.offset < end) {
      refuse({.code = "MOXIE-C006",
              .message = "overlaps tensor " + std::string(previous),
              .where = {.file = std::string(origin), .tensor = tensor.name},
              .expected = "to begin at byte " + std::to_string(end),
              .got = std::to_string(tensor.offset)});
    }
    if (tensor.offset > end) {
      refuse({.code = "MOXIE-C007",
              .message = "hole before the tensor: bytes [" + std::to_string(end) + ", " +
                         std::to_string(tensor.offset) + ") of the data section belong to none",
              .where = {.file = std::string(origin), .tensor = tensor.name}});
    }
    end = tensor.offset + tensor.bytes;
    previous = tensor.name;
  }
  const std::uint64_t data_bytes = file_bytes - header_bytes;
  if (end > data_bytes) {
    const auto needed = checked_add(header_bytes, end);
    refuse({.code = "MOXIE-C008",
            .message = "file is truncated",
            .where = {.file = std::string(origin), .tensor = std::string(previous)},
            .expected = needed ? std::to_string(*needed) + " bytes" : "fewer bytes than 2^64",
            .got = std::to_string(file_bytes) + " bytes",
            .hint = "download the file again"});
  }
  if (end < data_bytes) {
    refuse({.code = "MOXIE-C008",
            .message = std::to_string(data_bytes - end) +
                       " bytes at the end are not covered by any tensor",
            .where = {.file = std::string(origin)},
            .expected = std::to_string(header_bytes + end) + " bytes",
            .got = std::to_string(file_bytes) + " bytes"});
  }
}

}  // namespace

SafetensorsHeader read_safetensors_header(std::span<const std::byte> file,
                                          std::string_view origin) {
  if (file.size() < 8) {
    refuse({.code = "MOXIE-C002",
            .message = "too short for a safetensors file",
            .where = {.file = std::string(origin)},
            .expected = "at least 8 bytes",
            .got = std::to_string(file.size()) + " bytes"});
  }
  std::uint64_t length = 0;
  for (unsigned i = 0; i < 8; ++i) length |= std::to_integer<std::uint64_t>(file[i]) << (8 * i);
  if (length > kMaxHeaderBytes || length > file.size() - 8) {
    refuse({.code = "MOXIE-C002",
            .message = "impossible header length",
            .where = {.file = std::string(origin)},
            .expected = "at most " +
                        std::to_string(std::min<std::uint64_t>(kMaxHeaderBytes, file.size() - 8)) +
                        " in a file of " + std::to_string(file.size()) + " bytes",
            .got = std::to_string(length) + " bytes"});
  }
  const auto json = file.subspan(8, length);
  const std::string_view text(reinterpret_cast<const char*>(json.data()), json.size());
  if (!text.starts_with('{')) {
    refuse({.code = "MOXIE-C003",
            .message = "header does not start with {",
            .where = {.file = std::string(origin)}});
  }
  HeaderEvents events(origin);
  parse_json(text, origin, events);
  SafetensorsHeader header{.header_bytes = 8 + length, .tensors = events.take()};
  check_coverage(header.tensors, header.header_bytes, file.size(), origin);
  for (TensorInfo& tensor : header.tensors) tensor.offset += header.header_bytes;
  return header;
}

}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// Rules: magic, version, two counts; then key-value pairs, tensor entries with the innermost extent
// first, padding, data. Lengths are held against the bytes that are left before anything is made of
// them. Source: the GGUF description in the ggml documentation.
#include "checkpoint/gguf_header.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "base/checked.hpp"
#include "checkpoint/gguf_types.hpp"
#include "checkpoint/name_table.hpp"

namespace moxie {

namespace {

static_assert(std::endian::native == std::endian::little, "GGUF files are little endian");

constexpr std::uint64_t kMaxDims = 4;
constexpr std::uint64_t kMaxNameBytes = 65535;
constexpr std::uint64_t kMaxKeptElements = 1024;  // of an array: one value per layer
constexpr std::uint64_t kMaxHeaderBytes = std::uint64_t{1} << 30;
constexpr std::uint64_t kMaxEntries = std::uint64_t{1} << 20;  // keys, tensors
constexpr std::uint64_t kLeastPairBytes = 8 + 1 + 4 + 1;
constexpr std::uint64_t kLeastTensorBytes = 8 + 1 + 4 + 4 + 8;

constexpr bool is_integer(GgufValue type) {
  return type != GgufValue::f32 && type != GgufValue::f64 && type != GgufValue::boolean &&
         type != GgufValue::string && type != GgufValue::array;
}

// 0 for a kind without a width of its own, or none at all.
constexpr std::uint64_t width_of(GgufValue type) {
  switch (type) {
    case GgufValue::u8:
    case GgufValue::i8:
    case GgufValue::boolean:
      return 1;
    case GgufValue::u16:
    case GgufValue::i16:
      return 2;
    case GgufValue::u32:
    case GgufValue::i32:
    case GgufValue::f32:
      return 4;
    case GgufValue::u64:
    case GgufValue::i64:
    case GgufValue::f64:
      return 8;
    default:
      return 0;
  }
}

Json real(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity";
}

class HeaderReader {
 public:
  HeaderReader(std::span<const std::byte> file, std::string_view origin)
      : file_(file), origin_(origin) {}

  GgufHeader read() {
    read_start();
    read_metadata();
    read_tensors();
    place_tensors();
    check_placement();
    return std::move(header_);
  }

 private:
  [[nodiscard]] std::uint64_t left() const {
    return std::min<std::uint64_t>(file_.size(), kMaxHeaderBytes) - at_;
  }

  [[noreturn]] void refuse(std::string code, std::string message, std::string expected,
                           std::string got, std::string hint = {}) const {
    throw Error(ErrorCode::input, {.code = std::move(code),
                                   .message = std::move(message),
                                   .where = {.file = origin_, .tensor = tensor_},
                                   .expected = std::move(expected),
                                   .got = std::move(got),
                                   .hint = std::move(hint)});
  }
  [[noreturn]] void refuse_file(std::string message, std::string expected, std::string got,
                                std::string hint = {}) const {
    refuse("MOXIE-C017", std::move(message), std::move(expected), std::move(got), std::move(hint));
  }
  [[noreturn]] void malformed(std::string_view what, std::string expected, std::string got) const {
    refuse("MOXIE-C018",
           "malformed header" + (key_.empty() ? "" : ", key \"" + key_ + "\"") + ": " +
               std::string(what),
           std::move(expected), std::move(got));
  }
  [[noreturn]] void beyond_end(std::string_view what, const std::string& got) const {
    refuse("MOXIE-C002", "the header goes beyond the end of the file: " + std::string(what),
           "at most " + std::to_string(left()) + " bytes more in a file of " +
               std::to_string(file_.size()),
           got, "download the file again");
  }

  std::span<const std::byte> take(std::uint64_t bytes, std::string_view what) {
    if (bytes > left()) beyond_end(what, std::to_string(bytes) + " bytes");
    const auto taken = file_.subspan(at_, bytes);
    at_ += bytes;
    return taken;
  }
  template <class T>
  T number(std::string_view what) {
    T value{};
    std::memcpy(&value, take(sizeof value, what).data(), sizeof value);
    return value;
  }
  std::string_view text(std::string_view what) {
    const auto bytes = take(number<std::uint64_t>(what), what);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  std::string_view name(std::string_view what) {
    const std::string_view value = text(what);
    if (value.empty() || value.size() > kMaxNameBytes) {
      malformed(what, "1 to " + std::to_string(kMaxNameBytes) + " bytes",
                std::to_string(value.size()));
    }
    if (value.find('\0') != value.npos)
      malformed(what, "text without NUL", std::to_string(value.size()) + " bytes");
    return value;
  }
  // A number of entries that need at least `least_bytes` each.
  std::uint64_t count(std::string_view what, std::uint64_t least_bytes) {
    const auto entries = number<std::uint64_t>(what);
    if (entries > left() / least_bytes) beyond_end(what, std::to_string(entries) + " entries");
    return entries;
  }

  void read_start() {
    if (left() < 4 || number<std::uint32_t>("magic") != kGgufMagic)
      refuse_file("not a GGUF file", "the bytes \"GGUF\" at its start", "others");
    const auto version = number<std::uint32_t>("version");
    if ((version & 0xFFFFU) == 0 && version != 0) {
      refuse_file("the file is big endian", "a little-endian file",
                  "version " + std::to_string(version >> 24U) + " in the other byte order");
    }
    if (version != 2 && version != 3) {
      refuse_file("unknown version of GGUF", "2 or 3", std::to_string(version),
                  version == 1 ? "convert the model again" : "");
    }
    tensor_count_ = count("number of tensors", kLeastTensorBytes);
    pair_count_ = count("number of keys", kLeastPairBytes);
    for (const std::uint64_t entries : {tensor_count_, pair_count_}) {
      if (entries > kMaxEntries)
        malformed("a count", "at most " + std::to_string(kMaxEntries), std::to_string(entries));
    }
  }

  void read_metadata() {
    Json::Object pairs;
    NameTable keys;  // over `pairs`
    const auto key_at = [&](std::uint32_t i) -> std::string_view { return pairs[i].key; };
    for (std::uint64_t i = 0; i < pair_count_; ++i) {
      key_.clear();
      key_ = name("a key");
      if (keys.add(key_, static_cast<std::uint32_t>(pairs.size()), key_at))
        malformed("a key twice", "each key once", "two of them");
      const auto type = static_cast<GgufValue>(number<std::uint32_t>("kind of value"));
      pairs.push_back({key_, type == GgufValue::array ? array() : value(type)});
      check_value(key_, pairs.back().value, type);
    }
    key_.clear();
    // Null stands for what is not kept.
    std::erase_if(pairs, [](const JsonMember& pair) { return pair.value.is_null(); });
    header_.metadata = Json(std::move(pairs));
  }

  Json value(GgufValue type) {
    constexpr std::string_view kWhat = "a value";
    switch (type) {
      case GgufValue::u8:
        return number<std::uint8_t>(kWhat);
      case GgufValue::i8:
        return number<std::int8_t>(kWhat);
      case GgufValue::u16:
        return number<std::uint16_t>(kWhat);
      case GgufValue::i16:
        return number<std::int16_t>(kWhat);
      case GgufValue::u32:
        return number<std::uint32_t>(kWhat);
      case GgufValue::i32:
        return number<std::int32_t>(kWhat);
      case GgufValue::f32:
        return real(number<float>(kWhat));
      case GgufValue::u64:
        return number<std::uint64_t>(kWhat);
      case GgufValue::i64:
        return number<std::int64_t>(kWhat);
      case GgufValue::f64:
        return real(number<double>(kWhat));
      case GgufValue::boolean: {
        const auto byte = number<std::uint8_t>(kWhat);
        if (byte > 1) malformed("a truth value", "0 or 1", std::to_string(byte));
        return byte == 1;
      }
      case GgufValue::string:
        return text(kWhat);
      case GgufValue::array:
        break;
    }
    malformed("kind of value", "0 to 12", std::to_string(static_cast<std::uint32_t>(type)));
  }

  // Null when it is a vocabulary.
  Json array() {
    const auto type = static_cast<GgufValue>(number<std::uint32_t>("kind of elements"));
    if (type == GgufValue::array) malformed("an array of arrays", "plain elements", "arrays");
    const std::uint64_t width = width_of(type);
    if (type != GgufValue::string && width == 0) {
      malformed("kind of elements", "0 to 12", std::to_string(static_cast<std::uint32_t>(type)));
    }
    const std::uint64_t elements =
        count("elements of an array", type == GgufValue::string ? sizeof(std::uint64_t) : width);
    if (type == GgufValue::string) {
      for (std::uint64_t i = 0; i < elements; ++i) (void)text("an element");
      return {};
    }
    if (elements > kMaxKeptElements) {
      (void)take(elements * width, "elements of an array");
      return {};
    }
    Json kept = Json::array();
    for (std::uint64_t i = 0; i < elements; ++i) kept.push_back(value(type));
    return kept;
  }

  // Keys that say how the file itself is to be read.
  void check_value(std::string_view key, const Json& value, GgufValue type) {
    if (key == "general.alignment") {
      const std::uint64_t alignment = type == GgufValue::u32 ? value.as_unsigned() : 0;
      if (alignment < 8 || !std::has_single_bit(alignment))
        malformed("alignment", "a power of two from 8 on, as u32", value.dump_compact());
      alignment_ = alignment;
    } else if (key == "split.count" && is_integer(type) && value.as_unsigned(2) > 1) {
      refuse_file("the file is one part of a split model", "the whole model in one file",
                  value.dump_compact() + " parts", "merge the parts into one file first");
    }
  }

  void read_tensors() {
    header_.tensors.reserve(tensor_count_);
    NameTable names;  // over the tensors
    const auto name_at = [&](std::uint32_t i) -> std::string_view {
      return header_.tensors[i].name;
    };
    for (std::uint64_t i = 0; i < tensor_count_; ++i) {
      tensor_.clear();
      tensor_ = name("a tensor's name");
      if (names.add(tensor_, static_cast<std::uint32_t>(i), name_at))
        malformed("a tensor twice", "each name once", "two of them");
      TensorInfo tensor{.name = tensor_};
      const auto dims = number<std::uint32_t>("number of dimensions");
      if (dims > kMaxDims) {
        malformed("number of dimensions", "at most " + std::to_string(kMaxDims),
                  std::to_string(dims));
      }
      for (std::uint32_t dim = 0; dim < dims; ++dim)
        tensor.shape.push_back(number<std::uint64_t>("an extent"));
      std::ranges::reverse(tensor.shape);  // the file has the innermost first
      read_type(tensor);
      tensor.offset = number<std::uint64_t>("an offset");
      header_.tensors.push_back(std::move(tensor));
    }
    tensor_.clear();
  }

  // Type and bytes.
  void read_type(TensorInfo& tensor) {
    const auto stated = number<std::uint32_t>("a type");
    const std::optional<GgufType> type = gguf_type(stated);
    if (!type) {
      malformed("a tensor's type", "one whose block size is known",
                "type " + std::to_string(stated));
    }
    tensor.dtype = type->dtype;
    const std::uint64_t row = tensor.shape.empty() ? 1 : tensor.shape.back();
    if (row % type->elems != 0) {
      refuse("MOXIE-C005", "rows of " + to_string(tensor.shape) + " are no whole blocks",
             "a multiple of " + std::to_string(type->elems), std::to_string(row));
    }
    std::optional<std::uint64_t> bytes = 1;
    for (const std::uint64_t extent : tensor.shape) {
      if (bytes) bytes = checked_multiply(*bytes, extent);
    }
    if (bytes) bytes = checked_multiply(*bytes / type->elems, type->bytes);
    if (!bytes) refuse("MOXIE-C005", "the tensor's size is impossible", "64 bits", "an overflow");
    tensor.bytes = *bytes;
  }

  void place_tensors() {
    const auto start = round_up(at_, alignment_);
    if (header_.tensors.empty()) {
      header_.header_bytes = std::min<std::uint64_t>(start, file_.size());
      return;
    }
    header_.header_bytes = start;
    for (TensorInfo& tensor : header_.tensors) {
      tensor_ = tensor.name;
      if (tensor.offset % alignment_ != 0) {
        malformed("a tensor's offset", "a multiple of " + std::to_string(alignment_),
                  std::to_string(tensor.offset));
      }
      const auto begin = checked_add(start, tensor.offset);
      const auto end = begin ? checked_add(*begin, tensor.bytes) : std::nullopt;
      if (!end || *end > file_.size()) {
        refuse("MOXIE-C008", "file is truncated",
               end ? std::to_string(*end) + " bytes" : "fewer bytes than 2^64",
               std::to_string(file_.size()) + " bytes", "download the file again");
      }
      tensor.offset = *begin;
    }
    tensor_.clear();
  }

  // Tensors follow each other, each at the first aligned byte behind the one before.
  void check_placement() {
    std::vector<std::uint32_t> order(header_.tensors.size());
    std::iota(order.begin(), order.end(), 0U);
    std::ranges::sort(order, {}, [&](std::uint32_t i) {
      return std::pair(header_.tensors[i].offset, header_.tensors[i].bytes);
    });
    std::uint64_t end = header_.header_bytes;
    std::string_view previous;
    for (const std::uint32_t i : order) {
      const TensorInfo& tensor = header_.tensors[i];
      tensor_ = tensor.name;
      if (tensor.offset < end) {
        refuse("MOXIE-C006", "overlaps tensor " + std::string(previous),
               "to begin at byte " + std::to_string(end) + " or later",
               std::to_string(tensor.offset));
      }
      if (tensor.offset - end >= alignment_) refuse_hole(end, tensor.offset);
      end = tensor.offset + tensor.bytes;
      previous = tensor.name;
    }
    tensor_.clear();
    if (file_.size() - end >= alignment_) {
      refuse("MOXIE-C008",
             std::to_string(file_.size() - end) + " bytes at the end are not covered by any tensor",
             "at most " + std::to_string(round_up(end, alignment_)) + " bytes",
             std::to_string(file_.size()) + " bytes");
    }
  }

  [[noreturn]] void refuse_hole(std::uint64_t end, std::uint64_t begin) const {
    refuse("MOXIE-C007",
           "hole before the tensor: bytes [" + std::to_string(end) + ", " + std::to_string(begin) +
               ") of the file belong to none",
           "padding of less than " + std::to_string(alignment_) + " bytes",
           std::to_string(begin - end));
  }

  std::span<const std::byte> file_;
  std::string origin_;
  std::uint64_t at_ = 0;
  std::uint64_t tensor_count_ = 0;
  std::uint64_t pair_count_ = 0;
  std::uint64_t alignment_ = kGgufAlignment;
  std::string key_;     // that is being read
  std::string tensor_;  // that is being read
  GgufHeader header_;
};

}  // namespace

GgufHeader read_gguf_header(std::span<const std::byte> file, std::string_view origin) {
  return HeaderReader(file, origin).read();
}

}  // namespace moxie

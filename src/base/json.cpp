// SPDX-License-Identifier: Apache-2.0
// The JSON value: built from parsing events, written with escapes.
#include "moxie/json.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <unordered_set>

#include "base/json_events.hpp"
#include "moxie/status.hpp"

namespace moxie {

namespace {

// Builds a value from events.
class Builder final : public JsonEvents {
 public:
  explicit Builder(std::string_view origin) : origin_(origin) {}

  void null() override { next() = Json(); }
  void boolean(bool value) override { next() = Json(value); }
  void negative(std::int64_t value) override { next() = Json(value); }
  void unsigned_integer(std::uint64_t value) override { next() = Json(value); }
  void number(double value) override { next() = Json(value); }
  void string(std::string_view value) override { next() = Json(value); }
  void key(std::string_view value) override {
    Open& open = open_.back();
    open.key = value;
    if (open.keys.insert(open.key).second) return;
    throw Error(ErrorCode::input, {.code = "MOXIE-C003",
                                   .message = "duplicate key \"" + open.key + "\"",
                                   .where = {.file = std::string(origin_)}});
  }
  void begin_object() override { open_.push_back({.is_object = true}); }
  void begin_array() override { open_.push_back({.is_object = false}); }
  void end_object() override { close(Json(std::move(open_.back().members))); }
  void end_array() override { close(Json(std::move(open_.back().elements))); }

  Json take() { return std::move(root_); }

 private:
  struct Open {
    bool is_object = false;
    std::string key{};
    Json::Object members{};
    Json::Array elements{};
    std::unordered_set<std::string> keys{};
  };

  void close(Json value) {
    open_.pop_back();
    next() = std::move(value);
  }
  // Where the next value belongs.
  Json& next() {
    if (open_.empty()) return root_;
    Open& open = open_.back();
    if (!open.is_object) return open.elements.emplace_back();
    return open.members.emplace_back(JsonMember{std::move(open.key), Json()}).value;
  }

  std::string_view origin_;
  std::vector<Open> open_;
  Json root_;
};

// Writes a value, with line breaks and indentation when `pretty`.
class Writer {
 public:
  explicit Writer(bool pretty) : pretty_(pretty) {}

  void write(const Json& value, int depth) {
    if (value.is_object()) {
      write_object(value.members(), depth);
    } else if (value.is_array()) {
      write_array(value.elements(), depth);
    } else if (value.is_string()) {
      text += quoted_json(value.as_string());
    } else if (value.is_number()) {
      text += value.number_text();
    } else {
      text += value.is_null() ? "null" : value.as_bool() ? "true" : "false";
    }
  }

  std::string text;

 private:
  void new_line(int depth) {
    if (pretty_) text += '\n' + std::string(static_cast<std::size_t>(depth) * 2, ' ');
  }
  void write_object(const Json::Object& members, int depth) {
    text += '{';
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (i > 0) text += ',';
      new_line(depth + 1);
      text += quoted_json(members[i].key);
      text += pretty_ ? ": " : ":";
      write(members[i].value, depth + 1);
    }
    if (!members.empty()) new_line(depth);
    text += '}';
  }
  void write_array(const Json::Array& elements, int depth) {
    bool plain = true;
    for (const Json& element : elements)
      plain = plain && !element.is_object() && !element.is_array();
    text += '[';
    for (std::size_t i = 0; i < elements.size(); ++i) {
      if (i > 0) text += plain && pretty_ ? ", " : ",";
      if (!plain) new_line(depth + 1);
      write(elements[i], depth + 1);
    }
    if (!plain) new_line(depth);
    text += ']';
  }

  bool pretty_;
};

}  // namespace

Json::Json() = default;
Json::~Json() = default;
Json::Json(const Json& other) = default;
Json::Json(Json&& other) noexcept = default;
Json& Json::operator=(const Json& other) = default;
Json& Json::operator=(Json&& other) noexcept = default;

Json::Json(std::nullptr_t) {}
Json::Json(bool value) : value_(value) {}
Json::Json(double value) : value_(value) {}
Json::Json(const char* text) : value_(std::string(text)) {}
Json::Json(std::string_view text) : value_(std::string(text)) {}
Json::Json(std::string text) : value_(std::move(text)) {}
Json::Json(Array elements) : value_(std::move(elements)) {}
Json::Json(Object members) : value_(std::move(members)) {}
Json::Json(std::uint64_t value, Unsigned /*tag*/) : value_(value) {}
// Equal numbers are equal values: what is not negative is stored unsigned.
Json::Json(std::int64_t value, Signed /*tag*/) {
  if (value < 0) {
    value_ = value;
  } else {
    value_ = static_cast<std::uint64_t>(value);
  }
}

Json Json::array() { return Json(Array{}); }
Json Json::object() { return Json(Object{}); }

Json Json::parse(std::string_view text, std::string_view origin) {
  Builder builder(origin);
  parse_json(text, origin, builder);
  return builder.take();
}

std::string Json::dump() const {
  Writer writer(true);
  writer.write(*this, 0);
  return std::move(writer.text);
}

std::string Json::dump_compact() const {
  Writer writer(false);
  writer.write(*this, 0);
  return std::move(writer.text);
}

bool Json::is_number() const {
  return std::holds_alternative<std::int64_t>(value_) ||
         std::holds_alternative<std::uint64_t>(value_) || std::holds_alternative<double>(value_);
}

const Json* Json::find(std::string_view key) const {
  for (const JsonMember& member : members()) {
    if (member.key == key) return &member.value;
  }
  return nullptr;
}

const Json::Array& Json::elements() const {
  static const Array kNone;
  const auto* array = std::get_if<Array>(&value_);
  return array != nullptr ? *array : kNone;
}

const Json::Object& Json::members() const {
  static const Object kNone;
  const auto* object = std::get_if<Object>(&value_);
  return object != nullptr ? *object : kNone;
}

std::string Json::as_string(std::string_view otherwise) const {
  const auto* text = std::get_if<std::string>(&value_);
  return text != nullptr ? *text : std::string(otherwise);
}

std::uint64_t Json::as_unsigned(std::uint64_t otherwise) const {
  const auto* number = std::get_if<std::uint64_t>(&value_);
  return number != nullptr ? *number : otherwise;
}

double Json::as_double(double otherwise) const {
  if (const auto* number = std::get_if<double>(&value_)) return *number;
  if (const auto* number = std::get_if<std::uint64_t>(&value_)) return static_cast<double>(*number);
  if (const auto* number = std::get_if<std::int64_t>(&value_)) return static_cast<double>(*number);
  return otherwise;
}

bool Json::as_bool(bool otherwise) const {
  const auto* flag = std::get_if<bool>(&value_);
  return flag != nullptr ? *flag : otherwise;
}

std::string Json::number_text() const {
  std::array<char, 32> buffer{};
  const auto print = [&](auto value) {
    return std::string(buffer.data(),
                       std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr);
  };
  if (const auto* number = std::get_if<std::uint64_t>(&value_)) return print(*number);
  if (const auto* number = std::get_if<std::int64_t>(&value_)) return print(*number);
  const double number = as_double();
  if (!std::isfinite(number)) return "null";  // JSON has no other word for it
  std::string text = print(number);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

Json& Json::set(std::string_view key, Json value) {
  if (is_null()) value_ = Object{};
  auto& members = std::get<Object>(value_);
  for (JsonMember& member : members) {
    if (member.key == key) {
      member.value = std::move(value);
      return *this;
    }
  }
  members.push_back({std::string(key), std::move(value)});
  return *this;
}

void Json::erase(std::string_view key) {
  if (auto* members = std::get_if<Object>(&value_)) {
    std::erase_if(*members, [&](const JsonMember& member) { return member.key == key; });
  }
}

void Json::push_back(Json value) {
  if (is_null()) value_ = Array{};
  std::get<Array>(value_).push_back(std::move(value));
}

bool operator==(const Json& a, const Json& b) { return a.value_ == b.value_; }

}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// A JSON value that keeps the order of its keys; strict reading, stable writing.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "moxie/api.hpp"

namespace moxie {

struct JsonMember;

class MOXIE_API Json {
 public:
  using Array = std::vector<Json>;
  using Object = std::vector<JsonMember>;

  // Null. Members are defined in json.cpp, where JsonMember is complete.
  Json();
  ~Json();
  Json(const Json& other);
  Json(Json&& other) noexcept;
  Json& operator=(const Json& other);
  Json& operator=(Json&& other) noexcept;

  Json(std::nullptr_t);         // NOLINT(google-explicit-constructor)
  Json(bool value);             // NOLINT(google-explicit-constructor)
  Json(double value);           // NOLINT(google-explicit-constructor)
  Json(const char* text);       // NOLINT(google-explicit-constructor)
  Json(std::string_view text);  // NOLINT(google-explicit-constructor)
  Json(std::string text);       // NOLINT(google-explicit-constructor)
  template <std::signed_integral T>
  Json(T value)  // NOLINT(google-explicit-constructor)
      : Json(static_cast<std::int64_t>(value), Signed{}) {}
  template <std::unsigned_integral T>
    requires(!std::same_as<T, bool>)
  Json(T value)  // NOLINT(google-explicit-constructor)
      : Json(static_cast<std::uint64_t>(value), Unsigned{}) {}
  explicit Json(Array elements);
  explicit Json(Object members);
  static Json array();
  static Json object();

  // Reads one document. `origin` names it in errors. Refuses duplicate keys, trailing text,
  // non-finite numbers and more than 64 levels of nesting: Error(input) with code MOXIE-C003.
  static Json parse(std::string_view text, std::string_view origin);

  // Text with two spaces of indentation; arrays of plain values stay on one line. Same value, same
  // text.
  [[nodiscard]] std::string dump() const;
  // Text without any white space.
  [[nodiscard]] std::string dump_compact() const;

  [[nodiscard]] bool is_null() const { return std::holds_alternative<std::monostate>(value_); }
  [[nodiscard]] bool is_object() const { return std::holds_alternative<Object>(value_); }
  [[nodiscard]] bool is_array() const { return std::holds_alternative<Array>(value_); }
  [[nodiscard]] bool is_string() const { return std::holds_alternative<std::string>(value_); }
  [[nodiscard]] bool is_bool() const { return std::holds_alternative<bool>(value_); }
  [[nodiscard]] bool is_number() const;

  // Member of an object, or nullptr when this is no object or has no such key.
  [[nodiscard]] const Json* find(std::string_view key) const;
  // Elements or members; empty when this is something else.
  [[nodiscard]] const Array& elements() const;
  [[nodiscard]] const Object& members() const;

  // The plain value, or `otherwise` when the kind or the range does not fit.
  [[nodiscard]] std::string as_string(std::string_view otherwise = {}) const;
  [[nodiscard]] std::uint64_t as_unsigned(std::uint64_t otherwise = 0) const;
  [[nodiscard]] double as_double(double otherwise = 0) const;
  [[nodiscard]] bool as_bool(bool otherwise = false) const;
  // A number as JSON text: integers in full, reals in the shortest form that reads back the same.
  [[nodiscard]] std::string number_text() const;

  // Sets a member, keeping the position of an existing key; turns null into an object. Returns
  // *this for chaining.
  Json& set(std::string_view key, Json value);
  // Removes a member if present.
  void erase(std::string_view key);
  // Appends an element; turns null into an array.
  void push_back(Json value);

  friend bool operator==(const Json&, const Json&);

 private:
  struct Signed {};
  struct Unsigned {};
  Json(std::int64_t value, Signed tag);
  Json(std::uint64_t value, Unsigned tag);

  std::variant<std::monostate, bool, std::int64_t, std::uint64_t, double, std::string, Array,
               Object>
      value_;
};

struct JsonMember {
  std::string key;
  Json value;

  friend bool operator==(const JsonMember&, const JsonMember&) = default;
};

}  // namespace moxie

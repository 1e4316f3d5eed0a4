// SPDX-License-Identifier: Apache-2.0
// The only file that sees the JSON library: its event parser behind JsonEvents, its string escapes.
#include "base/json_events.hpp"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "moxie/status.hpp"

namespace moxie {

namespace {

constexpr int kMaxDepth = 64;

[[noreturn]] void refuse(std::string_view origin, std::string message) {
  throw Error(ErrorCode::input, {.code = "MOXIE-C003",
                                 .message = std::move(message),
                                 .where = {.file = std::string(origin)}});
}

// Adapts the library's handler concept to JsonEvents.
class Adapter {
 public:
  using number_integer_t = nlohmann::json::number_integer_t;
  using number_unsigned_t = nlohmann::json::number_unsigned_t;
  using number_float_t = nlohmann::json::number_float_t;
  using string_t = nlohmann::json::string_t;
  using binary_t = nlohmann::json::binary_t;

  Adapter(std::string_view origin, JsonEvents& events) : origin_(origin), events_(events) {}

  bool null() { return events_.null(), true; }
  bool boolean(bool value) { return events_.boolean(value), true; }
  bool number_integer(number_integer_t value) { return events_.negative(value), true; }
  bool number_unsigned(number_unsigned_t value) { return events_.unsigned_integer(value), true; }
  bool number_float(number_float_t value, const string_t& /*text*/) {
    return events_.number(value), true;
  }
  bool string(const string_t& value) { return events_.string(value), true; }
  bool binary(const binary_t& /*value*/) { return false; }
  bool start_object(std::size_t /*elements*/) { return enter(), events_.begin_object(), true; }
  bool key(const string_t& value) { return events_.key(value), true; }
  bool end_object() { return --depth_, events_.end_object(), true; }
  bool start_array(std::size_t /*elements*/) { return enter(), events_.begin_array(), true; }
  bool end_array() { return --depth_, events_.end_array(), true; }
  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const nlohmann::json::exception& error) const {
    std::string reason =
        error.what();  // "[json.exception.parse_error.101] parse error at line 1, …"
    if (const auto end = reason.find("] "); end != std::string::npos)
      reason = reason.substr(end + 2);
    refuse(origin_, "not valid JSON at byte " + std::to_string(position) + ": " + reason);
  }

 private:
  void enter() {
    if (++depth_ > kMaxDepth) {
      refuse(origin_, "JSON nested deeper than " + std::to_string(kMaxDepth) + " levels");
    }
  }

  std::string_view origin_;
  JsonEvents& events_;
  int depth_ = 0;
};

}  // namespace

void parse_json(std::string_view text, std::string_view origin, JsonEvents& events) {
  // The library takes NUL for the end of the text; no JSON text holds one.
  if (const auto nul = text.find('\0'); nul != std::string_view::npos) {
    refuse(origin, "not valid JSON at byte " + std::to_string(nul) + ": NUL");
  }
  Adapter adapter(origin, events);
  nlohmann::json::sax_parse(text.begin(), text.end(), &adapter);
}

std::string quoted_json(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace moxie

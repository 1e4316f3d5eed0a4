// SPDX-License-Identifier: Apache-2.0
// Reading JSON as a stream of events, for documents too large to hold as values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace moxie {

// Receives the events of one document in order. Text is only valid during the call. A handler
// refuses by throwing.
class JsonEvents {
 public:
  virtual ~JsonEvents() = default;
  virtual void null() = 0;
  virtual void boolean(bool value) = 0;
  virtual void negative(std::int64_t value) = 0;
  virtual void unsigned_integer(std::uint64_t value) = 0;
  virtual void number(double value) = 0;
  virtual void string(std::string_view value) = 0;
  virtual void begin_object() = 0;
  virtual void key(std::string_view value) = 0;
  virtual void end_object() = 0;
  virtual void begin_array() = 0;
  virtual void end_array() = 0;
};

// Parses one document; nothing but white space may follow it. Throws Error(input) MOXIE-C003 naming
// `origin` and the byte, for bad syntax, bad UTF-8, numbers out of range and more than 64 levels of
// nesting. Duplicate keys are for the handler to refuse.
void parse_json(std::string_view text, std::string_view origin, JsonEvents& events);

// A string as JSON text, in quotes; a byte that is not UTF-8 becomes the replacement character.
std::string quoted_json(std::string_view text);

}  // namespace moxie

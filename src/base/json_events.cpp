// SPDX-License-Identifier: Apache-2.0
// A strict recursive-descent parser (RFC 8259). Text without escapes is handed on in place, so that
// a header of a hundred thousand tensors costs about one pass over its bytes.
#include "base/json_events.hpp"

#include <charconv>
#include <string>
#include <system_error>

#include "base/utf8.hpp"
#include "moxie/status.hpp"

namespace moxie {

namespace {

constexpr int kMaxDepth = 64;

constexpr bool is_digit(char c) { return c >= '0' && c <= '9'; }

// What a string may hold as it is: no quote, no escape, no control character, no byte of a longer
// sequence.
constexpr bool is_plain(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte >= 0x20 && byte < 0x80 && c != '"' && c != '\\';
}

class Parser {
 public:
  Parser(std::string_view text, std::string_view origin, JsonEvents& events)
      : begin_(text.data()),
        at_(begin_),
        end_(begin_ + text.size()),
        origin_(origin),
        events_(events) {}

  void document() {
    constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
    if (rest().starts_with(kByteOrderMark)) at_ += kByteOrderMark.size();
    value();
    skip_space();
    if (at_ != end_) fail("text after the end of the document");
  }

 private:
  [[noreturn]] void fail(const std::string& reason) const {
    throw Error(ErrorCode::input,
                {.code = "MOXIE-C003",
                 .message = "not valid JSON at byte " + std::to_string(at_ - begin_) + ": " +
                            (at_ == end_ ? "unexpected end, " : "") + reason,
                 .where = {.file = std::string(origin_)}});
  }

  std::string_view rest() const { return {at_, static_cast<std::size_t>(end_ - at_)}; }
  // The next character; NUL, which no syntax allows, at the end.
  char peek() const { return at_ != end_ ? *at_ : '\0'; }
  void skip_space() {
    while (at_ != end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\r' || *at_ == '\t')) ++at_;
  }
  bool accept(char c) {
    skip_space();
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!accept(c)) fail(std::string("expected '") + c + "'");
  }

  void value() {
    skip_space();
    switch (peek()) {
      case '{':
        return object();
      case '[':
        return array();
      case '"':
        return events_.string(string());
      case 't':
        return word("true"), events_.boolean(true);
      case 'f':
        return word("false"), events_.boolean(false);
      case 'n':
        return word("null"), events_.null();
      default:
        return number();
    }
  }

  void word(std::string_view expected) {
    if (!rest().starts_with(expected)) fail("expected a value");
    at_ += expected.size();
  }

  void enter() {
    if (++depth_ > kMaxDepth) fail("nested deeper than " + std::to_string(kMaxDepth) + " levels");
    ++at_;
  }

  void object() {
    enter();
    events_.begin_object();
    if (!accept('}')) {
      do {
        skip_space();
        if (peek() != '"') fail("expected a key");
        events_.key(string());
        expect(':');
        value();
      } while (accept(','));
      expect('}');
    }
    --depth_;
    events_.end_object();
  }

  void array() {
    enter();
    events_.begin_array();
    if (!accept(']')) {
      do {
        value();
      } while (accept(','));
      expect(']');
    }
    --depth_;
    events_.end_array();
  }

  void digits() {
    if (!is_digit(peek())) fail("expected a value or a digit");
    while (is_digit(peek())) ++at_;
  }

  void number() {
    const char* const first = at_;
    const bool minus = peek() == '-';
    if (minus) ++at_;
    if (peek() == '0') {
      ++at_;
    } else {
      digits();
    }
    bool whole = true;
    if (peek() == '.') {
      ++at_;
      digits();
      whole = false;
    }
    if (peek() == 'e' || peek() == 'E') {
      ++at_;
      if (peek() == '+' || peek() == '-') ++at_;
      digits();
      whole = false;
    }
    std::int64_t negative = 0;
    std::uint64_t natural = 0;
    double real = 0;
    if (whole && minus && std::from_chars(first, at_, negative).ec == std::errc())
      return events_.negative(negative);
    if (whole && !minus && std::from_chars(first, at_, natural).ec == std::errc()) {
      return events_.unsigned_integer(natural);
    }
    if (std::from_chars(first, at_, real).ec != std::errc()) fail("number out of range");
    events_.number(real);
  }

  // The text of a string; stands on its opening quote.
  std::string_view string() {
    const char* first = ++at_;
    while (at_ != end_ && is_plain(*at_)) ++at_;
    if (peek() == '"') return {first, static_cast<std::size_t>(at_++ - first)};
    scratch_.assign(first, at_);
    while (peek() != '"') {
      first = at_;
      if (at_ == end_) fail("expected '\"'");
      if (*at_ == '\\') {
        escape();
      } else if (static_cast<unsigned char>(*at_) < 0x20) {
        fail("control character in a string");
      } else {
        const std::size_t bytes = utf8_sequence_bytes(rest());
        if (bytes == 0) fail("bad UTF-8");
        scratch_.append(first, bytes);
        at_ += bytes;
      }
    }
    ++at_;
    return scratch_;
  }

  void escape() {
    ++at_;
    switch (peek()) {
      case '"':
        scratch_ += '"';
        break;
      case '\\':
        scratch_ += '\\';
        break;
      case '/':
        scratch_ += '/';
        break;
      case 'b':
        scratch_ += '\b';
        break;
      case 'f':
        scratch_ += '\f';
        break;
      case 'n':
        scratch_ += '\n';
        break;
      case 'r':
        scratch_ += '\r';
        break;
      case 't':
        scratch_ += '\t';
        break;
      case 'u':
        return unicode_escape();
      default:
        fail("unknown escape");
    }
    ++at_;
  }

  void unicode_escape() {
    const std::uint32_t unit = code_unit();
    if (unit < 0xD800 || unit > 0xDFFF) return append_utf8(scratch_, unit);
    const bool leads = unit < 0xDC00 && rest().starts_with("\\u");
    if (leads) ++at_;
    const std::uint32_t low = leads ? code_unit() : 0;
    if (low < 0xDC00 || low > 0xDFFF) fail("lone surrogate");
    append_utf8(scratch_, 0x10000U + ((unit - 0xD800U) << 10U) + (low - 0xDC00U));
  }

  // The four digits of an escape; stands on its `u`.
  std::uint32_t code_unit() {
    const std::string_view text = rest().substr(1, 4);
    std::uint32_t unit = 0;
    const char* const end = text.data() + text.size();
    const auto read = std::from_chars(text.data(), end, unit, 16);
    if (text.size() != 4 || read.ec != std::errc() || read.ptr != end)
      fail("expected 4 hex digits");
    at_ += 5;
    return unit;
  }

  const char* begin_;
  const char* at_;
  const char* end_;
  std::string_view origin_;
  JsonEvents& events_;
  std::string scratch_;
  int depth_ = 0;
};

}  // namespace

void parse_json(std::string_view text, std::string_view origin, JsonEvents& events) {
  Parser(text, origin, events).document();
}

}  // namespace moxie

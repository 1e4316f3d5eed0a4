// SPDX-License-Identifier: Apache-2.0
// Only the last star is tried again: an earlier one can not help where a later one fails.
#include "model/wildcard.hpp"

#include <cstddef>

namespace moxie {

namespace {

// Matches one character against the pattern's element at `at` and moves `at` behind the element. An
// opening bracket without a closing one stands for itself.
bool matches_one(char c, std::string_view pattern, std::size_t& at) {
  const char first = pattern[at++];
  if (first == '?') return true;
  if (first != '[') return first == c;
  std::size_t from = at;
  const bool negated = from < pattern.size() && pattern[from] == '!';
  if (negated) ++from;
  const std::size_t close = pattern.find(']', from + 1);
  if (close == std::string_view::npos) return c == '[';
  bool found = false;
  for (std::size_t i = from; i < close; ++i) {
    const bool range = i + 2 < close && pattern[i + 1] == '-';
    found = found || (range ? pattern[i] <= c && c <= pattern[i + 2] : pattern[i] == c);
    if (range) i += 2;
  }
  at = close + 1;
  return found != negated;
}

}  // namespace

bool matches_wildcard(std::string_view text, std::string_view pattern) {
  std::size_t at = 0;
  std::size_t next = 0;
  std::size_t star = std::string_view::npos;  // behind the last star, if any
  std::size_t star_text = 0;                  // where what follows it was tried
  while (at < text.size()) {
    std::size_t behind = next;
    if (next < pattern.size() && pattern[next] == '*') {
      star = ++next;
      star_text = at;
    } else if (next < pattern.size() && matches_one(text[at], pattern, behind)) {
      next = behind;
      ++at;
    } else if (star != std::string_view::npos) {
      next = star;
      at = ++star_text;
    } else {
      return false;
    }
  }
  while (next < pattern.size() && pattern[next] == '*') ++next;
  return next == pattern.size();
}

}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// Published configs are JSON as Python writes it: `Infinity` may stand where a number belongs.
#include "checkpoint/config_file.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "base/mapped_file.hpp"
#include "moxie/status.hpp"

namespace moxie {

namespace {

constexpr std::array<std::string_view, 3> kWords = {"-Infinity", "Infinity", "NaN"};

std::string quoted(std::string_view word) { return '"' + std::string(word) + '"'; }

// Puts the bare words -Infinity, Infinity and NaN in quotes: whoever needs a number there finds a
// string and refuses it.
void quote_non_finite(std::string& text) {
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (in_string) {
      if (text[i] == '\\')
        ++i;
      else if (text[i] == '"')
        in_string = false;
      continue;
    }
    if (text[i] == '"') {
      in_string = true;
      continue;
    }
    for (const std::string_view word : kWords) {
      if (!std::string_view(text).substr(i).starts_with(word)) continue;
      text.replace(i, word.size(), quoted(word));
      i += word.size() + 1;
      break;
    }
  }
}

}  // namespace

Json read_config_file(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path)) return {};
  std::string text = read_text_file(path);
  quote_non_finite(text);
  Json config = Json::parse(text, path.string());
  if (!config.is_object()) {
    throw Error(
        ErrorCode::input,
        {.code = "MOXIE-C016", .message = "not a JSON object", .where = {.file = path.string()}});
  }
  return config;
}

std::string config_text(const Json& config, const std::filesystem::path& source) {
  std::string text = config.dump() + "\n";
  const std::string original = source.empty() ? std::string() : read_text_file(source);
  for (const std::string_view word : kWords) {
    const std::string in_quotes = quoted(word);
    if (original.find(in_quotes) != std::string::npos) continue;  // text, and meant as such
    for (std::size_t at = text.find(in_quotes); at != std::string::npos; at = text.find(in_quotes))
      text.replace(at, in_quotes.size(), word);
  }
  return text;
}

}  // namespace moxie

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

// Puts the bare words -Infinity, Infinity and NaN in quotes: whoever needs a number there finds a
// string and refuses it.
void quote_non_finite(std::string& text) {
  constexpr std::array<std::string_view, 3> kWords = {"-Infinity", "Infinity", "NaN"};
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
      text.replace(i, word.size(), "\"" + std::string(word) + "\"");
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

}  // namespace moxie

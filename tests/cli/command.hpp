// SPDX-License-Identifier: Apache-2.0
// The built command, and what its answers and refusals look like by contract.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "moxie/json.hpp"
#include "support/process.hpp"
#include "support/temp_folder.hpp"

namespace moxie::test {

// Arguments; `a + b` joins two lists.
struct Words : std::vector<std::string> {
  using vector::vector;
};

inline Launch launch_of(Words arguments, Launch launch = {}) {
  arguments.insert(arguments.begin(), MOXIE_CLI_PATH);
  launch.command = std::move(arguments);
  return launch;
}
inline Outcome moxie_says(const Words& arguments, Launch launch = {}) {
  return run(launch_of(arguments, std::move(launch)));
}

inline Words operator+(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

inline std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

inline bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

inline std::vector<std::string> keys_of(const Json& object) {
  std::vector<std::string> keys;
  for (const JsonMember& member : object.members()) keys.push_back(member.key);
  return keys;
}

// Everything below a folder, with sizes of files, to see whether a command left anything. What
// vanishes meanwhile is left out.
inline std::vector<std::string> tree_of(const std::filesystem::path& folder) {
  namespace fs = std::filesystem;
  std::vector<std::string> names;
  std::error_code gone;
  for (fs::recursive_directory_iterator at(folder, gone), end; at != end && !gone;
       at.increment(gone)) {
    std::string name = at->path().lexically_relative(folder).string();
    if (at->is_regular_file(gone)) name += " " + std::to_string(at->file_size(gone));
    names.push_back(std::move(name));
  }
  std::ranges::sort(names);
  return names;
}

enum class Kind : std::uint8_t {
  text,
  number,
  boolean,
  list,
  object,
  text_or_null,
  number_or_null
};

inline bool is_kind(const Json& value, Kind kind) {
  switch (kind) {
    case Kind::text:
      return value.is_string();
    case Kind::number:
      return value.is_number();
    case Kind::boolean:
      return value.is_bool();
    case Kind::list:
      return value.is_array();
    case Kind::object:
      return value.is_object();
    case Kind::text_or_null:
      return value.is_string() || value.is_null();
    case Kind::number_or_null:
      return value.is_number() || value.is_null();
  }
  return false;
}

inline void expect_members(const Json& object,
                           const std::vector<std::pair<std::string, Kind>>& expected) {
  for (const auto& [key, kind] : expected) {
    const Json* value = object.find(key);
    ASSERT_NE(value, nullptr) << key;
    EXPECT_TRUE(is_kind(*value, kind)) << key << ": " << value->dump();
  }
}

// stdout is one document and nothing else: its text is the document's own, with a line end. The
// documents of bench are lines.
inline Json document_of(const Outcome& outcome, std::string_view verb) {
  const Json document = Json::parse(outcome.out, "stdout");
  EXPECT_EQ((verb == "bench" ? document.dump_compact() : document.dump()) + "\n", outcome.out);
  EXPECT_FALSE(document.members().empty());
  if (document.members().empty()) return document;
  EXPECT_EQ(document.members().front().key, "schema");
  EXPECT_EQ(document.members().front().value.as_string(), "moxie." + std::string(verb) + "/1");
  return document;
}

// A verb that succeeds: exit 0, and not one line of error.
inline Outcome expect_success(const Words& arguments, Launch launch = {}) {
  Outcome outcome = moxie_says(arguments, std::move(launch));
  EXPECT_EQ(outcome.exit_code, 0) << testing::PrintToString(arguments) << outcome.err;
  EXPECT_FALSE(has(outcome.err, "error")) << outcome.err;
  return outcome;
}
inline Json expect_document(const Words& arguments, Launch launch = {}) {
  return document_of(expect_success(arguments + Words{"--json"}, std::move(launch)), arguments[0]);
}

// The lines on stderr that are errors; every other line is a warning or a note.
inline std::vector<std::string> error_lines(const Outcome& outcome) {
  std::vector<std::string> errors;
  for (const std::string& line : lines_of(outcome.err)) {
    EXPECT_TRUE(line.starts_with("moxie: MOXIE-")) << line;
    if (has(line, " error: ")) errors.push_back(line);
  }
  return errors;
}

inline void expect_finding(const Json& finding) {
  EXPECT_EQ(keys_of(finding), (std::vector<std::string>{"code", "severity", "message", "where",
                                                        "expected", "got", "hint"}));
  static const std::vector<std::string> kPlaces = {"file",   "tensor", "layer",
                                                   "expert", "rank",   "axis"};
  for (const std::string& key : keys_of(*finding.find("where")))
    EXPECT_TRUE(std::ranges::count(kPlaces, key)) << key;
  const std::string severity = finding.find("severity")->as_string();
  EXPECT_TRUE(severity == "error" || severity == "warning" || severity == "note") << severity;
}

// C-01 for one command: the exit code; on stderr one line per error, with the code; nothing on
// stdout, or with --json the refusal alone. Gives the error lines for a closer look.
inline std::string expect_refusal(int exit_code, std::string_view code, const Words& arguments,
                                  std::string_view schema_verb = {}, std::size_t errors = 1) {
  SCOPED_TRACE(testing::PrintToString(arguments));
  const std::string verb(schema_verb.empty() ? std::string_view(arguments.at(0)) : schema_verb);
  const Outcome text = moxie_says(arguments);
  EXPECT_EQ(text.exit_code, exit_code);
  EXPECT_EQ(text.out, "");
  const std::vector<std::string> lines = error_lines(text);
  EXPECT_EQ(lines.size(), errors) << text.err;
  for (const std::string& line : lines)
    EXPECT_TRUE(line.starts_with("moxie: " + std::string(code) + " error: ")) << line;

  Words with_json = arguments;  // behind the verb, where it is not the value of another option
  with_json.insert(with_json.begin() + (arguments.empty() ? 0 : 1), "--json");
  const Outcome asked = moxie_says(with_json);
  EXPECT_EQ(asked.exit_code, exit_code);
  EXPECT_EQ(error_lines(asked), lines);
  const Json document = document_of(asked, verb);
  EXPECT_EQ(keys_of(document), (std::vector<std::string>{"schema", "ok", "findings"}));
  EXPECT_FALSE(document.find("ok")->as_bool(true));
  std::size_t found = 0;
  for (const Json& finding : document.find("findings")->elements()) {
    expect_finding(finding);
    if (finding.find("severity")->as_string() != "error") continue;
    ++found;
    EXPECT_EQ(finding.find("code")->as_string(), code);
  }
  EXPECT_EQ(found, errors);
  return text.err;
}

}  // namespace moxie::test

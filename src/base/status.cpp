// SPDX-License-Identifier: Apache-2.0
// Text of findings and errors.
#include "moxie/status.hpp"

#include <string>
#include <system_error>
#include <utility>

#include "base/checked.hpp"
#include "base/errors.hpp"

namespace moxie {

std::string_view name_of(Severity severity) {
  switch (severity) {
    case Severity::note:
      return "note";
    case Severity::warning:
      return "warning";
    case Severity::error:
      return "error";
  }
  return "error";
}

namespace {

// "layer 3, expert 2, rank 1, tensor x in file y".
std::string to_string(const Place& where) {
  std::string text;
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  if (where.layer) add("layer " + std::to_string(*where.layer));
  if (where.expert) add("expert " + std::to_string(*where.expert));
  if (where.rank) add("rank " + std::to_string(*where.rank));
  if (!where.axis.empty()) add("axis " + where.axis);
  if (!where.tensor.empty()) add(where.tensor);
  if (!where.file.empty()) add(where.file);
  return text;
}

}  // namespace

std::string to_string(const Finding& finding) {
  std::string text =
      finding.code + " " + std::string(name_of(finding.severity)) + ": " + finding.message;
  const std::string where = to_string(finding.where);
  if (!where.empty()) text += " [" + where + "]";
  if (!finding.expected.empty()) text += "; expected " + finding.expected;
  if (!finding.got.empty()) text += (finding.expected.empty() ? "; got " : ", got ") + finding.got;
  if (!finding.hint.empty()) text += "; " + finding.hint;
  return text;
}

Error::Error(ErrorCode code, Finding finding) : code_(code), text_(to_string(finding)) {
  findings_.push_back(std::move(finding));
}

Error Error::of(ErrorCode code, std::vector<Finding> findings) {
  MOXIE_CHECK(!findings.empty(), "an error needs a finding");
  Error error(code, findings.front());
  error.findings_ = std::move(findings);
  return error;
}

void raise_internal(std::string_view condition, std::string_view sentence, const char* file,
                    int line) {
  throw Error(ErrorCode::internal,
              {.code = "MOXIE-U070",
               .message = std::string(sentence) + " (" + std::string(condition) + ")",
               .where = {.file = std::string(file) + ":" + std::to_string(line)},
               .hint = "this is a bug in moxie; please report it"});
}

void raise_system(std::string_view call, const std::filesystem::path& path, int error_number) {
  throw Error(
      ErrorCode::environment,
      {.code = "MOXIE-E001",
       .message = std::string(call) + " failed: " + std::generic_category().message(error_number),
       .where = {.file = path.string()}});
}

void raise_interrupted() {
  throw Error(ErrorCode::interrupted, {.code = "MOXIE-U130", .message = "interrupted"});
}

std::string_view version() { return MOXIE_VERSION; }

}  // namespace moxie

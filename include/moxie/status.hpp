// SPDX-License-Identifier: Apache-2.0
// What goes wrong and how it is said: findings, errors, and the exit code each kind of error maps
// to.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "moxie/api.hpp"

namespace moxie {

// Kinds of failure. The values are the command's exit codes.
enum class ErrorCode : int {
  verdict = 1,       // the work is done and the answer is "no"
  usage = 2,         // bad option or value
  input = 3,         // bytes or headers wrong or missing
  unsupported = 4,   // understood but not possible
  environment = 5,   // the machine failed: disk, memory, device
  internal = 70,     // a bug in moxie
  interrupted = 130  // the caller asked to stop
};

enum class Severity : std::uint8_t { note, warning, error };
MOXIE_API std::string_view name_of(Severity severity);

// Where a finding applies. Empty fields do not apply.
struct Place {
  std::string file{};
  std::string tensor{};
  std::optional<int> layer{};
  std::optional<std::uint64_t> expert{};
  std::optional<unsigned> rank{};
  std::string axis{};
};

// One observation with a stable code (docs/findings.md): what, where, expected, got, what to do.
struct Finding {
  std::string code;  // "MOXIE-C003"
  Severity severity = Severity::error;
  std::string message{};
  Place where{};
  std::string expected{};
  std::string got{};
  std::string hint{};
};

// "MOXIE-C003 error: message [where]; expected …, got …; hint" on one line.
MOXIE_API std::string to_string(const Finding& finding);

// A refusal. Carries at least one finding; what() is the first one's line.
class MOXIE_API Error : public std::exception {
 public:
  Error(ErrorCode code, Finding finding);
  // `findings` must not be empty.
  static Error of(ErrorCode code, std::vector<Finding> findings);

  [[nodiscard]] ErrorCode code() const noexcept { return code_; }
  [[nodiscard]] const std::vector<Finding>& findings() const noexcept { return findings_; }
  [[nodiscard]] const char* what() const noexcept override { return text_.c_str(); }

 private:
  ErrorCode code_;
  std::vector<Finding> findings_;
  std::string text_;
};

// Called between pieces of long work with what is done so far, from one thread at a time. Returning
// false stops the work: it throws Error(ErrorCode::interrupted) after removing what it had begun to
// write.
using Progress = std::function<bool(std::uint64_t done, std::uint64_t total)>;

// "0.1.0".
MOXIE_API std::string_view version();

}  // namespace moxie

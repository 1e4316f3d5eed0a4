// SPDX-License-Identifier: Apache-2.0
// Catches the Error that a call is expected to throw.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "moxie/status.hpp"

namespace moxie::test {

// The Error that `action` throws. When it throws none, the test fails and the result has code
// "none".
template <class Action>
Error refusal_of(Action&& action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was refused";
  return Error(ErrorCode::internal, {.code = "none", .message = "nothing was refused"});
}

// The code of an error's first finding, "MOXIE-C003".
inline std::string code_of(const Error& error) { return error.findings().front().code; }

// Expects that `action` refuses with this exit code and this code of its first finding.
template <class Action>
void expect_refusal(Action&& action, ErrorCode exit, const std::string& code) {
  const Error error = refusal_of(action);
  EXPECT_EQ(error.code(), exit) << error.what();
  EXPECT_EQ(code_of(error), code) << error.what();
}

}  // namespace moxie::test

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

}  // namespace moxie::test

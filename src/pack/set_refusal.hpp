// SPDX-License-Identifier: Apache-2.0
// A packed set that can not be read.
#pragma once

#include <string>
#include <utility>

#include "moxie/status.hpp"

namespace moxie {

[[noreturn]] inline void refuse_set(Place where, std::string message, std::string expected = {},
                                    std::string got = {}, std::string hint = {}) {
  throw Error(ErrorCode::input, {.code = "MOXIE-K005",
                                 .message = std::move(message),
                                 .where = std::move(where),
                                 .expected = std::move(expected),
                                 .got = std::move(got),
                                 .hint = std::move(hint)});
}

}  // namespace moxie

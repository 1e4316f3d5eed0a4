// SPDX-License-Identifier: Apache-2.0
// Exceptions become status codes here, and their findings the text of moxie_last_error().
#pragma once

#include <string>
#include <string_view>
#include <type_traits>

#include "moxie/moxie.h"
#include "moxie/status.hpp"

namespace moxie::capi {

// In a handler alone: keeps the text of the exception in flight for this thread and returns its
// status.
int keep_refusal() noexcept;

// Runs what a C function does.
template <class Action>
int guarded(const Action& action) noexcept {
  static_assert(std::is_void_v<std::invoke_result_t<Action>>, "what fails throws");
  try {
    action();
    return MOXIE_STATUS_OK;
  } catch (...) {
    return keep_refusal();
  }
}

// Error(usage) MOXIE-A001.
[[noreturn]] void refuse_null(std::string_view name);
// The same unless the argument points somewhere.
template <class Type>
void require_pointer(const Type* pointer, std::string_view name) {
  if (pointer == nullptr) refuse_null(name);
}
// Error(usage) with this code.
[[noreturn]] void refuse(std::string_view code, std::string message, std::string expected,
                         std::string got, std::string hint = {});
// Error(usage) MOXIE-A003 unless a field that has no meaning yet is 0.
void require_reserved(std::uint32_t value, std::string_view name);

}  // namespace moxie::capi

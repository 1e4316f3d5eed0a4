// SPDX-License-Identifier: Apache-2.0
// The last refusal of each thread.
#include "capi/refusal.hpp"

#include <exception>
#include <new>
#include <system_error>
#include <utility>

namespace moxie::capi {

namespace {

struct LastRefusal {
  std::string text;
  bool lost = false;  // there was no memory for its text
};

LastRefusal& last_refusal() {
  thread_local LastRefusal last;
  return last;
}

std::string text_of(const Error& error) {
  std::string text;
  for (const Finding& finding : error.findings())
    text += (text.empty() ? "" : "\n") + to_string(finding);
  return text;
}

int keep(const Error& error) {
  last_refusal() = {.text = text_of(error)};
  return static_cast<int>(error.code());
}

// Throws nothing but std::bad_alloc.
int keep_current() {
  try {
    throw;
  } catch (const Error& error) {
    return keep(error);
  } catch (const std::bad_alloc&) {
    return keep(Error(ErrorCode::environment, {.code = "MOXIE-E003", .message = "out of memory"}));
  } catch (const std::system_error& error) {
    return keep(Error(ErrorCode::environment, {.code = "MOXIE-E001", .message = error.what()}));
  } catch (const std::exception& error) {
    return keep(Error(ErrorCode::internal, {.code = "MOXIE-U070",
                                            .message = error.what(),
                                            .hint = "this is a bug in moxie; please report it"}));
  }
}

}  // namespace

int keep_refusal() noexcept {
  try {
    return keep_current();
  } catch (...) {
    last_refusal().lost = true;
    return MOXIE_STATUS_ENVIRONMENT;
  }
}

void refuse(std::string_view code, std::string message, std::string expected, std::string got,
            std::string hint) {
  throw Error(ErrorCode::usage, {.code = std::string(code),
                                 .message = std::move(message),
                                 .expected = std::move(expected),
                                 .got = std::move(got),
                                 .hint = std::move(hint)});
}

void refuse_null(std::string_view name) {
  refuse("MOXIE-A001", std::string(name) + " is null", "a pointer", "null");
}

void require_reserved(std::uint32_t value, std::string_view name) {
  if (value == 0) return;
  refuse("MOXIE-A003", std::string(name) + " has no meaning in this version", "0",
         std::to_string(value));
}

}  // namespace moxie::capi

extern "C" {

const char* moxie_version() noexcept { return moxie::version().data(); }

const char* moxie_last_error() noexcept {
  const auto& last = moxie::capi::last_refusal();
  return last.lost ? "MOXIE-E003 error: out of memory" : last.text.c_str();
}

}  // extern "C"

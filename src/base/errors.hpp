// SPDX-License-Identifier: Apache-2.0
// Shorthand for the errors that every layer raises.
#pragma once

#include <filesystem>
#include <string_view>

#include "moxie/status.hpp"

namespace moxie {

// Throws Error(environment) MOXIE-E001 with the call, the path and the system's own text.
[[noreturn]] void raise_system(std::string_view call, const std::filesystem::path& path,
                               int error_number);

// Throws Error(interrupted).
[[noreturn]] void raise_interrupted();

// Reports progress; throws Error(interrupted) when the caller asks to stop.
inline void report_progress(const Progress& progress, std::uint64_t done, std::uint64_t total) {
  if (progress && !progress(done, total)) raise_interrupted();
}

}  // namespace moxie

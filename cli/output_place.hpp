// SPDX-License-Identifier: Apache-2.0
// Where a verb may write a file that the user names.
#pragma once

#include <filesystem>
#include <string>

#include "moxie/checkpoint.hpp"

namespace moxie::cli {

// A name that can be written, and is no device or link. Error(usage) MOXIE-U003 naming the flag.
void require_output_place(const std::filesystem::path& path, const std::string& flag);

// Refuses a place in the model's folder, or a file that it is made of, for the same code. `model`
// is what the user named; `checkpoint` is null for a packed set.
void require_outside(const std::filesystem::path& path, const std::string& flag,
                     const std::filesystem::path& model, const Checkpoint* checkpoint);

}  // namespace moxie::cli

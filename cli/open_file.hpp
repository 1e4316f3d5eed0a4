// SPDX-License-Identifier: Apache-2.0
// Files that an option names.
#pragma once

#include <filesystem>
#include <fstream>

namespace moxie::cli {

// A stream that reads it, or one that has failed where it is absent or no regular file: a pipe
// would let its reader wait, and a device may have no end.
std::ifstream open_file(const std::filesystem::path& path);

}  // namespace moxie::cli

// SPDX-License-Identifier: Apache-2.0
// Everything under a folder, for comparing folders.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "support/temp_folder.hpp"

namespace moxie::test {

// Relative path -> bytes; folders end in '/' and have none.
inline std::map<std::string, std::string> folder_bytes(const std::filesystem::path& folder) {
  std::map<std::string, std::string> entries;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    const std::string name = std::filesystem::relative(entry.path(), folder).string();
    if (entry.is_directory()) {
      entries[name + "/"] = "";
    } else {
      entries[name] = read_bytes(entry.path());
    }
  }
  return entries;
}

}  // namespace moxie::test

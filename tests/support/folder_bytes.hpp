// SPDX-License-Identifier: Apache-2.0
// Everything under a folder, and whether two folders hold the same.
#pragma once

#include <gtest/gtest.h>

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

// Names the entry that differs; printing the bytes of all would say less.
inline testing::AssertionResult same_folders(const std::filesystem::path& a,
                                             const std::filesystem::path& b) {
  const auto in_a = folder_bytes(a);
  const auto in_b = folder_bytes(b);
  for (const auto& [name, bytes] : in_a) {
    if (!in_b.contains(name)) return testing::AssertionFailure() << name << " is only in " << a;
    if (in_b.at(name) != bytes) return testing::AssertionFailure() << name << " differs";
  }
  for (const auto& [name, bytes] : in_b) {
    if (!in_a.contains(name)) return testing::AssertionFailure() << name << " is only in " << b;
  }
  return testing::AssertionSuccess();
}

}  // namespace moxie::test

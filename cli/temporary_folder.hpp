// SPDX-License-Identifier: Apache-2.0
// A folder that goes away with its object.
#pragma once

#include <filesystem>

namespace moxie::cli {

class TemporaryFolder {
 public:
  // Below TMPDIR. Errors: Error(environment) MOXIE-E001.
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace moxie::cli

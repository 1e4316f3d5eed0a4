// SPDX-License-Identifier: Apache-2.0
#include "cli/open_file.hpp"

#include <system_error>

namespace moxie::cli {

std::ifstream open_file(const std::filesystem::path& path) {
  std::ifstream stream;
  std::error_code absent;
  if (std::filesystem::is_regular_file(path, absent)) {
    stream.open(path, std::ios::binary);
  } else {
    stream.setstate(std::ios::failbit);
  }
  return stream;
}

}  // namespace moxie::cli

// SPDX-License-Identifier: Apache-2.0
// mkdtemp, and removal whatever happens.
#include "cli/temporary_folder.hpp"

#include <cstdlib>
#include <string>
#include <system_error>

#include "moxie/status.hpp"

namespace moxie::cli {

TemporaryFolder::TemporaryFolder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "moxie-bench.XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) {
    throw Error(ErrorCode::environment, {.code = "MOXIE-E001",
                                         .message = "no temporary folder could be made",
                                         .where = {.file = pattern}});
  }
  path_ = pattern;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace moxie::cli

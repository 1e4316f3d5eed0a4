// SPDX-License-Identifier: Apache-2.0
// The nearest folder that exists is asked.
#include "base/disk_space.hpp"

#include <system_error>
#include <utility>

#include "moxie/status.hpp"

namespace moxie {

namespace fs = std::filesystem;

void require_checkpoint_space(const fs::path& out, std::uint64_t bytes, std::string hint) {
  fs::path folder = fs::absolute(out);
  std::error_code error;
  while (!fs::exists(folder, error) && folder.has_relative_path()) folder = folder.parent_path();
  const fs::space_info space = fs::space(folder, error);
  if (error || space.capacity == 0 || bytes <= space.available) return;
  throw Error(ErrorCode::environment, {.code = "MOXIE-E002",
                                       .message = "not enough disk space for the checkpoint",
                                       .where = {.file = out.string()},
                                       .expected = std::to_string(bytes) + " bytes free",
                                       .got = std::to_string(space.available),
                                       .hint = std::move(hint)});
}

}  // namespace moxie

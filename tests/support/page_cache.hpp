// SPDX-License-Identifier: Apache-2.0
// Files as they are after a restart.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>

namespace moxie::test {

// Makes the system forget what it holds of a file, which is written to the disk first: what is not
// there yet stays. Does nothing for a file that can not be opened.
inline void drop_cache(const std::filesystem::path& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);  // NOLINT(*-vararg)
  if (file < 0) return;
  ::fsync(file);
  ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
  ::close(file);
}

}  // namespace moxie::test

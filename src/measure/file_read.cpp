// SPDX-License-Identifier: Apache-2.0
// How fast files can be read when nothing is done with them.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <memory>

#include "base/clock.hpp"
#include "base/errors.hpp"
#include "base/parallel.hpp"
#include "moxie/measure.hpp"

namespace moxie {

namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t kBlockBytes = std::uint64_t{8} << 20;
// Asked for while a block is read: enough to keep a disk busy.
constexpr std::uint64_t kAheadBlocks = 16;

class OpenFile {
 public:
  explicit OpenFile(const fs::path& path) : path_(path) {
    descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);  // NOLINT(*-vararg)
    if (descriptor_ < 0) raise_system("open", path, errno);
    struct stat status{};
    if (::fstat(descriptor_, &status) == 0) bytes_ = static_cast<std::uint64_t>(status.st_size);
  }
  ~OpenFile() { ::close(descriptor_); }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  void advise(std::uint64_t offset, std::uint64_t bytes, int advice) const {
    ::posix_fadvise(descriptor_, static_cast<off_t>(offset), static_cast<off_t>(bytes), advice);
  }
  void read(std::uint64_t offset, std::byte* to, std::uint64_t bytes) const {
    while (bytes > 0) {
      const auto got = ::pread(descriptor_, to, bytes, static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) raise_system("read", path_, errno);
      if (got == 0) return;
      offset += static_cast<std::uint64_t>(got);
      bytes -= static_cast<std::uint64_t>(got);
    }
  }

 private:
  fs::path path_;
  int descriptor_ = -1;
  std::uint64_t bytes_ = 0;
};

}  // namespace

void drop_page_cache(const std::vector<fs::path>& files) {
  for (const fs::path& file : files) OpenFile(file).advise(0, 0, POSIX_FADV_DONTNEED);
}

FileRead read_files(const std::vector<fs::path>& files) {
  FileRead result;
  const std::uint64_t start = now_ns();
  for (const fs::path& path : files) {
    const OpenFile file(path);
    const std::uint64_t blocks = (file.bytes() + kBlockBytes - 1) / kBlockBytes;
    file.advise(0, kAheadBlocks * kBlockBytes, POSIX_FADV_WILLNEED);
    parallel_for(blocks, [&](std::uint64_t block) {
      static thread_local auto buffer = std::make_unique_for_overwrite<std::byte[]>(kBlockBytes);
      const std::uint64_t offset = block * kBlockBytes;
      file.advise(offset + kAheadBlocks * kBlockBytes, kBlockBytes, POSIX_FADV_WILLNEED);
      file.read(offset, buffer.get(), std::min(kBlockBytes, file.bytes() - offset));
    });
    result.bytes += file.bytes();
  }
  result.seconds = static_cast<double>(now_ns() - start) / 1e9;
  return result;
}

}  // namespace moxie

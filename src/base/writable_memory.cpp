// SPDX-License-Identifier: Apache-2.0
// Private mappings behind RAII.
#include "base/writable_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

#include "base/errors.hpp"

namespace moxie {

WritableMemory::WritableMemory(std::uint64_t bytes) {
  if (bytes == 0) return;
  void* address =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) {
    throw Error(ErrorCode::environment, {.code = "MOXIE-E003",
                                         .message = "not enough memory",
                                         .expected = std::to_string(bytes) + " bytes"});
  }
  // A refusal costs time, not correctness.
  ::madvise(address, bytes, MADV_HUGEPAGE);
  mapping_ = address;
  mapped_ = size_ = bytes;
  begin_ = static_cast<std::byte*>(address);
}

WritableMemory::WritableMemory(const std::filesystem::path& path, std::uint64_t offset,
                               std::uint64_t bytes) {
  if (bytes == 0) return;
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const std::uint64_t first = offset / page * page;
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);  // NOLINT(*-vararg)
  if (fd < 0) raise_system("open", path, errno);
  // Pages behind the end can be mapped and not read.
  struct stat status = {};
  const bool known = ::fstat(fd, &status) == 0;
  if (!known || static_cast<std::uint64_t>(status.st_size) < offset + bytes) {
    const int code = errno;
    ::close(fd);
    if (!known) raise_system("fstat", path, code);
    throw Error(ErrorCode::environment, {.code = "MOXIE-E001",
                                         .message = "the file has become shorter",
                                         .where = {.file = path.string()},
                                         .expected = std::to_string(offset + bytes) + " bytes",
                                         .got = std::to_string(status.st_size)});
  }
  void* address = ::mmap(nullptr, bytes + (offset - first), PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_NORESERVE, fd, static_cast<off_t>(first));
  const int code = errno;
  ::close(fd);
  if (address == MAP_FAILED) raise_system("mmap", path, code);
  mapping_ = address;
  mapped_ = bytes + (offset - first);
  begin_ = static_cast<std::byte*>(address) + (offset - first);
  size_ = bytes;
}

WritableMemory::~WritableMemory() {
  if (mapping_ != nullptr) ::munmap(mapping_, mapped_);
}

WritableMemory::WritableMemory(WritableMemory&& other) noexcept
    : mapping_(std::exchange(other.mapping_, nullptr)),
      mapped_(std::exchange(other.mapped_, 0)),
      begin_(std::exchange(other.begin_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

WritableMemory& WritableMemory::operator=(WritableMemory&& other) noexcept {
  std::swap(mapping_, other.mapping_);
  std::swap(mapped_, other.mapped_);
  std::swap(begin_, other.begin_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace moxie

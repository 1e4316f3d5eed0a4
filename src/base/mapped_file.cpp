// SPDX-License-Identifier: Apache-2.0
// mmap behind RAII.
#include "base/mapped_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/errors.hpp"

namespace moxie {

namespace {

// Closes on scope exit; a mapping stays valid without its descriptor.
struct Descriptor {
  int value;
  explicit Descriptor(int fd) : value(fd) {}
  ~Descriptor() { ::close(value); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
};

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) {
  // A pipe without a writer would make open() wait for one.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // NOLINT(*-vararg)
  if (fd < 0) raise_system("open", path, errno);
  const Descriptor descriptor(fd);
  struct stat status{};
  if (::fstat(fd, &status) != 0) raise_system("fstat", path, errno);
  if (!S_ISREG(status.st_mode)) {
    throw Error(
        ErrorCode::environment,
        {.code = "MOXIE-E001", .message = "not a regular file", .where = {.file = path.string()}});
  }
  if (status.st_size == 0) return;
  const auto size = static_cast<std::size_t>(status.st_size);
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (address == MAP_FAILED) raise_system("mmap", path, errno);
  data_ = static_cast<const std::byte*>(address);
  size_ = size;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr)
    ::munmap(const_cast<std::byte*>(data_),
             size_);  // NOLINT(cppcoreguidelines-pro-type-const-cast)
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

void MappedFile::release() const {
  // A refusal costs memory, not correctness.
  if (data_ != nullptr)
    ::madvise(const_cast<std::byte*>(data_), size_,
              MADV_DONTNEED);  // NOLINT(cppcoreguidelines-pro-type-const-cast)
}

void MappedFile::read_ahead(std::size_t offset, std::size_t bytes) const {
  if (offset >= size_) return;
  constexpr std::size_t kPage = 4096;
  const std::size_t begin = offset / kPage * kPage;
  // A refusal costs time, not correctness.
  ::madvise(const_cast<std::byte*>(data_ + begin),  // NOLINT(cppcoreguidelines-pro-type-const-cast)
            std::min(bytes + (offset - begin), size_ - begin), MADV_WILLNEED);
}

std::string read_text_file(const std::filesystem::path& path) {
  const MappedFile file(path);
  const auto bytes = file.bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace moxie

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

// Closes on scope exit.
struct Descriptor {
  int value;
  explicit Descriptor(int fd) : value(fd) {}
  ~Descriptor() {
    if (value >= 0) ::close(value);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
};

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  // A pipe without a writer would make open() wait for one.
  const Descriptor file(
      ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // NOLINT(*-vararg)
  if (file.value < 0) raise_system("open", path, errno);
  struct stat status{};
  if (::fstat(file.value, &status) != 0) raise_system("fstat", path, errno);
  if (!S_ISREG(status.st_mode)) {
    throw Error(
        ErrorCode::environment,
        {.code = "MOXIE-E001", .message = "not a regular file", .where = {.file = path.string()}});
  }
  if (status.st_size == 0) return;
  const auto size = static_cast<std::size_t>(status.st_size);
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.value, 0);
  if (address == MAP_FAILED) raise_system("mmap", path, errno);
  data_ = static_cast<const std::byte*>(address);
  size_ = size;
  device_ = status.st_dev;
  inode_ = status.st_ino;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr)
    ::munmap(const_cast<std::byte*>(data_),
             size_);  // NOLINT(cppcoreguidelines-pro-type-const-cast)
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      device_(other.device_),
      inode_(other.inode_),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(device_, other.device_);
  std::swap(inode_, other.inode_);
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

// A descriptor of the file that is mapped; -1 where its name leads to another by now. None is kept:
// a packed set has thousands of files.
int MappedFile::open_again() const {
  Descriptor file(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // NOLINT(*-vararg)
  struct stat status{};
  const bool same = file.value >= 0 && ::fstat(file.value, &status) == 0 &&
                    status.st_dev == device_ && status.st_ino == inode_;
  return same ? std::exchange(file.value, -1) : -1;
}

std::size_t MappedFile::read(std::size_t offset, std::span<std::byte> to) const {
  if (offset >= size_) return 0;
  const Descriptor file(open_again());
  if (file.value < 0) {
    const std::size_t count = std::min(to.size(), size_ - offset);
    std::copy_n(data_ + offset, count, to.data());
    return count;
  }
  std::size_t done = 0;
  while (done < to.size()) {
    const auto got =
        ::pread(file.value, to.data() + done, to.size() - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) raise_system("read", path_, errno);
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  return done;
}

std::string read_text_file(const std::filesystem::path& path) {
  const MappedFile file(path);
  const auto bytes = file.bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace moxie

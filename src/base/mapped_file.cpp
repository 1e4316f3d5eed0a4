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
#include <vector>

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
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // NOLINT(*-vararg)
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
  descriptor_ = std::exchange(file.value, -1);
}

MappedFile::~MappedFile() {
  const Descriptor file(descriptor_);
  if (data_ != nullptr)
    ::munmap(const_cast<std::byte*>(data_),
             size_);  // NOLINT(cppcoreguidelines-pro-type-const-cast)
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
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

bool MappedFile::is_cached(std::size_t offset, std::size_t bytes) const {
  std::vector<unsigned char> pages((bytes + kReadUnit - 1) / kReadUnit);
  void* begin = const_cast<std::byte*>(data_ + offset);  // NOLINT(*-pro-type-const-cast)
  if (::mincore(begin, bytes, pages.data()) != 0) return false;
  const auto cached = std::ranges::count_if(pages, [](unsigned char page) { return page & 1U; });
  return 2 * static_cast<std::size_t>(cached) >= pages.size();
}

std::size_t MappedFile::read(std::size_t offset, std::span<std::byte> to) const {
  if (offset >= size_) return 0;
  // The same file, whatever its name leads to by now.
  const std::string own = "/proc/self/fd/" + std::to_string(descriptor_);
  Descriptor direct(-1);
  if (!is_cached(offset, std::min(to.size(), size_ - offset)))
    direct.value = ::open(own.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);  // NOLINT(*-vararg)
  std::size_t done = 0;
  while (done < to.size()) {
    const int file = direct.value >= 0 ? direct.value : descriptor_;
    const auto got =
        ::pread(file, to.data() + done, to.size() - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && file != descriptor_) {  // not every file system can
      ::close(std::exchange(direct.value, -1));
      continue;
    }
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

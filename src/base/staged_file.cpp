// SPDX-License-Identifier: Apache-2.0
// Temporary name first, rename last.
#include "base/staged_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <system_error>
#include <utility>

#include "base/checked.hpp"
#include "base/errors.hpp"

namespace moxie {

namespace {

constexpr std::string_view kMark = ".partial-";

// "DIR/.NAME.partial-PID": hidden, in the same file system, distinct per process.
std::filesystem::path temporary_for(const std::filesystem::path& path) {
  const auto clean = path.has_filename() ? path : path.parent_path();
  return clean.parent_path() /
         ("." + clean.filename().string() + std::string(kMark) + std::to_string(::getpid()));
}

}  // namespace

bool is_temporary_name(std::string_view name) {
  return name.starts_with('.') && name.find(kMark) != std::string_view::npos;
}

void StagedFile::Free::operator()(std::byte* bytes) const { std::free(bytes); }

StagedFile::StagedFile(std::filesystem::path path, std::size_t direct_bytes)
    : path_(std::move(path)), temporary_(temporary_for(path_)), direct_bytes_(direct_bytes) {
  MOXIE_CHECK(direct_bytes % kDirectUnit == 0, "direct writes are whole units");
  if (direct_bytes > 0) open(true);
  if (descriptor_ < 0) {  // not every file system can
    direct_bytes_ = 0;
    open(false);
  }
  if (descriptor_ < 0) raise_system("create", temporary_, errno);
}

void StagedFile::open(bool direct) {
  descriptor_ = ::open(temporary_.c_str(),  // NOLINT(cppcoreguidelines-pro-type-vararg)
                       O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | (direct ? O_DIRECT : 0), 0644);
}

StagedFile::~StagedFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(temporary_.c_str());
}

void StagedFile::write(std::span<const std::byte> bytes) {
  hash_.update(bytes);
  bytes_ += bytes.size();
  if (direct_bytes_ > 0) return gather(bytes);
  append(bytes);
  push();
}

void StagedFile::append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto written = ::write(descriptor_, bytes.data(),
                                 std::min<std::size_t>(bytes.size(), std::size_t{1} << 30));
    if (written < 0) {
      // A file system that opens for direct writing may still want other units.
      if (errno == EINTR || (errno == EINVAL && stop_direct())) continue;
      raise_system("write", temporary_, errno);
    }
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void StagedFile::gather(std::span<const std::byte> bytes) {
  if (!buffer_)
    buffer_.reset(static_cast<std::byte*>(std::aligned_alloc(kDirectUnit, direct_bytes_)));
  if (!buffer_) throw std::bad_alloc();
  while (!bytes.empty()) {
    const std::size_t count = std::min(bytes.size(), direct_bytes_ - gathered_);
    std::memcpy(buffer_.get() + gathered_, bytes.data(), count);
    bytes = bytes.subspan(count);
    gathered_ += count;
    if (gathered_ < direct_bytes_) return;
    append({buffer_.get(), gathered_});
    gathered_ = 0;
  }
}

bool StagedFile::stop_direct() {
  const int flags = ::fcntl(descriptor_, F_GETFL);  // NOLINT(*-vararg)
  if (flags < 0 || (flags & O_DIRECT) == 0) return false;
  return ::fcntl(descriptor_, F_SETFL, flags & ~O_DIRECT) == 0;  // NOLINT(*-vararg)
}

void StagedFile::push() {
  constexpr std::uint64_t kPushBytes = std::uint64_t{8} << 20;
  const std::uint64_t waiting = bytes_ - pushed_;
  if (waiting < kPushBytes) return;
  // A refusal costs time, not correctness.
  ::sync_file_range(descriptor_, static_cast<off64_t>(pushed_), static_cast<off64_t>(waiting),
                    SYNC_FILE_RANGE_WRITE);
  pushed_ = bytes_;
}

void StagedFile::write_at(std::uint64_t offset, std::span<const std::byte> bytes) {
  MOXIE_CHECK(direct_bytes_ == 0, "direct writes append");
  while (!bytes.empty()) {
    const auto written = ::pwrite(descriptor_, bytes.data(),
                                  std::min<std::size_t>(bytes.size(), std::size_t{1} << 30),
                                  static_cast<off_t>(offset));
    if (written < 0) {
      if (errno == EINTR) continue;
      raise_system("write", temporary_, errno);
    }
    offset += static_cast<std::uint64_t>(written);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void StagedFile::write(std::string_view text) { write(std::as_bytes(std::span(text))); }

void StagedFile::commit() {
  if (gathered_ > 0) {
    stop_direct();  // the rest is no whole unit
    append({buffer_.get(), gathered_});
    gathered_ = 0;
  }
  if (::fdatasync(descriptor_) != 0) raise_system("fdatasync", temporary_, errno);
  const int descriptor = std::exchange(descriptor_, -1);
  if (::close(descriptor) != 0) {
    const int error_number = errno;
    ::unlink(temporary_.c_str());
    raise_system("close", temporary_, error_number);
  }
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
    const int error_number = errno;
    ::unlink(temporary_.c_str());
    raise_system("rename", path_, error_number);
  }
}

void write_text_file(const std::filesystem::path& path, std::string_view text) {
  StagedFile file(path);
  file.write(text);
  file.commit();
}

StagedFolder::StagedFolder(std::filesystem::path path)
    : path_(std::move(path)), temporary_(temporary_for(path_)) {
  std::error_code error;
  std::filesystem::remove_all(temporary_, error);
  std::filesystem::create_directories(temporary_, error);
  if (error) raise_system("create folder", temporary_, error.value());
}

StagedFolder::~StagedFolder() {
  std::error_code error;
  if (!temporary_.empty()) std::filesystem::remove_all(temporary_, error);
}

void StagedFolder::commit() {
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) raise_system("rename", path_, errno);
  temporary_.clear();
}

}  // namespace moxie

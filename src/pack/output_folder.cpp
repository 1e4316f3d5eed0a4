// SPDX-License-Identifier: Apache-2.0
// Remembers what it makes, so that nothing else is ever removed.
#include "pack/output_folder.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <optional>
#include <ranges>
#include <string>
#include <system_error>
#include <utility>

#include "base/errors.hpp"

namespace moxie {

namespace fs = std::filesystem;

bool is_free_folder(const fs::path& folder) {
  return std::ranges::all_of(fs::directory_iterator(folder), [](const auto& entry) {
    return is_temporary_name(entry.path().filename().string());
  });
}

namespace {

constexpr auto kAbandonedAfter = std::chrono::minutes(10);

// "12345" of ".rank-000.partial-12345".
std::optional<pid_t> writer_of(std::string_view name) {
  if (!name.starts_with(".rank-") || !is_temporary_name(name)) return std::nullopt;
  name.remove_prefix(name.rfind('-') + 1);
  pid_t process = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), process);
  if (error != std::errc() || end != name.data() + name.size() || process <= 0) return std::nullopt;
  return process;
}

bool is_old(const fs::path& folder) {
  fs::file_time_type newest = fs::last_write_time(folder);
  for (const auto& entry : fs::directory_iterator(folder))
    newest = std::max(newest, entry.last_write_time());
  return fs::file_time_type::clock::now() - newest > kAbandonedAfter;
}

}  // namespace

void remove_abandoned(const fs::path& folder) {
  std::vector<fs::path> abandoned;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const auto writer = writer_of(entry.path().filename().string());
    if (!writer || entry.is_symlink() || !entry.is_directory()) continue;
    if (::kill(*writer, 0) == 0 || errno != ESRCH) continue;
    if (is_old(entry.path())) abandoned.push_back(entry.path());
  }
  std::error_code ignored;  // whatever stays is no worse than before
  for (const fs::path& path : abandoned) fs::remove_all(path, ignored);
}

FolderLock::FolderLock(const fs::path& folder) {
  descriptor_ = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);  // NOLINT(*-vararg)
  if (descriptor_ < 0) raise_system("open", folder, errno);
  if (::flock(descriptor_, LOCK_EX) == 0) return;
  const int error_number = errno;
  ::close(descriptor_);
  if (error_number == EINTR) raise_interrupted();
  raise_system("lock", folder, error_number);
}

FolderLock::~FolderLock() { ::close(descriptor_); }

OutputFolder::OutputFolder(fs::path path) : path_(std::move(path)) {
  std::error_code error;
  for (fs::path folder = path_; !folder.empty() && !fs::exists(folder, error);
       folder = folder.parent_path())
    made_.push_back(folder);
  fs::create_directories(path_, error);
  if (error) raise_system("create folder", path_, error.value());
}

OutputFolder::~OutputFolder() {
  if (kept_) return;
  std::error_code ignored;
  for (const fs::path& path : std::views::reverse(begun_)) fs::remove_all(path, ignored);
  for (const fs::path& folder : made_) fs::remove(folder, ignored);
}

void OutputFolder::write(std::string_view name, std::string_view text) {
  const fs::path file = path_ / name;
  const bool is_new = !fs::exists(file);
  write_text_file(file, text);
  if (is_new) begun_.push_back(file);
}

void OutputFolder::commit(StagedFolder& staged, std::string_view name) {
  staged.commit();
  begun_.push_back(path_ / name);
}

}  // namespace moxie

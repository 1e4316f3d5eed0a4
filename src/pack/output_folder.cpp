// SPDX-License-Identifier: Apache-2.0
// Remembers what it makes, so that nothing else is ever removed.
#include "pack/output_folder.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
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

// SPDX-License-Identifier: Apache-2.0
// The folder that packing writes into; what packing put there is taken away again when it fails.
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

#include "base/staged_file.hpp"

namespace moxie {

// Nothing is in the folder but what another process is still writing, or died writing.
bool is_free_folder(const std::filesystem::path& folder);

// Removes rank folders that a process died writing: it is gone, and nothing in them has changed for
// ten minutes, since another machine's processes can not be seen from here.
void remove_abandoned(const std::filesystem::path& folder);

// Holds other processes off while a folder's content becomes visible; waits for its turn.
class FolderLock {
 public:
  explicit FolderLock(const std::filesystem::path& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int descriptor_ = -1;
};

class OutputFolder {
 public:
  // Makes the folder and those above it that do not exist. Error(environment) when the system
  // refuses.
  explicit OutputFolder(std::filesystem::path path);
  // Without keep(): removes what came in through this object, then the folders made here if they
  // are empty. What others put there stays.
  ~OutputFolder();
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;

  // Writes a text file; one that was there before is replaced and stays.
  void write(std::string_view name, std::string_view text);
  // Makes a rank's folder visible.
  void commit(StagedFolder& staged, std::string_view name);
  void keep() { kept_ = true; }

 private:
  std::filesystem::path path_;
  std::vector<std::filesystem::path> made_;   // folders, innermost first
  std::vector<std::filesystem::path> begun_;  // files and folders inside, in order
  bool kept_ = false;
};

}  // namespace moxie

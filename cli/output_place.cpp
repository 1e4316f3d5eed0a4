// SPDX-License-Identifier: Apache-2.0
// Refused before anything is computed, so that a result is not lost for want of a place.
#include "cli/output_place.hpp"

#include <algorithm>
#include <fstream>
#include <system_error>
#include <utility>
#include <vector>

namespace moxie::cli {

namespace fs = std::filesystem;

namespace {

[[noreturn]] void refuse_output(const fs::path& path, const std::string& flag,
                                const std::string& message) {
  throw Error(ErrorCode::usage, {.code = "MOXIE-U003",
                                 .message = flag + " " + message,
                                 .where = {.file = path.string()},
                                 .expected = "the name of a new file, or of one to replace",
                                 .got = path.empty() ? "no name" : path.string(),
                                 .hint = "choose another " + flag});
}

bool is_part_of(const fs::path& path, const fs::path& model, const Checkpoint* checkpoint) {
  std::error_code failed;
  const fs::path asked = fs::weakly_canonical(path, failed);
  if (fs::is_directory(model, failed)) {
    const fs::path inside = asked.lexically_relative(fs::weakly_canonical(model, failed));
    return !inside.empty() && *inside.begin() != "..";
  }
  if (checkpoint == nullptr) return false;
  // One file, and what is read beside it.
  const std::vector<fs::path> files = {model, checkpoint->config_path(),
                                       checkpoint->quant_config_path(),
                                       model.parent_path() / "model.safetensors.index.json"};
  return std::ranges::any_of(files, [&](const fs::path& own) {
    return !own.empty() && fs::weakly_canonical(own, failed) == asked;
  });
}

}  // namespace

void require_output_place(const fs::path& path, const std::string& flag) {
  std::error_code failed;
  const fs::file_status status = fs::symlink_status(path, failed);
  if (path.empty() || !path.has_filename()) refuse_output(path, flag, "names no file");
  if (fs::exists(status) && !fs::is_regular_file(status))
    refuse_output(path, flag, "is there and is no file");
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  if (!fs::is_directory(folder, failed)) refuse_output(path, flag, "is in no folder");
  if (!fs::exists(status)) {
    // The only sure way to know that a file can be made is to make one.
    const bool made = std::ofstream(path).is_open();
    fs::remove(path, failed);
    if (!made) refuse_output(path, flag, "can not be written");
  }
}

void require_outside(const fs::path& path, const std::string& flag, const fs::path& model,
                     const Checkpoint* checkpoint) {
  if (is_part_of(path, model, checkpoint))
    refuse_output(path, flag, "would be a part of the model itself");
}

}  // namespace moxie::cli

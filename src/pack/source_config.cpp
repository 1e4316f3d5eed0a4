// SPDX-License-Identifier: Apache-2.0
// Files are copied, not written anew, so that the set's config says what the source's does.
#include "pack/source_config.hpp"

#include <filesystem>

#include "base/mapped_file.hpp"
#include "pack/packed_names.hpp"

namespace moxie {

std::optional<std::string> source_config(const Checkpoint& source, std::string_view name) {
  const bool main = name == kConfigFiles[0];
  const std::filesystem::path& path = main ? source.config_path() : source.quant_config_path();
  if (!path.empty()) return read_text_file(path);
  if (main && !source.config().is_null()) return source.config().dump() + "\n";
  return std::nullopt;
}

}  // namespace moxie

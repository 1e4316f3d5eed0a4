// SPDX-License-Identifier: Apache-2.0
// A rank's folder against its files.json: names, sizes, checksums.
#pragma once

#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "moxie/status.hpp"
#include "pack/packed_set.hpp"

namespace moxie {

// Names of everything in a folder, hidden entries too.
std::set<std::string> names_in(const std::filesystem::path& folder);

// A rank's folder holds the files that its list names, one per layer and one of what belongs to
// none, nothing else.
std::vector<Finding> check_names(const PackedRank& rank);

// Size and checksum of one listed file. Nothing for a file that is absent: that is for
// check_names's caller, who knows which layers are due.
std::optional<Finding> check_file(const PackedRank& rank, const std::string& name,
                                  const PackedFileRecord& record);

}  // namespace moxie

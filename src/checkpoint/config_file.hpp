// SPDX-License-Identifier: Apache-2.0
// config.json and its quantisation sidecar.
#pragma once

#include <filesystem>
#include <string>

#include "moxie/json.hpp"

namespace moxie {

// Reads a config file; null when there is none. The words NaN, Infinity and -Infinity, which Python
// writes into JSON, come out as strings. Error(input) for anything else that is no JSON object.
Json read_config_file(const std::filesystem::path& path);

// The text of a config that was made from the file `source`: what came out as strings goes back as
// the bare words, unless the source has the same word as text.
std::string config_text(const Json& config, const std::filesystem::path& source);

}  // namespace moxie

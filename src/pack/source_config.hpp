// SPDX-License-Identifier: Apache-2.0
// The config files that a packed set takes over from its source.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "moxie/checkpoint.hpp"

namespace moxie {

// The text of "config.json" or "hf_quant_config.json": byte by byte the source's file. A source
// that has its config inside, a .gguf, gives it as JSON. nullopt when it has none.
std::optional<std::string> source_config(const Checkpoint& source, std::string_view name);

}  // namespace moxie

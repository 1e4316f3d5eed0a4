// SPDX-License-Identifier: Apache-2.0
// What the metadata of a GGUF file says about the routed experts.
#pragma once

#include <string_view>

#include "moxie/json.hpp"
#include "moxie/model.hpp"

namespace moxie {

// Whether a config is such metadata.
bool is_gguf_config(const Json& config);

// Errors: Error(input) MOXIE-M001 for an architecture that is not known here, an absent or wrong
// key, or one that would change the result and is not understood.
ModelConfig read_gguf_config(const Json& config);

// The architecture that a model_type of a config.json has in GGUF files; empty when it has none
// that is read.
std::string_view gguf_architecture(std::string_view model_type);

// The number that GGUF has for a router; 0 when it has none.
unsigned gguf_gating(RouterKind router);

}  // namespace moxie

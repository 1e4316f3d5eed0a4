// SPDX-License-Identifier: Apache-2.0
// Which FP4 format a config declares for the routed experts.
#pragma once

#include <optional>
#include <string>

#include "moxie/json.hpp"
#include "moxie/types.hpp"

namespace moxie {

struct DeclaredFormat {
  std::optional<BlockFormat> format;
  std::string quantization;   // the declaration in words
  bool input_scales = false;  // an activation scale is stored per projection
};

// Reads `quantization_config` (top level or under text_config) and the older hf_quant_config.json.
DeclaredFormat declared_format(const Json& config, const Json& quant_config);

}  // namespace moxie

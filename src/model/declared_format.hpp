// SPDX-License-Identifier: Apache-2.0
// Which FP4 format a config declares for the routed experts.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

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

// What a config's lists and tables say of the experts of single layers. Lists leave modules out of
// quantisation, by name or by wildcard; a table of mixed precision gives each its algorithm.
class DeclaredLayers {
 public:
  DeclaredLayers(const Json& config, const Json& quant_config);

  // The format that the experts under this prefix are declared to have; nullopt: none in FP4.
  // Without a word on them, `overall`.
  [[nodiscard]] std::optional<BlockFormat> format_of(std::string_view prefix,
                                                     std::optional<BlockFormat> overall) const;

 private:
  struct Entry {
    std::string module;
    std::optional<BlockFormat> format;
  };

  std::vector<std::string> excluded_{};
  std::vector<Entry> table_{};         // of experts
  std::optional<BlockFormat> base_{};  // what is left out has the format of the model's own method
};

}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// What a config says of a DeepSeek-V4 model beside its routed experts.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "moxie/json.hpp"
#include "moxie/model.hpp"

namespace moxie {

// nullopt for other families, and for a config that lacks a size: such a model's routed experts can
// be planned, the rest of it can not.
std::optional<V4Config> read_v4_config(const Json& config, const ModelConfig& routed);

// A key that is absent, or of no use as it is.
struct LackingKey {
  std::string_view key;
  std::string expected;
  std::string got;  // "none" where it is absent
};
// Of a config of the family; without any the model can be read.
std::vector<LackingKey> lacking_v4_keys(const Json& config, const ModelConfig& routed);

}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// Names of a layer's router tensors, which lie beside its experts.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "moxie/model.hpp"

namespace moxie {

// Empty where the router has no such tensor.
struct RouterNames {
  std::string weight;
  std::vector<std::string> bias;  // the dialect's own first
  std::string token_table;
  std::string input_scale;
  std::string expert_scale;
};

// `prefix` is that of the experts: "layers.3.ffn.experts" gives "layers.3.ffn.gate.weight".
RouterNames router_names(std::string_view prefix, RouterKind kind = RouterKind::sigmoid);

// What the checkpoint holds of them, of any type and shape.
RouterTensors find_router(const Checkpoint& checkpoint, std::string_view prefix, RouterKind kind);

}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// Reads the expert tensors of one layer under one dialect into canonical form, and says what is
// wrong with them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "model/dialects/dialect.hpp"
#include "model/expert_names.hpp"
#include "moxie/model.hpp"

namespace moxie {

struct LayerRequest {
  int layer = 0;
  bool mtp = false;
  std::string prefix;
  std::uint64_t experts = 0;
  const Dialect* dialect = nullptr;
  const DialectNames* names = nullptr;
};

// Headers only. What is absent, or of a wrong type or shape, goes into `problems`.
LayerExperts read_layer(const Checkpoint& checkpoint, const ModelConfig& config,
                        const LayerRequest& request, const ExpertNames& seen);

}  // namespace moxie

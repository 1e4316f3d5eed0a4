// SPDX-License-Identifier: Apache-2.0
// Routed experts that a conversion leaves as they are, and what is said of them.
#pragma once

#include <string>
#include <vector>

#include "convert/documents.hpp"
#include "convert/target.hpp"

namespace moxie::convert {

// The experts under one prefix in a multi-token-prediction block, or in a layer that the config
// does not name.
struct LeftExperts {
  std::string prefix;
  const TensorInfo* tensor = nullptr;  // the first
  bool predicts = false;    // in a multi-token-prediction block, or in a layer after the last
  bool is_counted = false;  // the config counts such blocks
};
std::vector<LeftExperts> find_left_experts(const Source& source);

// Error(unsupported) MOXIE-Q005 with the tensor where the new config says of all experts that they
// are FP4 and readers would take those that stay for broken ones.
void require_words_for(const std::vector<LeftExperts>& left, const Source& source,
                       const Documents& documents);

// MOXIE-Q011 and MOXIE-M015, unless `known` has the latter.
std::vector<Finding> notes_on(const std::vector<LeftExperts>& left,
                              const std::vector<Finding>& known);

// Error(unsupported) MOXIE-M009 if the layer has experts, in another format than what was found.
void refuse_other_format(const Source& source, int layer);

}  // namespace moxie::convert

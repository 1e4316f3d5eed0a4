// SPDX-License-Identifier: Apache-2.0
// The tensors around the routed experts as a doctor looks at them.
#pragma once

#include <vector>

#include "moxie/model.hpp"

namespace moxie {

// Values of a whole layer's tensors around its experts; nothing for layers of experts alone.
std::vector<Finding> check_around(const MoeModel& model, const LayerExperts& layer);

}  // namespace moxie

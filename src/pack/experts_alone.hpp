// SPDX-License-Identifier: Apache-2.0
// Why only the routed experts of a DeepSeek-V4 checkpoint are packed that holds more.
#pragma once

#include <vector>

#include "moxie/model.hpp"

namespace moxie {

// Of a checkpoint that is not packed whole. MOXIE-K015, an error for each config key that is of no
// use, or, where the user `asked` for these layers, warnings; a warning where the tensors have
// names that are not the model's. Nothing for experts-only checkpoints and other families.
std::vector<Finding> experts_alone(const MoeModel& model, bool asked);

}  // namespace moxie

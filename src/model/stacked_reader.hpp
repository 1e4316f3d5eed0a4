// SPDX-License-Identifier: Apache-2.0
// Experts that lie in tensors of a whole layer, as canonical rows of each.
#pragma once

#include <string_view>
#include <vector>

#include "model/layer_reader.hpp"
#include "model/tensor_requests.hpp"

namespace moxie {

// Experts [0, request.experts). What is missing or of a wrong type or shape is told to `tensors`.
std::vector<ExpertTensors> read_stacked(const ModelConfig& config, const LayerRequest& request,
                                        TensorRequests& tensors);

// Whether the request's dialect reads a tensor of this name under the prefix; biases are read only
// of a model that has them.
bool is_stacked_leaf(const LayerRequest& request, bool biases, std::string_view leaf);

}  // namespace moxie

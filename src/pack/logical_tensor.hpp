// SPDX-License-Identifier: Apache-2.0
// The tensors of one expert in a logical file: what they are called and what they hold.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "checkpoint/safetensors_writer.hpp"
#include "moxie/model.hpp"
#include "moxie/plan.hpp"

namespace moxie {

// `scalar` is what a scalar's tensor stores, reciprocal or not.
struct LogicalTensor {
  PackedSegment segment;
  TensorEntry entry;
  std::optional<float> scalar;
};

// Names and types are the source's. Experts that are stacked get names of their own: Quark's for
// MXFP4, ModelOpt's for NVFP4, under "model.layers.L.mlp.experts". nullopt for what the source does
// not have.
std::optional<LogicalTensor> logical_tensor(const Checkpoint& checkpoint, const LayerExperts& layer,
                                            std::uint64_t expert, const PackedSegment& segment);

// Those that the expert has, in segment order.
std::vector<LogicalTensor> logical_tensors(const Checkpoint& checkpoint, const PackedLayout& layout,
                                           const LayerExperts& layer, std::uint64_t expert);

// Writes the tensor's bytes out of the expert's blob.
void write_logical(const LogicalTensor& tensor, std::span<const std::byte> blob,
                   SafetensorsWriter& writer);

// Biases of a logical file as a blob holds them, f32.
std::vector<std::byte> canonical_biases(DType stored, std::span<const std::byte> bytes);

}  // namespace moxie

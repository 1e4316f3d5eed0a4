// SPDX-License-Identifier: Apache-2.0
// How a dialect names, types and shapes the tensors of experts when they are written.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/safetensors_writer.hpp"
#include "moxie/model.hpp"

namespace moxie {

// What the bytes of a written tensor mean.
enum class WrittenPart : std::uint8_t {
  codes,          // pairs of E2M1 [n, k/2]
  block_scales,   // E8M0 or UE4M3 [n, k/group]
  weight_global,  // f32, multiplier of the weight; compressed-tensors: its reciprocal
  input_global    // f32, multiplier of the activations; compressed-tensors: its reciprocal
};

struct WrittenTensor {
  WrittenPart part = WrittenPart::codes;
  TensorEntry entry;
};

// Names around the experts of a layer.
struct BlockNames {
  std::string_view prefix;                      // before the layer index
  std::string_view block;                       // after it
  std::array<std::string_view, 3> projections;  // by ProjectionKind
  std::string_view correction_bias;             // under the block's gate
};
const BlockNames& block_names(DialectKind dialect);

// Whether the dialect keeps all experts of a layer in one tensor.
bool is_stacked(DialectKind dialect);

// The tensors of one projection [rows, cols] of one expert, `stem` being "PREFIX.EXPERT.LEAF", in
// file order. Not for stacked dialects. The sizes make whole groups of the format.
std::vector<WrittenTensor> written_projection(DialectKind dialect, BlockFormat format,
                                              const std::string& stem, std::uint64_t rows,
                                              std::uint64_t cols, bool input_scale);

}  // namespace moxie

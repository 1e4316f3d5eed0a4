// SPDX-License-Identifier: Apache-2.0
// Refuses stored scales that no reader may use: NaN codes, and a sign in an unsigned E4M3 scale.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "moxie/checkpoint.hpp"
#include "moxie/model.hpp"
#include "moxie/plan.hpp"
#include "pack/tensor_part.hpp"

namespace moxie {

// Position of the first scale byte in `scales` that is NaN or negative; scales.size() when there is
// none.
std::size_t first_bad_scale(BlockFormat format, std::span<const std::byte> scales);

// Throws Error(input) MOXIE-K003 naming place, row and group of a bad scale.
[[noreturn]] void refuse_scale(BlockFormat format, Place where, std::uint64_t row,
                               std::uint64_t group, std::byte got);
// The same for a tensor of a checkpoint.
[[noreturn]] void refuse_scale(const Checkpoint& checkpoint, const LayerExperts& layer,
                               std::uint64_t expert, const TensorInfo& tensor, std::uint64_t row,
                               std::uint64_t group, std::byte got);

// The same for scales of FP8 tiles: `out` holds rows of the tensor's part from `first_row` on.
void check_tile_scales(const Checkpoint& checkpoint, const TensorInfo& tensor,
                       const TensorPart& part, std::uint64_t first_row,
                       std::span<const std::byte> out);

// A projection's global multiplier. Throws Error(input) MOXIE-M006 when it has none, MOXIE-M007
// when it is no usable number, naming layer and expert.
float read_global(const Checkpoint& checkpoint, const LayerExperts& layer, std::uint64_t expert,
                  ProjectionKind projection, const ScalarRef& scalar);
// A stored scalar that must be a usable multiplier; what is wrong with it names layer and expert.
float read_scalar_of(const Checkpoint& checkpoint, const LayerExperts& layer, std::uint64_t expert,
                     const ScalarRef& scalar);

// Biases are f32, one after another. Number of the first that is not finite; how many there are
// when there is none.
std::size_t first_bad_bias(std::span<const std::byte> biases);
float bias_at(std::span<const std::byte> biases, std::size_t at);

// Throws Error(input) MOXIE-K010 for a bias that is no finite number. `biases` are f32, one after
// another, the first of row `first_row`.
void check_biases(std::span<const std::byte> biases, std::uint64_t first_row, const Place& where);
// Where a tensor of an expert is.
Place place_of(const Checkpoint& checkpoint, const LayerExperts& layer, std::uint64_t expert,
               const TensorInfo& tensor);

// Whether a plan's experts quantise activations with the scales that the checkpoint stores.
constexpr bool consumes_act_scales(const ShardPlan& plan) {
  return plan.act_format == ActFormat::nvfp4 && plan.act_scale == ActScale::checkpoint;
}
// A projection's stored activation scale, under which nothing may overflow or vanish. Throws
// Error(input) MOXIE-M007 naming layer, projection and expert.
float read_act_scale(const Checkpoint& checkpoint, const LayerExperts& layer, std::uint64_t expert,
                     ProjectionKind projection, const ScalarRef& scalar);

}  // namespace moxie

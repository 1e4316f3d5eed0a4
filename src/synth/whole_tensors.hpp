// SPDX-License-Identifier: Apache-2.0
// The tensors of a whole model, file by file. The recipe has its `whole`.
#pragma once

#include <cstdint>
#include <vector>

#include "synth/names.hpp"
#include "synth/recipe.hpp"

namespace moxie::synth {

// A file for each layer, then for each draft block, then one for what belongs to no layer.
std::uint64_t whole_shards(const Recipe& recipe);

// In file order: what lies around the experts as layer_tensors() has it, then the experts by id,
// gate before up before down. The first one has the running number `first_number`.
std::vector<Tensor> tensors_of_shard(const Recipe& recipe, std::uint64_t shard,
                                     std::uint64_t first_number);

// Of all tensors; the largest number when it needs more than 64 bits.
std::uint64_t whole_bytes(const Recipe& recipe);

}  // namespace moxie::synth

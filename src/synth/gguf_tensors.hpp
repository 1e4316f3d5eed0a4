// SPDX-License-Identifier: Apache-2.0
// The tensors of a layer as GGUF has them: those of all experts in one, codes and scales in blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "synth/names.hpp"

namespace moxie::synth {

// As tensors_of_layer() does.
std::vector<Tensor> gguf_tensors(const Recipe& recipe, std::uint64_t layer,
                                 std::uint64_t first_number);

// Writes the bytes [begin, begin + out.size()) of a tensor that no other dialect has: the values
// are those that the others hold expert by expert. False for one that others have, too.
bool fill_gguf(const Recipe& recipe, const Tensor& tensor, std::uint64_t begin,
               std::span<std::byte> out);

}  // namespace moxie::synth

// SPDX-License-Identifier: Apache-2.0
// Offsets inside one packed expert.
#pragma once

#include "moxie/plan.hpp"

namespace moxie {

// What experts have beside up and down.
struct ExpertParts {
  bool gated = true;
  bool biases = false;
  bool globals = false;  // and activation scales
};

// Linear layout: codes of gate, up, down, then their scales, then f32 globals, then
// f32 biases; the stride is a multiple of 64 bytes. `kernel` is the local intermediate width in
// memory.
PackedLayout linear_layout(std::uint64_t hidden, Elems kernel, BlockFormat format,
                           ExpertParts parts);

}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// How far ahead the tile kernels ask for weights.
#pragma once

#include <cstdint>

namespace moxie::cpu::tiles {

// In tiles, of this processor.
std::uint64_t tiles_ahead();

}  // namespace moxie::cpu::tiles

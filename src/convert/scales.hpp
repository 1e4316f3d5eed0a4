// SPDX-License-Identifier: Apache-2.0
// Stored multipliers of the source that are no multipliers, or that the target can not store.
#pragma once

#include "convert/target.hpp"

namespace moxie::convert {

// Reads the scales of FP8 tiles and the globals of NVFP4. Error(input) MOXIE-M007 with tensor,
// layer, expert and place for one that is not finite and greater than zero, or whose reciprocal,
// where the target stores that, is not.
void require_scales(const Source& source, const Target& target);

}  // namespace moxie::convert

// SPDX-License-Identifier: Apache-2.0
// Which activation functions the portable kernel runs: all, as formats/activation.hpp defines them.
#pragma once

#include "formats/activation.hpp"
#include "moxie/types.hpp"

namespace moxie::cpu::portable {

constexpr bool supports_activation(Activation /*activation*/) { return true; }

}  // namespace moxie::cpu::portable

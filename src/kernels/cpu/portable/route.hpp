// SPDX-License-Identifier: Apache-2.0
// cpu.portable.route: logits, selection and final weights in fp32.
#pragma once

#include "kernels/contract.hpp"

namespace moxie::cpu::portable {

extern const RouteKernel kRoute;

}  // namespace moxie::cpu::portable

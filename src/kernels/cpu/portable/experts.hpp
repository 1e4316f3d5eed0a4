// SPDX-License-Identifier: Apache-2.0
// cpu.portable.experts: plain C++ for any CPU, fp32 accumulation, threads over blocks of rows.
#pragma once

#include "kernels/contract.hpp"

namespace moxie::cpu::portable {

extern const ExpertsKernel kExperts;

}  // namespace moxie::cpu::portable

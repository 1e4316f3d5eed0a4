// SPDX-License-Identifier: Apache-2.0
// Experts kernels in AVX-512 with VBMI and VNNI, and BF16 for bf16 activations.
#pragma once

#include "kernels/contract.hpp"

namespace moxie::cpu::avx512 {

// Null where the build is for another architecture.
const ExpertsKernel* experts_bf16();
const ExpertsKernel* experts_int8();

}  // namespace moxie::cpu::avx512

// SPDX-License-Identifier: Apache-2.0
// Experts kernels in AVX2 with FMA and F16C; bf16 activations are multiplied in fp32.
#pragma once

#include "kernels/contract.hpp"

namespace moxie::cpu::avx2 {

// Null where the build is for another architecture.
const ExpertsKernel* experts_f32();
const ExpertsKernel* experts_int8();

}  // namespace moxie::cpu::avx2

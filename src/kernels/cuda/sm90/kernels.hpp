// SPDX-License-Identifier: Apache-2.0
// The kernels for Hopper; null in a build without CUDA.
#pragma once

#include "kernels/contract.hpp"

namespace moxie::cuda::sm90 {

const ExpertsKernel* experts_fp16();
const ExpertsKernel* experts_fp8();
const ExpertArrangement* arrangement();

}  // namespace moxie::cuda::sm90

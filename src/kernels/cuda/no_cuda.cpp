// SPDX-License-Identifier: Apache-2.0
// The kernels of a build without CUDA: none.
#include "kernels/cuda/portable/kernels.hpp"
#include "kernels/cuda/sm90/kernels.hpp"

namespace moxie::cuda::portable {

const ExpertsKernel* experts_kernel() { return nullptr; }
const RouteKernel* route_kernel() { return nullptr; }
const PartialsKernel* partials_kernel() { return nullptr; }
const RowsKernel* rows_kernel() { return nullptr; }

}  // namespace moxie::cuda::portable

namespace moxie::cuda::sm90 {

const ExpertsKernel* experts_fp16() { return nullptr; }
const ExpertsKernel* experts_fp8() { return nullptr; }
const ExpertArrangement* arrangement() { return nullptr; }

}  // namespace moxie::cuda::sm90

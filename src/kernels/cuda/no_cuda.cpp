// SPDX-License-Identifier: Apache-2.0
// The kernels of a build without CUDA: none.
#include "kernels/cuda/portable/kernels.hpp"

namespace moxie::cuda::portable {

const ExpertsKernel* experts_kernel() { return nullptr; }
const RouteKernel* route_kernel() { return nullptr; }
const PartialsKernel* partials_kernel() { return nullptr; }

}  // namespace moxie::cuda::portable

// SPDX-License-Identifier: Apache-2.0
// The portable GPU kernels; null in a build without CUDA.
#pragma once

#include "kernels/contract.hpp"

namespace moxie::cuda::portable {

const ExpertsKernel* experts_kernel();
const RouteKernel* route_kernel();
const PartialsKernel* partials_kernel();
const RowsKernel* rows_kernel();

}  // namespace moxie::cuda::portable

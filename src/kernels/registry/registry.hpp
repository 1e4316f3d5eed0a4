// SPDX-License-Identifier: Apache-2.0
// Catalog name to code, for what this binary holds.
#pragma once

#include <string_view>

#include "kernels/contract.hpp"

namespace moxie {

// nullptr for a name that is not built.
const ExpertsKernel* find_experts_kernel(std::string_view name);
const RouteKernel* find_route_kernel(std::string_view name);

}  // namespace moxie

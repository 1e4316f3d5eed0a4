// SPDX-License-Identifier: Apache-2.0
// Catalog name to code, for what this binary holds.
#pragma once

#include <string_view>

#include "kernels/contract.hpp"

namespace moxie {

// nullptr for a name that is not built.
const ExpertsKernel* find_experts_kernel(std::string_view name);
const RouteKernel* find_route_kernel(std::string_view name);
// What serves rows that are dispatched already; null where nothing is built for the target.
const RowsKernel* find_rows_kernel(Target target);
// For targets whose memory is not the host's; nullptr otherwise, and where it is not built.
const PartialsKernel* find_partials_kernel(Target target);

}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// The names of the catalog with code behind them.
#include "kernels/registry/registry.hpp"

#include "kernels/cpu/portable/experts.hpp"
#include "kernels/cpu/portable/route.hpp"

namespace moxie {

const ExpertsKernel* find_experts_kernel(std::string_view name) {
  return name == "cpu.portable.experts" ? &cpu::portable::kExperts : nullptr;
}

const RouteKernel* find_route_kernel(std::string_view name) {
  return name == "cpu.portable.route" ? &cpu::portable::kRoute : nullptr;
}

}  // namespace moxie

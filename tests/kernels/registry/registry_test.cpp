// SPDX-License-Identifier: Apache-2.0
// Catalog and registry name the same kernels.
#include "kernels/registry/registry.hpp"

#include <gtest/gtest.h>

#include <string_view>

#include "moxie/catalog.hpp"

namespace moxie {
namespace {

TEST(Registry, HoldsExactlyTheKernelsThatTheCatalogCallsBuilt) {
  for (const KernelEntry& kernel : kernel_catalog()) {
    EXPECT_EQ(find_experts_kernel(kernel.name) != nullptr, kernel.built) << kernel.name;
    EXPECT_EQ(find_route_kernel(kernel.route) != nullptr, kernel.built) << kernel.route;
  }
}

TEST(Registry, EveryEntryIsComplete) {
  for (const KernelEntry& kernel : kernel_catalog()) {
    if (!kernel.built) continue;
    const ExpertsKernel& experts = *find_experts_kernel(kernel.name);
    EXPECT_TRUE(experts.run && experts.workspace_bytes && experts.supports) << kernel.name;
    const RouteKernel& route = *find_route_kernel(kernel.route);
    EXPECT_TRUE(route.run && route.workspace_bytes && route.supports) << kernel.route;
  }
}

TEST(Registry, NeitherKnowsTheReferenceNorAnUnknownName) {
  for (const std::string_view name : {"ref", "cpu.ref.experts", "cpu.portable", ""}) {
    EXPECT_EQ(find_experts_kernel(name), nullptr) << name;
    EXPECT_EQ(find_route_kernel(name), nullptr) << name;
  }
}

}  // namespace
}  // namespace moxie

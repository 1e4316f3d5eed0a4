// SPDX-License-Identifier: Apache-2.0
// Suites over the catalog: every entry for GPUs is an instance, skipped with its reason where this
// machine does not run it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/device_call.hpp"
#include "kernels/cuda/judged_experts.hpp"
#include "kernels/registry/registry.hpp"
#include "moxie/catalog.hpp"

namespace moxie::test {

class CatalogGpu : public OnGpu, public testing::WithParamInterface<const KernelEntry*> {
 protected:
  void SetUp() override {
    OnGpu::SetUp();
    if (IsSkipped()) return;
    const KernelEntry& here = entry();
    if (!here.runs_on(target_))
      GTEST_SKIP() << here.name << " "
                   << refusal(here, {.target = target_, .hidden = 4096, .inter = 4096});
    kernel_ = find_experts_kernel(here.name);
    ASSERT_EQ(kernel_ != nullptr, here.built) << here.name;
    if (kernel_ == nullptr) GTEST_SKIP() << here.name << " is not built here";
    seed_ = std::random_device{}();
    random_.seed(seed_);
    RecordProperty("seed", std::to_string(seed_));
  }

  static const KernelEntry& entry() { return *GetParam(); }
  // Where a test wants experts of any kind, and of any other.
  static ActFormat any_act() { return entry().act_formats.front(); }
  static BlockFormat any_format() { return entry().formats.front(); }
  static BlockFormat other_format() { return entry().formats.back(); }
  // What the catalog says about these experts; a plan pads inter before it asks.
  bool takes(const ExpertsOptions& options) const {
    return options.inter % entry().inter_multiple == 0 &&
           refusal(entry(), {.target = target_,
                             .format = options.format,
                             .act_format = options.act_format,
                             .hidden = options.hidden,
                             .inter = options.inter})
               .empty();
  }
  std::string trace(const ExpertsOptions& options, const ExpertsCall& call, Ids ids) const {
    return std::string(entry().name) + ", seed " + std::to_string(seed_) + ", " +
           std::string(name_of(options.format)) + ", " + std::string(name_of(options.act_format)) +
           ", " + std::string(name_of(options.activation)) + ", hidden " +
           std::to_string(options.hidden) + ", inter " + std::to_string(options.inter) +
           ", tokens " + std::to_string(call.tokens) + ", ids " +
           std::to_string(static_cast<int>(ids)) + ", x " + std::string(name_of(call.form.type)) +
           " gap " + std::to_string(call.form.gap) + " shift " + std::to_string(call.form.shift);
  }

  const ExpertsKernel* kernel_ = nullptr;
  std::uint64_t seed_ = 0;
  std::mt19937_64 random_;
};

// Entries that run on a GPU, of whatever family.
inline std::vector<const KernelEntry*> gpu_kernels() {
  std::vector<const KernelEntry*> kernels;
  for (const KernelEntry& entry : kernel_catalog()) {
    if (entry.target != Target::cpu) kernels.push_back(&entry);
  }
  return kernels;
}
inline std::string instance_name(const testing::TestParamInfo<const KernelEntry*>& info) {
  std::string name(info.param->name);
  std::ranges::replace(name, '.', '_');
  return name;
}

// Bits without exception: runs of one kernel on one device differ in nothing.
inline void expect_identical(const ExpertsResult& got, const ExpertsResult& expected) {
  expect_same_bits(got.tap, expected.tap, "tap");
  expect_same_bits(got.y, expected.y, "y");
  EXPECT_EQ(got.flags, expected.flags);
}

}  // namespace moxie::test

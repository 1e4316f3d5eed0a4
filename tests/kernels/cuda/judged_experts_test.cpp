// SPDX-License-Identifier: Apache-2.0
// The judge of the GPU suites, on any machine: it passes the host's kernel, and no planted fault.
#include "kernels/cuda/judged_experts.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <string>

namespace moxie {
namespace {

using namespace test;

const KernelEntry& host_entry() {
  return *std::ranges::find(kernel_catalog(), "cpu.portable.experts", &KernelEntry::name);
}

TEST(JudgedExperts, PassTheHostsKernel) {
  ASSERT_EQ(host_entry().name, "cpu.portable.experts");
  const auto seed = std::random_device{}();
  std::mt19937_64 random(seed);
  for (const BlockFormat format : {BlockFormat::mxfp4, BlockFormat::nvfp4}) {
    for (const ActFormat act :
         {ActFormat::bf16, ActFormat::fp8, ActFormat::mxfp8, ActFormat::nvfp4}) {
      for (const Activation activation :
           {Activation::silu, Activation::clamped_swiglu, Activation::oai_swiglu, Activation::situ,
            Activation::relu2, Activation::gelu_tanh}) {
        const bool biases = activation == Activation::oai_swiglu || random() % 2 == 0;
        const Experts experts = random_experts({.format = format,
                                                .act_format = act,
                                                .act_scale = ActScale::row,
                                                .activation = activation,
                                                .biases = biases},
                                               random);
        for (const Ids ids : kAllIds) {
          if (activation != Activation::silu && ids != Ids::masked) continue;
          const ExpertsCall call = random_call(experts.shape, 5, ids, random);
          SCOPED_TRACE("seed " + std::to_string(seed) + ", " + std::string(name_of(act)) + ", " +
                       std::string(name_of(activation)));
          expect_within_bound(run_on_host(experts, call), experts, call, host_entry());
        }
      }
    }
  }
}

TEST(JudgedExperts, PassNoPlantedFault) {
  std::mt19937_64 random(5);
  const Experts experts = random_experts({.biases = true, .hidden = 96, .inter = 64}, random);
  ExpertsCall call = random_call(experts.shape, 6, Ids::uniform, random);
  call.ids[0] = 1;  // token 0 is computed here
  const ExpertsResult right = run_on_host(experts, call);
  ShardPlan plan;
  plan.ranks.resize(1);
  const auto passes = [&](const ExpertsResult& result, bool from_tap) {
    const auto act = from_tap ? std::span<const float>(result.tap) : std::span<const float>();
    return check_output(result.y, reference_of(experts, call, host_entry().sum_order, act), plan)
        .passed;
  };
  EXPECT_TRUE(passes(right, true));
  EXPECT_TRUE(passes(right, false));
  ExpertsResult wrong = right;
  wrong.y[3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(passes(wrong, true));
  wrong = right;
  wrong.y[3] *= 1.01F;
  EXPECT_FALSE(passes(wrong, true));
  wrong = right;
  wrong.tap[3] = 2 * wrong.tap[3] + 1;
  EXPECT_FALSE(passes(wrong, true));
  // Experts that are not those of the call: a bias, gate for up, another expert's blob.
  const auto with = [&](const std::function<void(Experts&)>& change) {
    Experts other = experts;
    change(other);
    return run_on_host(other, call);
  };
  EXPECT_FALSE(passes(with([](Experts& e) { e.at.down_bias = BlobOffsets::kAbsent; }), true));
  EXPECT_FALSE(passes(with([](Experts& e) { std::swap(e.at.gate, e.at.up); }), false));
  EXPECT_FALSE(passes(with([](Experts& e) { std::swap(e.at.gate_bias, e.at.up_bias); }), false));
  EXPECT_FALSE(passes(with([](Experts& e) {
                        std::rotate(e.local_of_expert.begin() + 1, e.local_of_expert.begin() + 2,
                                    e.local_of_expert.end() - 1);
                      }),
                      false));
}

}  // namespace
}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// cuda.portable.experts against cpu.portable.experts, bit for bit: results, the values between the
// products, counts and flags. Buffers have guards, workspaces are poisoned.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <set>
#include <string>

#include "kernels/cuda/device_call.hpp"
#include "kernels/registry/registry.hpp"

namespace moxie {
namespace {

using namespace test;

struct Acts {
  ActFormat format;
  ActScale scale;
};
constexpr Acts kActs[] = {
    {ActFormat::bf16, ActScale::checkpoint},  {ActFormat::fp8, ActScale::checkpoint},
    {ActFormat::mxfp8, ActScale::checkpoint}, {ActFormat::nvfp4, ActScale::checkpoint},
    {ActFormat::nvfp4, ActScale::warmup},     {ActFormat::nvfp4, ActScale::dynamic},
    {ActFormat::nvfp4, ActScale::row}};
constexpr BlockFormat kFormats[] = {BlockFormat::mxfp4, BlockFormat::nvfp4};
constexpr Activation kActivations[] = {Activation::silu,       Activation::clamped_swiglu,
                                       Activation::oai_swiglu, Activation::situ,
                                       Activation::relu2,      Activation::gelu_tanh};

class PortableGpuExperts : public OnGpu {
 protected:
  void SetUp() override {
    OnGpu::SetUp();
    if (IsSkipped()) return;
    kernel_ = find_experts_kernel("cuda.portable.experts");
    ASSERT_NE(kernel_, nullptr);
    seed_ = std::random_device{}();
    random_.seed(seed_);
    RecordProperty("seed", std::to_string(seed_));
  }
  std::string trace(const ExpertsOptions& options, std::uint64_t tokens, int ids) const {
    return "seed " + std::to_string(seed_) + ", " + std::string(name_of(options.format)) + ", " +
           std::string(name_of(options.act_format)) + " " +
           std::string(name_of(options.act_scale)) + ", " +
           std::string(name_of(options.activation)) + ", tokens " + std::to_string(tokens) +
           ", ids " + std::to_string(ids);
  }
  // The kernel is asked for by its name: a plan may prefer another.
  ExpertsResult run_there(const Experts& experts, const ExpertsCall& call,
                          std::byte poison = std::byte{0xFF}) const {
    return run_on_device(ExpertsThere(*kernel_, experts), call, {.poison = poison});
  }
  const ExpertsKernel* kernel_ = nullptr;
  std::uint64_t seed_ = 0;
  std::mt19937_64 random_;
};

// On any machine: equality with NaN or with zeros would say nothing.
TEST(RandomExperts, GiveTheHostNumbersThatDiffer) {
  std::mt19937_64 random(std::random_device{}());
  for (const BlockFormat format : kFormats) {
    for (const Acts& acts : kActs) {
      const Experts experts = random_experts(
          {.format = format, .act_format = acts.format, .act_scale = acts.scale}, random);
      const ExpertsCall call = random_call(experts.shape, 40, Ids::uniform, random);
      const ExpertsResult result = run_on_host(experts, call);
      const auto count = std::ranges::count_if(
          result.y, [](float value) { return std::isfinite(value) && value != 0; });
      // Under frozen scales all activations of a token may be below the least that is not zero.
      const std::size_t of_10 = acts.scale == ActScale::warmup ? 5 : 9;
      EXPECT_GT(static_cast<std::size_t>(count), result.y.size() * of_10 / 10)
          << name_of(format) << " " << name_of(acts.format) << " " << name_of(acts.scale);
      const std::set<float> values(result.tap.begin(), result.tap.end());
      EXPECT_GT(values.size(), 10U);
    }
  }
}

TEST_F(PortableGpuExperts, HaveTheHostsBitsForEveryFormatPolicyRoutingAndCount) {  // K-09, K-10
  for (const BlockFormat format : kFormats) {
    for (const Acts& acts : kActs) {
      ExpertsOptions options{.format = format, .act_format = acts.format, .act_scale = acts.scale};
      // MXFP4 stores no input scales, and no plan takes them from there.
      if (format == BlockFormat::mxfp4 && acts.format == ActFormat::nvfp4 &&
          acts.scale == ActScale::checkpoint)
        continue;
      const Experts experts = random_experts(options, random_);
      for (const Ids ids : kAllIds) {
        for (const std::uint64_t tokens : {0U, 1U, 2U, 7U, 64U, 129U}) {
          SCOPED_TRACE(trace(options, tokens, static_cast<int>(ids)));
          const ExpertsCall call = random_call(experts.shape, tokens, ids, random_);
          expect_same(run_there(experts, call), run_on_host(experts, call));
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST_F(PortableGpuExperts, HaveTheHostsBitsForEveryActivationFunctionAndWithBiases) {
  for (const BlockFormat format : kFormats) {
    for (const Activation activation : kActivations) {
      for (const bool biases : {false, true}) {
        ExpertsOptions options{.format = format, .activation = activation, .biases = biases};
        const Experts experts = random_experts(options, random_);
        SCOPED_TRACE(trace(options, 19, biases));
        const ExpertsCall call = random_call(experts.shape, 19, Ids::uniform, random_);
        expect_same(run_there(experts, call), run_on_host(experts, call));
      }
    }
  }
}

TEST_F(PortableGpuExperts, SumLongRowsInTheOrderThatTheCatalogStates) {  // K-08
  for (const std::uint64_t width : {32U, 64U, 256U, 736U, 1056U, 2880U}) {
    ExpertsOptions options{.format = BlockFormat::nvfp4, .hidden = 96, .inter = width};
    const Experts experts = random_experts(options, random_);
    SCOPED_TRACE(width);
    const ExpertsCall call = random_call(experts.shape, 9, Ids::uniform, random_);
    expect_same(run_there(experts, call), run_on_host(experts, call));
  }
}

TEST_F(PortableGpuExperts, DoNotDependOnWhatTheWorkspaceHeldNorOnTheRun) {  // K-12, K-14
  for (const Acts& acts : kActs) {
    ExpertsOptions options{
        .format = BlockFormat::nvfp4, .act_format = acts.format, .act_scale = acts.scale};
    const Experts experts = random_experts(options, random_);
    const ExpertsCall call = random_call(experts.shape, 33, Ids::zipf, random_);
    const ExpertsResult first = run_there(experts, call, std::byte{0xFF});
    for (const int poison : {0x00, 0x7F, 0xFF})
      expect_same(run_there(experts, call, static_cast<std::byte>(poison)), first);
  }
}

TEST_F(PortableGpuExperts, KeepNanWhereItIsAndNoWhereElse) {  // pit48, pit57
  for (const Acts& acts : kActs) {
    ExpertsOptions options{
        .format = BlockFormat::nvfp4, .act_format = acts.format, .act_scale = acts.scale};
    const Experts experts = random_experts(options, random_);
    ExpertsCall call = random_call(experts.shape, 12, Ids::masked, random_);
    const std::size_t elem = bits_of(call.x_type) / 8;
    std::memset(call.x.data() + (5 * call.x_stride + 17) * elem, 0xFF, elem);
    call.ids[5 * experts.shape.top_k] = 2;
    expect_same(run_there(experts, call), run_on_host(experts, call));
  }
}

TEST_F(PortableGpuExperts, SortMoreExpertsThanOneScanTakes) {
  ExpertsOptions options{.hidden = 32, .inter = 32, .experts = 1502, .local = 1500, .top_k = 5};
  const Experts experts = random_experts(options, random_);
  for (const Ids ids : {Ids::uniform, Ids::zipf, Ids::one}) {
    const ExpertsCall call = random_call(experts.shape, 700, ids, random_);
    expect_same(run_there(experts, call), run_on_host(experts, call));
  }
}

TEST_F(PortableGpuExperts, ReplayAGraphOnOtherRoutingsWithTheBitsOfEagerCalls) {  // K-13
  for (const Acts& acts : kActs) {
    ExpertsOptions options{
        .format = BlockFormat::nvfp4, .act_format = acts.format, .act_scale = acts.scale};
    const Experts experts = random_experts(options, random_);
    std::vector<ExpertsCall> calls;
    const RowsForm form = random_form(random_);  // a graph has it fixed
    for (const Ids ids : {Ids::uniform, Ids::one, Ids::masked, Ids::foreign, Ids::zipf})
      calls.push_back(random_call(experts.shape, 64, ids, random_, form));
    const ExpertsThere weights(*kernel_, experts);
    DeviceCall there(weights, calls[0]);
    device::Stream stream;
    device::Graph graph(stream);
    there.launch(stream);
    graph.end();
    for (const ExpertsCall& call : calls) {
      there.replace(call);
      graph.launch();
      stream.wait();
      expect_same(there.result(), run_on_host(experts, call));
    }
  }
}

TEST_F(PortableGpuExperts, SurviveTheEndOfAnEarlierGraph) {  // K-13
  const Experts experts = random_experts({}, random_);
  const ExpertsCall small = random_call(experts.shape, 8, Ids::uniform, random_);
  const ExpertsCall large = random_call(experts.shape, 64, Ids::uniform, random_);
  const ExpertsCall eager = random_call(experts.shape, 3, Ids::uniform, random_);
  const ExpertsThere weights(*kernel_, experts);
  DeviceCall small_there(weights, small);
  DeviceCall large_there(weights, large);
  device::Stream stream;
  auto first = std::make_unique<device::Graph>(stream);
  small_there.launch(stream);
  first->end();
  first->launch();
  stream.wait();
  expect_same(small_there.result(), run_on_host(experts, small));
  device::Graph second(stream);
  large_there.launch(stream);
  second.end();
  first.reset();
  second.launch();
  stream.wait();
  expect_same(large_there.result(), run_on_host(experts, large));
  expect_same(run_there(experts, eager), run_on_host(experts, eager));
}

}  // namespace
}  // namespace moxie

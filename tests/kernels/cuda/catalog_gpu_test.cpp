// SPDX-License-Identifier: Apache-2.0
// Every kernel of the catalog against the reference: formats, shapes, routings, counts of tokens,
// activation functions, forms of x and y. Workspaces are poisoned, buffers have guards.
#include <gtest/gtest.h>

#include <initializer_list>
#include <span>

#include "kernels/cuda/catalog_rig.hpp"

namespace moxie {
namespace {

using namespace test;

constexpr ActFormat kActFormats[] = {ActFormat::bf16, ActFormat::fp8, ActFormat::mxfp8,
                                     ActFormat::nvfp4};

class EveryKernel : public CatalogGpu {
 protected:
  // All of these routings and counts within the bound; false: the kernel does not take them.
  bool judge(const ExpertsOptions& options, std::span<const Ids> all_ids,
             std::span<const std::uint64_t> counts) {
    if (!takes(options)) return false;
    const Experts experts = random_experts(options, random_);
    const ExpertsThere there(*kernel_, experts);
    EXPECT_TRUE(there.holds_all());
    for (const Ids ids : all_ids) {
      for (const std::uint64_t tokens : counts) {
        const ExpertsCall call = random_call(experts.shape, tokens, ids, random_);
        SCOPED_TRACE(trace(options, call, ids));
        expect_within_bound(run_on_device(there, call), experts, call, entry());
        if (HasFailure()) return true;
      }
    }
    EXPECT_TRUE(there.intact());
    return true;
  }
};

TEST_P(EveryKernel, IsWithinTheBoundForEveryRoutingAndCount) {
  constexpr std::uint64_t kCounts[] = {0, 1, 2, 7, 64, 129, 512};
  for (const BlockFormat format : entry().formats) {
    EXPECT_TRUE(judge({.format = format, .act_format = any_act(), .hidden = 256, .inter = 192},
                      kAllIds, kCounts));
    if (HasFailure()) return;
  }
}

TEST_P(EveryKernel, IsWithinTheBoundForEveryActFormatThatItTakes) {
  constexpr Ids kIds[] = {Ids::uniform, Ids::one, Ids::masked};
  constexpr std::uint64_t kCounts[] = {1, 7, 64, 129};
  unsigned taken = 0;
  for (const BlockFormat format : entry().formats) {
    for (const ActFormat act : kActFormats) {
      taken += judge({.format = format,
                      .act_format = act,
                      .act_scale = ActScale::row,
                      .hidden = 448,
                      .inter = 320},
                     kIds, kCounts);
      if (HasFailure()) return;
    }
  }
  EXPECT_EQ(taken, entry().formats.size() * entry().act_formats.size());
}

// Steps of 64 columns: one, a few, an odd number, more than a block has warps, and so many that
// less of the weights is in flight.
TEST_P(EveryKernel, IsWithinTheBoundForEveryShape) {
  constexpr Ids kIds[] = {Ids::uniform};
  constexpr std::uint64_t kCounts[] = {1, 9, 40};
  const ExpertsOptions few{.experts = 4, .local = 3, .top_k = 2};
  struct Widths {
    std::uint64_t hidden;
    std::uint64_t inter;
  };
  for (const Widths& widths : std::initializer_list<Widths>{{64, 64},
                                                            {128, 64},
                                                            {192, 704},
                                                            {576, 192},
                                                            {2048, 64},
                                                            {2112, 64},
                                                            {64, 2112},
                                                            {2880, 704},
                                                            {4096, 64},
                                                            {64, 4096},
                                                            {7680, 64},
                                                            {64, 7680}}) {
    for (const BlockFormat format : entry().formats) {
      ExpertsOptions options = few;
      options.format = format;
      options.act_format = any_act();
      options.hidden = widths.hidden;
      options.inter = widths.inter;
      EXPECT_TRUE(judge(options, kIds, kCounts));
      if (HasFailure()) return;
    }
  }
}

TEST_P(EveryKernel, IsWithinTheBoundForEveryActivationFunctionWithAndWithoutBiases) {
  constexpr Ids kIds[] = {Ids::uniform};
  constexpr std::uint64_t kCounts[] = {3, 19, 70};
  for (const BlockFormat format : entry().formats) {
    for (const Activation activation :
         {Activation::silu, Activation::clamped_swiglu, Activation::oai_swiglu, Activation::situ,
          Activation::relu2, Activation::gelu_tanh}) {
      for (const bool biases : {false, true}) {
        EXPECT_TRUE(judge({.format = format,
                           .act_format = any_act(),
                           .activation = activation,
                           .biases = biases,
                           .hidden = 320,
                           .inter = 192},
                          kIds, kCounts));
        if (HasFailure()) return;
      }
    }
  }
}

TEST_P(EveryKernel, TakesEveryFormOfXAndWritesEveryFormOfY) {
  const ExpertsOptions options{
      .format = other_format(), .act_format = any_act(), .hidden = 256, .inter = 64};
  const Experts experts = random_experts(options, random_);
  const ExpertsThere there(*kernel_, experts);
  for (const DType type : {DType::bf16, DType::f32}) {
    for (const std::uint64_t gap : {0U, 1U, 8U}) {
      for (const std::uint64_t shift : {0U, 1U, 4U}) {
        for (const Store store : {Store::sum, Store::f32_rows, Store::bf16_rows}) {
          if (store != Store::sum && !kernel_->stores_y) continue;
          const ExpertsCall call = random_call(experts.shape, 11, Ids::masked, random_,
                                               {.type = type, .gap = gap, .shift = shift});
          SCOPED_TRACE(trace(options, call, Ids::masked));
          expect_within_bound(run_on_device(there, call, {.store = store}), experts, call, entry(),
                              store == Store::bf16_rows ? DType::bf16 : DType::f32);
          if (HasFailure()) return;
        }
      }
    }
  }
}

// The most experts and choices that a model has, and few tokens on each.
TEST_P(EveryKernel, IsWithinTheBoundForHundredsOfExperts) {
  constexpr Ids kIds[] = {Ids::uniform, Ids::zipf};
  constexpr std::uint64_t kCounts[] = {1, 33, 200};
  EXPECT_TRUE(judge({.format = any_format(),
                     .act_format = any_act(),
                     .hidden = 128,
                     .inter = 64,
                     .experts = 898,
                     .local = 896,
                     .top_k = 16},
                    kIds, kCounts));
}

INSTANTIATE_TEST_SUITE_P(Catalog, EveryKernel, testing::ValuesIn(gpu_kernels()), instance_name);

// For a tool that looks at every access: tiny, and all paths of it.
class SmallEveryKernel : public EveryKernel {};

TEST_P(SmallEveryKernel, IsWithinTheBound) {
  constexpr std::uint64_t kCounts[] = {1, 9, 40};  // items of up to 8 rows, and of up to 16
  for (const BlockFormat format : entry().formats) {
    for (const ActFormat act : {entry().act_formats.front(), entry().act_formats.back()}) {
      if (act == ActFormat::nvfp4) continue;  // its scales are others' subject
      const ExpertsOptions options{.format = format,
                                   .act_format = act,
                                   .biases = act == any_act(),
                                   .hidden = 192,
                                   .inter = 64,
                                   .experts = 4,
                                   .local = 3,
                                   .top_k = 2};
      const Experts experts = random_experts(options, random_);
      const ExpertsThere there(*kernel_, experts);
      for (const std::uint64_t tokens : kCounts) {
        const ExpertsCall call = random_call(experts.shape, tokens, Ids::uniform, random_);
        SCOPED_TRACE(trace(options, call, Ids::uniform));
        expect_within_bound(run_on_device(there, call, {.max_sms = 5, .untouched = true}), experts,
                            call, entry());
      }
    }
  }
}

// Strips of more than 32 steps, and rows that leave room for fewer stages.
TEST_P(SmallEveryKernel, IsWithinTheBoundForLongRows) {
  for (const std::uint64_t hidden : {2112U, 4096U, 7168U}) {
    const ExpertsOptions options{.format = any_format(),
                                 .act_format = any_act(),
                                 .hidden = hidden,
                                 .inter = 64,
                                 .experts = 3,
                                 .local = 2,
                                 .top_k = 1};
    const Experts experts = random_experts(options, random_);
    const ExpertsThere there(*kernel_, experts);
    const ExpertsCall call = random_call(experts.shape, 12, Ids::one, random_);
    SCOPED_TRACE(trace(options, call, Ids::one));
    expect_within_bound(run_on_device(there, call, {.max_sms = 3, .untouched = true}), experts,
                        call, entry());
  }
}

INSTANTIATE_TEST_SUITE_P(Catalog, SmallEveryKernel, testing::ValuesIn(gpu_kernels()),
                         instance_name);

}  // namespace
}  // namespace moxie

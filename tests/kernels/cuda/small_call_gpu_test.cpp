// SPDX-License-Identifier: Apache-2.0
// Calls of few slots, which kernels may treat in a way of their own: a token has the bits that it
// has in a large call, whatever the ids, the workspace and the call before were.
#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <limits>
#include <vector>

#include "kernels/cuda/catalog_rig.hpp"

namespace moxie {
namespace {

using namespace test;

class FewSlots : public CatalogGpu {
 protected:
  Experts experts_of(std::uint64_t top_k, std::uint64_t experts = 9, std::uint64_t local = 7) {
    return random_experts({.format = any_format(),
                           .act_format = any_act(),
                           .hidden = 320,
                           .inter = 192,
                           .experts = experts,
                           .local = local,
                           .top_k = top_k},
                          random_);
  }
  // The first tokens of a call.
  static ExpertsCall first_of(const ExpertsCall& call, std::uint64_t tokens, std::uint64_t top_k) {
    ExpertsCall first = call;
    first.tokens = tokens;
    first.x.resize(tokens * call.x_stride * bits_of(call.x_type) / 8);
    first.ids.resize(tokens * top_k);
    first.weights.resize(tokens * top_k);
    return first;
  }
  static void expect_first_of(const ExpertsResult& got, const ExpertsResult& all) {
    const auto first = [](const std::vector<float>& values, std::size_t count) {
      return std::vector<float>(values.begin(),
                                values.begin() + static_cast<std::ptrdiff_t>(count));
    };
    expect_same_bits(got.y, first(all.y, got.y.size()), "y");
    expect_same_bits(got.tap, first(all.tap, got.tap.size()), "tap");
  }
  // Of every count of tokens, against one large call.
  void compare(const Experts& experts, std::uint64_t most_tokens, Ids ids) {
    const std::uint64_t top_k = experts.shape.top_k;
    const ExpertsThere there(*kernel_, experts);
    const ExpertsCall large = random_call(experts.shape, 70, ids, random_);
    const ExpertsResult expected = run_on_device(there, large);
    for (std::uint64_t tokens = 1; tokens <= most_tokens; ++tokens) {
      const ExpertsCall call = first_of(large, tokens, top_k);
      SCOPED_TRACE(trace({}, call, ids) + ", top_k " + std::to_string(top_k));
      const auto poison = static_cast<std::byte>(random_());
      expect_first_of(run_on_device(there, call, {.poison = poison}), expected);
      if (HasFailure()) return;
    }
  }
};

TEST_P(FewSlots, HaveTheBitsOfALargeCallForEveryRoutingAndCount) {  // 64 slots, 8 tokens: limits
  for (const std::uint64_t top_k : {1U, 3U, 7U, 8U, 9U, 16U, 64U}) {
    const Experts experts = experts_of(top_k);
    for (const Ids ids : kAllIds) {
      compare(experts, top_k == 64 ? 2 : 10, ids);
      if (HasFailure()) return;
    }
  }
}

// Of which kernels may hand out short pieces where an even routing leaves little to do: also where
// this routing does not, where a block does all of it, and where rows are longer than what a warp
// looks at in one go.
TEST_P(FewSlots, HaveTheBitsOfALargeCallOnAnyNumberOfBlocks) {
  struct Size {
    std::uint64_t experts;
    std::uint64_t inter;
    std::uint64_t top_k;
  };
  for (const auto& [count, inter, top_k] : {Size{9, 1088, 6}, {300, 2304, 6}, {9, 64, 1}}) {
    const Experts experts = random_experts({.format = any_format(),
                                            .act_format = any_act(),
                                            .hidden = 320,
                                            .inter = inter,
                                            .experts = count,
                                            .local = 7,
                                            .top_k = top_k},
                                           random_);
    const ExpertsThere there(*kernel_, experts);
    for (const Ids ids : {Ids::uniform, Ids::masked, Ids::duplicates, Ids::one}) {
      const ExpertsCall large = random_call(experts.shape, 70, ids, random_);
      const ExpertsResult expected = run_on_device(there, large);
      for (const std::uint64_t tokens : {1U, 2U, 5U, 8U}) {
        const ExpertsCall call = first_of(large, tokens, top_k);
        SCOPED_TRACE(trace({}, call, ids) + ", experts " + std::to_string(count) + ", inter " +
                     std::to_string(inter));
        for (const unsigned max_sms : {1U, 2U, 7U, 0U}) {
          const auto poison = static_cast<std::byte>(random_());
          expect_first_of(run_on_device(there, call, {.poison = poison, .max_sms = max_sms}),
                          expected);
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST_P(FewSlots, HaveTheBitsOfALargeCallForHundredsOfExperts) {  // 512: a limit
  for (const std::uint64_t experts : {511U, 512U, 513U}) {
    compare(experts_of(8, experts, experts - 2), 8, Ids::uniform);
    if (HasFailure()) return;
  }
}

TEST_P(FewSlots, FlagIdsOutsideTheModel) {
  const Experts experts = experts_of(4);
  const ExpertsThere there(*kernel_, experts);
  for (const std::uint64_t tokens : {1U, 8U}) {
    ExpertsCall call = random_call(experts.shape, tokens, Ids::uniform, random_);
    EXPECT_EQ(run_on_device(there, call).flags, 0U);
    for (const std::int32_t id : {9, -2, std::numeric_limits<std::int32_t>::min()}) {
      call.ids.back() = id;
      EXPECT_EQ(run_on_device(there, call).flags, kFlagBadExpertId) << id;
    }
  }
}

// Values of which every bit is set, and infinite ones, between the products and behind them.
TEST_P(FewSlots, EndWhenValuesAreNoNumbers) {
  const Experts experts = experts_of(3);
  const ExpertsThere there(*kernel_, experts);
  for (const DType type : {DType::bf16, DType::f32}) {
    ExpertsCall call = random_call(experts.shape, 6, Ids::uniform, random_, {.type = type});
    call.ids[2 * 3] = call.ids[4 * 3] = 2;  // not masked
    const ExpertsResult clean = run_on_device(there, call);
    const std::size_t row = call.x_stride * bits_of(type) / 8;
    std::memset(call.x.data() + 2 * row, 0xFF, row);
    call.weights[4 * 3] = std::numeric_limits<float>::infinity();
    const ExpertsResult result = run_on_device(there, call);
    for (std::size_t i = 0; i < result.y.size(); ++i) {
      const std::size_t token = i / experts.shape.hidden;
      if (token == 2) {
        ASSERT_NE(result.y[i], result.y[i]) << "NaN became a number";
      } else if (token != 4) {
        ASSERT_EQ(result.y[i], clean.y[i]) << "a neighbour";
      }
    }
  }
}

TEST_P(FewSlots, FollowEachOtherInOneWorkspaceWithoutAPause) {
  const Experts experts = experts_of(6);
  const ExpertsThere there(*kernel_, experts);
  const DeviceMemory workspace(kernel_->workspace_bytes(experts.shape, 12), std::byte{0xFF}, 1);
  std::vector<ExpertsResult> alone;
  std::deque<DeviceCall> calls;
  for (int i = 0; i < 60; ++i) {
    const std::uint64_t tokens = 1 + random_() % 12;
    const ExpertsCall call = random_call(experts.shape, tokens, kAllIds[random_() % 9], random_);
    alone.push_back(run_on_device(there, call));
    calls.emplace_back(there, call, CallOptions{.workspace = &workspace});
    if (i % 3 != 0) calls.back().look_away();
  }
  const device::Stream stream;
  for (DeviceCall& call : calls) call.launch(stream);
  stream.wait();
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const ExpertsResult result = calls[i].result();
    expect_same_bits(result.y, alone[i].y, "y");
    EXPECT_EQ(result.flags, alone[i].flags) << i;
    if (HasFailure()) return;
  }
  EXPECT_TRUE(workspace.intact());
}

INSTANTIATE_TEST_SUITE_P(Catalog, FewSlots, testing::ValuesIn(gpu_kernels()), instance_name);

// For a tool that looks at every access.
class SmallFewSlots : public FewSlots {};

TEST_P(SmallFewSlots, HaveTheBitsOfALargeCall) {
  const Experts experts = random_experts({.format = any_format(),
                                          .act_format = any_act(),
                                          .hidden = 128,
                                          .inter = 64,
                                          .experts = 4,
                                          .local = 3,
                                          .top_k = 5},
                                         random_);
  for (const Ids ids : {Ids::uniform, Ids::masked, Ids::duplicates}) {
    const ExpertsThere there(*kernel_, experts);
    const ExpertsCall large = random_call(experts.shape, 20, ids, random_);
    const ExpertsResult expected = run_on_device(there, large);
    for (const std::uint64_t tokens : {1U, 3U, 8U})
      expect_first_of(run_on_device(there, first_of(large, tokens, 5), {.untouched = true}),
                      expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Catalog, SmallFewSlots, testing::ValuesIn(gpu_kernels()), instance_name);

}  // namespace
}  // namespace moxie

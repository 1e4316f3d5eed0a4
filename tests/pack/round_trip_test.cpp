// SPDX-License-Identifier: Apache-2.0
// Every byte of the checkpoint is on exactly the ranks that should hold it, and nothing else is.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <tuple>
#include <vector>

#include "moxie/pack.hpp"
#include "support/packed_model.hpp"
#include "support/refusal.hpp"

namespace moxie {
namespace {

using test::all_are;
using test::Bytes;
using test::describe;
using test::equals_source;
using test::packed_blob;
using test::plan_of;
using test::same_bytes;
using test::tiny_options;
using test::TinyModel;

// (tensor-parallel ranks, expert-parallel ranks, kernel alignment)
using Grid = std::tuple<unsigned, unsigned, std::uint64_t>;

std::vector<Grid> grids() {
  std::vector<Grid> grids;
  for (const unsigned tp : {1U, 2U, 3U, 4U, 5U, 6U, 7U, 8U, 16U}) {
    for (const std::uint64_t align : {32, 64, 128}) grids.emplace_back(tp, 1, align);
    grids.emplace_back(tp, 2, 32);  // 5 experts: 3 + 2
    grids.emplace_back(tp, 3, 64);  // 2 + 2 + 1
  }
  return grids;
}

// Packs one expert over bytes of two kinds, with a guard behind the blob.
void pack_over_poison(const MoeModel& model, const ShardPlan& plan, const RankPlan& rank,
                      std::uint64_t expert, Bytes& blob) {
  constexpr std::size_t kGuard = 64;
  constexpr std::byte kGuardByte{0xA7};
  Bytes guarded(plan.layout.stride + kGuard, kGuardByte);
  const auto inside = std::span(guarded).first(plan.layout.stride);
  std::ranges::fill(inside, std::byte{0xFF});
  pack_expert(model, plan, rank, model.require_layer(0), expert, inside);
  ASSERT_TRUE(all_are(std::span(guarded).last(kGuard), kGuardByte)) << "written past the blob";
  // A byte that packing leaves alone would keep two different values.
  blob = packed_blob(model, plan, rank.rank, expert, std::byte{0x5A});
  ASSERT_TRUE(same_bytes(inside, blob)) << "stale byte on rank " << rank.rank;
}

void expect_round_trip(const MoeModel& model, const ShardPlan& plan) {
  Bytes blob;
  for (std::uint64_t expert = 0; expert < plan.experts; ++expert) {
    UnpackedExpert over_ff = make_unpacked(plan, std::byte{0xFF});
    UnpackedExpert over_5a = make_unpacked(plan, std::byte{0x5A});
    unsigned owners = 0;
    for (const RankPlan& rank : plan.ranks) {
      if (!rank.experts.holds(expert)) continue;
      ++owners;
      ASSERT_NO_FATAL_FAILURE(pack_over_poison(model, plan, rank, expert, blob));
      unpack_expert(plan, rank, blob, over_ff);
      unpack_expert(plan, rank, blob, over_5a);
    }
    ASSERT_EQ(owners, plan.tp) << "expert " << expert;
    ASSERT_TRUE(equals_source(model, plan, expert, over_ff)) << "expert " << expert;
    ASSERT_TRUE(equals_source(model, plan, expert, over_5a)) << "expert " << expert;
  }
}

class PackRoundTrip : public testing::TestWithParam<std::tuple<BlockFormat, std::uint64_t>> {};

// T2, pit69, pit71: joining the real parts of all ranks gives the original bytes of every tensor
// kind. Narrow axes leave ranks past the end empty.
TEST_P(PackRoundTrip, JoinedRanksEqualTheSourceForEveryGrid) {
  const auto [format, inter] = GetParam();
  test::TinyOptions options = tiny_options(format, inter);
  options.experts = 5;
  const TinyModel model(options);
  for (const auto& [tp, ep, align] : grids()) {
    const ShardPlan plan = plan_of(*model, tp, ep, align);
    SCOPED_TRACE(describe(plan));
    ASSERT_NO_FATAL_FAILURE(expect_round_trip(*model, plan));
  }
}

INSTANTIATE_TEST_SUITE_P(Widths, PackRoundTrip,
                         testing::Combine(testing::ValuesIn(test::kFormats),
                                          testing::Values(32, 96, 160, 288)),
                         [](const auto& param) {
                           return std::string(name_of(std::get<0>(param.param))) + "_" +
                                  std::to_string(std::get<1>(param.param));
                         });

// NVFP4 groups of 16 allow widths that no MXFP4 plan has.
TEST(Pack, RoundTripsWidthsOfOddNvfp4Groups) {
  for (const std::uint64_t inter : {16, 48, 112, 240}) {
    const TinyModel model(BlockFormat::nvfp4, inter);
    for (const unsigned tp : {1U, 2U, 3U, 5U, 7U, 16U}) {
      const ShardPlan plan = plan_of(*model, tp);
      SCOPED_TRACE(describe(plan));
      ASSERT_NO_FATAL_FAILURE(expect_round_trip(*model, plan));
    }
  }
}

TEST(Pack, RoundTripsModeloptNamesAndModelsWithoutGate) {
  for (const bool gated : {true, false}) {
    test::TinyOptions options{.dialect = test::TinyDialect::modelopt, .layers = 1, .gated = gated};
    const TinyModel model(options);
    const ShardPlan plan = plan_of(*model, 3);
    EXPECT_EQ(plan.layout.segments.size(), gated ? 12U : 8U);
    expect_round_trip(*model, plan);
  }
}

// P-05: 30 experts on 8 groups of ranks, each expert in exactly one group.
TEST(Pack, P05UnevenExpertSplitHoldsEveryExpertOnce) {
  test::TinyOptions options = tiny_options(BlockFormat::mxfp4, 32, 32);
  options.experts = 30;
  const TinyModel model(options);
  const ShardPlan plan = plan_of(*model, 1, 8);
  std::vector<std::uint64_t> counts;
  for (const RankPlan& rank : plan.ranks) counts.push_back(rank.experts.count());
  EXPECT_EQ(counts, (std::vector<std::uint64_t>{4, 4, 4, 4, 4, 4, 3, 3}));
  expect_round_trip(*model, plan);
}

// Load-time check of virtual_tp.md §7.6: the real elements over all ranks sum to the axis.
TEST(Pack, RealPartsOfAllRanksSumToTheAxis) {
  for (const BlockFormat format : test::kFormats) {
    const TinyModel model(format, 288);
    for (unsigned tp = 1; tp <= 16; ++tp) {
      Elems rows;
      PackedBytes bytes;
      ScaleGroups groups;
      for (const RankPlan& rank : plan_of(*model, tp).ranks) {
        rows += rank.slice.rows.count;
        bytes += rank.slice.bytes.count;
        groups += rank.slice.groups.count;
      }
      EXPECT_EQ(rows.value, 288U);
      EXPECT_EQ(bytes.value, 144U);
      EXPECT_EQ(groups.value, format == BlockFormat::mxfp4 ? 9U : 18U);
    }
  }
}

TEST(Pack, PacksAllExpertsOfARankInTheOrderOfTheirIds) {
  test::TinyOptions options = tiny_options(BlockFormat::nvfp4);
  options.experts = 5;
  const TinyModel model(options);
  const ShardPlan plan = plan_of(*model, 2, 2);
  for (const RankPlan& rank : plan.ranks) {
    const PackedExperts packed = pack(*model, plan, rank.rank, 0);
    EXPECT_EQ(packed.layout, plan.layout);
    EXPECT_EQ(packed.experts, rank.experts);
    ASSERT_EQ(packed.blobs.size(), rank.experts.count() * plan.layout.stride);
    for (const std::uint64_t expert : rank.experts.ids()) {
      EXPECT_TRUE(same_bytes(packed_blob(*model, plan, rank.rank, expert), packed.blob(expert)));
    }
  }
}

TEST(Unpack, RefusesEveryTailByteThatIsNotZero) {
  for (const BlockFormat format : test::kFormats) {
    const TinyModel model(format);
    const ShardPlan plan = plan_of(*model, 2, 1, 128);
    for (const RankPlan& rank : plan.ranks) {
      const Bytes clean = packed_blob(*model, plan, rank.rank, 0);
      std::uint64_t tail_bytes = 0;
      for (std::size_t at = 0; at < clean.size(); ++at) {
        if (clean[at] != std::byte{0}) continue;  // the source has no zero byte but in scalars
        Bytes bad = clean;
        bad[at] = std::byte{1};
        UnpackedExpert out = make_unpacked(plan, std::byte{0});
        try {
          unpack_expert(plan, rank, bad, out);
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::verdict);
          EXPECT_EQ(test::code_of(error), "MOXIE-V003");
          ++tail_bytes;
        }
      }
      std::uint64_t planned = plan.layout.stride - plan.layout.expert_bytes;
      const auto& slice = rank.slice;
      const std::uint64_t groups_of_hidden = 64 / (format == BlockFormat::mxfp4 ? 32 : 16);
      planned += 2 * slice.rows.zero().value * (32 + groups_of_hidden);
      planned += 64 * (slice.bytes.zero().value + slice.groups.zero().value);
      EXPECT_EQ(tail_bytes, planned);
    }
  }
}

}  // namespace
}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// Random experts: legal, reproducible, as distributed as stated, with zero tails; one rank alone.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>

#include "support/packed_model.hpp"

namespace moxie {
namespace {

using test::TinyModel;

std::span<const std::byte> segment_of(const PackedExperts& packed, std::uint64_t expert,
                                      Segment segment) {
  const PackedSegment& at = *packed.layout.find(segment);
  return packed.blob(expert).subspan(at.offset, at.bytes());
}

TEST(DrawnExperts, UnpackAsAnExpertWithLegalScalesAndZeroTails) {
  for (const BlockFormat format : test::kFormats) {
    const TinyModel model(format, 96);
    const ShardPlan plan = test::plan_of(*model, 2, 1, 128);  // 48 or 64 real rows of 128
    for (const unsigned rank : {0U, 1U}) {
      const PackedExperts packed = draw_experts(plan, rank, 7);
      ASSERT_EQ(packed.blobs.size(), packed.experts.count() * plan.layout.stride);
      UnpackedExpert out = make_unpacked(plan, std::byte{0xFF});
      for (std::uint64_t expert = 0; expert < packed.experts.count(); ++expert) {
        EXPECT_NO_THROW(unpack_expert(plan, plan.ranks[rank], packed.blob(expert), out));
        for (const Segment scales : {Segment::gate_scale, Segment::up_scale, Segment::down_scale}) {
          for (const std::byte scale : segment_of(packed, expert, scales)) {
            const auto byte = std::to_integer<unsigned>(scale);
            if (byte == 0) continue;  // tail
            EXPECT_TRUE(format == BlockFormat::mxfp4 ? byte >= 117 && byte <= 120 : byte <= 126)
                << byte;
          }
        }
      }
    }
  }
}

TEST(DrawnExperts, HaveEveryCodeEquallyOftenAndEveryScale) {
  const TinyModel model(BlockFormat::mxfp4, 96, 512);
  const ShardPlan plan = test::plan_of(*model, 1);
  const PackedExperts packed = draw_experts(plan, 0, 1);
  std::array<std::uint64_t, 16> codes{};
  std::array<std::uint64_t, 256> scales{};
  for (std::uint64_t expert = 0; expert < packed.experts.count(); ++expert) {
    for (const std::byte two : segment_of(packed, expert, Segment::gate)) {
      ++codes[std::to_integer<unsigned>(two) & 15];
      ++codes[std::to_integer<unsigned>(two) >> 4];
    }
    for (const std::byte scale : segment_of(packed, expert, Segment::gate_scale))
      ++scales[std::to_integer<unsigned>(scale)];
  }
  const double elems = static_cast<double>(packed.experts.count()) * 96 * 512;
  for (const std::uint64_t count : codes)
    EXPECT_NEAR(static_cast<double>(count), elems / 16, 6 * std::sqrt(elems / 16));
  for (unsigned byte = 117; byte <= 120; ++byte)
    EXPECT_NEAR(static_cast<double>(scales[byte]), elems / 32 / 4, 6 * std::sqrt(elems / 32 / 4));
}

TEST(DrawnExperts, DependOnSeedRankExpertAndTensor) {
  const TinyModel model(BlockFormat::nvfp4, 96);
  const ShardPlan plan = test::plan_of(*model, 3);
  const PackedExperts first = draw_experts(plan, 0, 1);
  EXPECT_EQ(first.blobs, draw_experts(plan, 0, 1).blobs);
  EXPECT_NE(first.blobs, draw_experts(plan, 0, 2).blobs);
  EXPECT_NE(first.blobs, draw_experts(plan, 1, 1).blobs);
  const auto bytes = [&](std::uint64_t expert, Segment segment) {
    const auto span = segment_of(first, expert, segment);
    return test::Bytes(span.begin(), span.end());
  };
  EXPECT_NE(bytes(0, Segment::gate), bytes(1, Segment::gate));
  EXPECT_NE(bytes(0, Segment::gate), bytes(0, Segment::up));
  float global = 0;
  std::memcpy(&global, bytes(0, Segment::down_dequant_mul).data(), sizeof global);
  EXPECT_GE(global, 0x1p-15F);
  EXPECT_LT(global, 0x1p-14F);
}

TEST(PlanOfRank, HoldsOneRanksShareAsAWholeAxisAndItsExpertsUnderGlobalIds) {
  const TinyModel model(BlockFormat::mxfp4, 160);
  const ShardPlan plan = test::plan_of(*model, 3, 2);
  const RankPlan& last = plan.ranks[5];
  const ShardPlan alone = plan_of_rank(plan, 5);
  ASSERT_EQ(alone.ranks.size(), 1U);
  EXPECT_EQ(alone.tp * alone.ep, 1U);
  EXPECT_EQ(alone.experts, plan.experts);
  EXPECT_EQ(alone.layout, plan.layout);
  EXPECT_EQ(alone.ranks[0].experts, last.experts);
  EXPECT_GT(last.experts.id(0), 0U);
  EXPECT_EQ(alone.inter().original, last.slice.rows.count);
  EXPECT_EQ(alone.inter().kernel, plan.inter().kernel);
  EXPECT_EQ(alone.ranks[0].slice.rows.src, Elems{0});
  EXPECT_EQ(alone.ranks[0].slice.rows.dst, last.slice.rows.dst);
  UnpackedExpert out = make_unpacked(alone, std::byte{0xFF});
  const PackedExperts packed = draw_experts(alone, 0, 3);
  EXPECT_NO_THROW(unpack_expert(alone, alone.ranks[0], packed.blob(last.experts.id(0)), out));
}

TEST(PlanOfRank, RefusesARankThatIsNotThereOrHoldsZerosOnly) {
  const TinyModel model(BlockFormat::mxfp4, 96);
  const ShardPlan plan = test::plan_of(*model, 4);  // three groups of 32 for four ranks
  for (const unsigned rank : {3U, 4U}) {
    try {
      (void)plan_of_rank(plan, rank);
      FAIL() << rank;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::usage);
      EXPECT_EQ(error.findings().front().code, "MOXIE-P001");
    }
  }
}

}  // namespace
}  // namespace moxie

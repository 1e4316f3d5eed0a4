// SPDX-License-Identifier: Apache-2.0
// The intermediate axis: figures worked out by hand, and laws for every number of ranks.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "formats/block_format.hpp"
#include "plan/plan_model.hpp"
#include "support/refusal.hpp"

namespace moxie {
namespace {

using test::code_of;
using test::refusal_of;

constexpr auto kMxfp4 = BlockFormat::mxfp4;
constexpr auto kNvfp4 = BlockFormat::nvfp4;

using Numbers = std::vector<std::uint64_t>;

// What all ranks get of one axis, unit by unit.
struct Cut {
  AxisPlan axis;
  Numbers rows_src, rows, rows_zero;
  Numbers bytes_src, bytes, bytes_zero;
  Numbers groups_src, groups, groups_zero;
};

Cut cut(std::uint64_t inter, unsigned tp, BlockFormat format, std::uint64_t kernel_align) {
  Cut result{.axis = plan_axis(Elems{inter}, tp, Elems{scale_group(format)}, Elems{kernel_align})};
  for (unsigned rank = 0; rank < tp; ++rank) {
    const InterSlice slice = slice_inter(result.axis, rank, format);
    result.rows_src.push_back(slice.rows.src.value);
    result.rows.push_back(slice.rows.count.value);
    result.rows_zero.push_back(slice.rows.zero().value);
    result.bytes_src.push_back(slice.bytes.src.value);
    result.bytes.push_back(slice.bytes.count.value);
    result.bytes_zero.push_back(slice.bytes.zero().value);
    result.groups_src.push_back(slice.groups.src.value);
    result.groups.push_back(slice.groups.count.value);
    result.groups_zero.push_back(slice.groups.zero().value);
  }
  return result;
}

// 20 groups of 32 or 40 of 16 on eight ranks: 96 or 80 rows each, which kernels of 128 pad.
TEST(PlanAxis, AWidthOf640OnEightRanksIsPaddedToTheKernel) {
  const Cut mxfp4 = cut(640, 8, kMxfp4, 128);
  EXPECT_EQ(mxfp4.axis.local, Elems{96});
  EXPECT_EQ(mxfp4.axis.kernel, Elems{128});
  EXPECT_EQ(mxfp4.rows, (Numbers{96, 96, 96, 96, 96, 96, 64, 0}));
  EXPECT_EQ(mxfp4.rows_zero, (Numbers{32, 32, 32, 32, 32, 32, 64, 128}));
  const Cut nvfp4 = cut(640, 8, kNvfp4, 128);
  EXPECT_EQ(nvfp4.axis.local, Elems{80});
  EXPECT_EQ(nvfp4.axis.kernel, Elems{128});
  EXPECT_EQ(nvfp4.rows, Numbers(8, 80));
  EXPECT_DOUBLE_EQ(nvfp4.axis.kernel_overhead_pct, 60.0);
}

TEST(PlanAxis, DeepseekV4FlashOnThreeRanksInMxfp4) {  // pit68
  const Cut c = cut(2048, 3, kMxfp4, 128);
  EXPECT_EQ(c.axis.virtual_global, Elems{2112});
  EXPECT_EQ(c.axis.local, Elems{704});
  EXPECT_EQ(c.axis.kernel, Elems{768});
  EXPECT_EQ(c.rows_src, (Numbers{0, 704, 1408}));
  EXPECT_EQ(c.rows, (Numbers{704, 704, 640}));
  EXPECT_EQ(c.rows_zero, (Numbers{64, 64, 128}));
  EXPECT_EQ(c.bytes_src, (Numbers{0, 352, 704}));
  EXPECT_EQ(c.bytes, (Numbers{352, 352, 320}));
  EXPECT_EQ(c.bytes_zero, (Numbers{32, 32, 64}));
  EXPECT_EQ(c.groups_src, (Numbers{0, 22, 44}));
  EXPECT_EQ(c.groups, (Numbers{22, 22, 20}));
  EXPECT_EQ(c.groups_zero, (Numbers{2, 2, 4}));
  EXPECT_DOUBLE_EQ(c.axis.overhead_pct, 3.125);
  EXPECT_DOUBLE_EQ(c.axis.kernel_overhead_pct, 12.5);
}

TEST(PlanAxis, DeepseekV4FlashOnThreeRanksInNvfp4) {  // pit68; 43 groups are odd
  const Cut wide = cut(2048, 3, kNvfp4, 128);
  EXPECT_EQ(wide.axis.virtual_global, Elems{2064});
  EXPECT_EQ(wide.axis.local, Elems{688});
  EXPECT_EQ(wide.axis.kernel, Elems{768});
  EXPECT_EQ(wide.bytes_src, (Numbers{0, 344, 688}));
  EXPECT_EQ(wide.groups_src, (Numbers{0, 43, 86}));
  EXPECT_EQ(wide.rows, (Numbers{688, 688, 672}));
  EXPECT_EQ(wide.bytes, (Numbers{344, 344, 336}));
  EXPECT_EQ(wide.groups, (Numbers{43, 43, 42}));
  EXPECT_EQ(wide.rows_zero, (Numbers{80, 80, 96}));
  EXPECT_EQ(wide.bytes_zero, (Numbers{40, 40, 48}));
  EXPECT_EQ(wide.groups_zero, (Numbers{5, 5, 6}));
  const Cut narrow = cut(2048, 3, kNvfp4, 64);
  EXPECT_EQ(narrow.axis.kernel, Elems{704});
  EXPECT_EQ(narrow.rows_zero, (Numbers{16, 16, 32}));
  EXPECT_EQ(narrow.bytes_zero, (Numbers{8, 8, 16}));
  EXPECT_EQ(narrow.groups_zero, (Numbers{1, 1, 2}));
}

TEST(PlanAxis, EightRanksCut1856BetweenScaleGroups) {  // P-01
  const Cut c = cut(1856, 8, kNvfp4, 16);
  EXPECT_EQ(c.rows_src, (Numbers{0, 240, 480, 720, 960, 1200, 1440, 1680}));
  EXPECT_EQ(c.bytes_src, (Numbers{0, 120, 240, 360, 480, 600, 720, 840}));
  EXPECT_EQ(c.groups_src, (Numbers{0, 15, 30, 45, 60, 75, 90, 105}));
  EXPECT_EQ(c.rows, (Numbers{240, 240, 240, 240, 240, 240, 240, 176}));
  EXPECT_EQ(c.bytes.back(), 88U);
  EXPECT_EQ(c.groups.back(), 11U);
  EXPECT_EQ(c.rows_zero, (Numbers{0, 0, 0, 0, 0, 0, 0, 64}));
  EXPECT_EQ(c.bytes_zero.back(), 32U);
  EXPECT_EQ(c.groups_zero.back(), 4U);
}

TEST(PlanAxis, FourRanksKeepTheTailOf2880) {  // P-02: 720 elements are 22.5 groups
  const Cut c = cut(2880, 4, kMxfp4, 32);
  EXPECT_EQ(c.axis.local, Elems{736});
  EXPECT_EQ(c.axis.virtual_global, Elems{2944});
  EXPECT_EQ(c.rows_src, (Numbers{0, 736, 1472, 2208}));
  EXPECT_EQ(c.rows, (Numbers{736, 736, 736, 672}));
  EXPECT_EQ(c.rows_zero, (Numbers{0, 0, 0, 64}));
  EXPECT_EQ(c.groups, (Numbers{23, 23, 23, 21}));
}

TEST(PlanAxis, KernelWidthIsAllocatedAndNeverAStepInTheCheckpoint) {  // P-04
  const Cut c = cut(704, 4, kNvfp4, 64);
  EXPECT_EQ(c.axis.local, Elems{176});
  EXPECT_EQ(c.axis.kernel, Elems{192});
  EXPECT_EQ(c.rows_src, (Numbers{0, 176, 352, 528}));
  EXPECT_EQ(c.rows_zero, (Numbers{16, 16, 16, 16}));
  EXPECT_EQ(c.bytes_src, (Numbers{0, 88, 176, 264}));
  EXPECT_EQ(c.bytes_zero, (Numbers{8, 8, 8, 8}));
  EXPECT_EQ(c.groups, (Numbers{11, 11, 11, 11}));
  EXPECT_EQ(c.groups_zero, (Numbers{1, 1, 1, 1}));
  EXPECT_EQ(c.axis.overhead_pct, 0.0);
}

TEST(PlanAxis, KernelPaddingAloneIsNoVirtualPadding) {  // V4.1-Flash on eight ranks
  const Cut c = cut(2304, 8, kMxfp4, 128);
  EXPECT_EQ(c.axis.virtual_global, c.axis.original);
  EXPECT_EQ(c.axis.local, Elems{288});
  EXPECT_EQ(c.axis.kernel, Elems{384});
  EXPECT_EQ(cut(2304, 8, kMxfp4, 64).axis.kernel, Elems{320});
}

TEST(PlanAxis, RanksPastTheEndAreEmptyWithTheSourceAtFullSize) {  // pit71
  const Cut c = cut(64, 5, kMxfp4, 32);
  EXPECT_EQ(c.rows_src, (Numbers{0, 32, 64, 64, 64}));
  EXPECT_EQ(c.rows, (Numbers{32, 32, 0, 0, 0}));
  EXPECT_EQ(c.rows_zero, (Numbers{0, 0, 32, 32, 32}));
  EXPECT_EQ(c.bytes_src, (Numbers{0, 16, 32, 32, 32}));
  EXPECT_EQ(c.groups_src, (Numbers{0, 1, 2, 2, 2}));
  EXPECT_EQ(c.groups, (Numbers{1, 1, 0, 0, 0}));
}

constexpr std::uint64_t kWidths[] = {32,   64,   96,   512,  704,  768,  1024, 1536,
                                     1856, 2048, 2304, 2688, 2880, 3072, 5120, 18432};

TEST(PlanAxis, RealPartsJoinToTheAxisForEveryNumberOfRanks) {
  for (const BlockFormat format : test::kFormats) {
    const std::uint64_t group = scale_group(format);
    for (const std::uint64_t inter : kWidths) {
      for (const std::uint64_t align : {std::uint64_t{32}, std::uint64_t{64}, std::uint64_t{128}}) {
        for (unsigned tp = 1; tp <= 64; ++tp) {
          const Cut c = cut(inter, tp, format, align);
          SCOPED_TRACE(testing::Message() << name_of(format) << " " << inter << " tp " << tp);
          std::uint64_t next = 0;
          for (unsigned rank = 0; rank < tp; ++rank) {
            ASSERT_EQ(c.rows_src[rank], next);
            ASSERT_EQ(c.rows_src[rank] % group, 0U);
            ASSERT_EQ(c.rows[rank] % group, 0U);
            ASSERT_LE(c.rows[rank], c.axis.local.value);
            // The same range in each unit, exactly.
            ASSERT_EQ(c.bytes_src[rank] * 2, c.rows_src[rank]);
            ASSERT_EQ(c.bytes[rank] * 2, c.rows[rank]);
            ASSERT_EQ(c.bytes_zero[rank] * 2, c.rows_zero[rank]);
            ASSERT_EQ(c.groups_src[rank] * group, c.rows_src[rank]);
            ASSERT_EQ(c.groups[rank] * group, c.rows[rank]);
            ASSERT_EQ(c.groups_zero[rank] * group, c.rows_zero[rank]);
            ASSERT_EQ(c.rows[rank] + c.rows_zero[rank], c.axis.kernel.value);
            // Nobody but the last owner is short.
            ASSERT_TRUE(c.rows[rank] == c.axis.local.value || next + c.rows[rank] == inter);
            next += c.rows[rank];
          }
          ASSERT_EQ(next, inter);
          ASSERT_EQ(c.axis.virtual_global.value, c.axis.local.value * tp);
          ASSERT_EQ(c.axis.kernel.value % align, 0U);
          ASSERT_LT(c.axis.kernel.value, c.axis.local.value + align);
          // The smallest width that does it.
          ASSERT_LT((c.axis.local.value - group) * tp, inter);
        }
      }
    }
  }
}

TEST(PlanAxis, WhatNoScaleGroupDividesIsRefused) {
  for (const auto& [inter, group, align] :
       {std::tuple{40U, 16U, 32U}, std::tuple{48U, 32U, 32U}, std::tuple{64U, 32U, 16U},
        std::tuple{2047U, 16U, 32U}}) {
    const Error error =
        refusal_of([&] { (void)plan_axis(Elems{inter}, 2, Elems{group}, Elems{align}); });
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    EXPECT_EQ(code_of(error), "MOXIE-P003");
    EXPECT_EQ(error.findings()[0].where.axis, "moe_inter");
  }
}

TEST(PlanAxis, ZeroRanksAndZeroLengthsAreRefused) {
  const auto code = [](std::uint64_t inter, unsigned tp, std::uint64_t unit, std::uint64_t align) {
    const Error error =
        refusal_of([&] { (void)plan_axis(Elems{inter}, tp, Elems{unit}, Elems{align}); });
    EXPECT_EQ(error.code(), ErrorCode::usage);
    return code_of(error);
  };
  EXPECT_EQ(code(64, 0, 32, 32), "MOXIE-P001");
  EXPECT_EQ(code(0, 1, 32, 32), "MOXIE-P001");
  EXPECT_EQ(code(64, 1, 0, 32), "MOXIE-P001");
  EXPECT_EQ(code(64, 1, 32, 0), "MOXIE-P001");
}

TEST(ExpertsOf, UnevenExpertsDifferByOne) {  // P-05
  const std::uint64_t counts[] = {4, 4, 4, 4, 4, 4, 3, 3};
  const std::uint64_t starts[] = {0, 4, 8, 12, 16, 20, 24, 27};
  for (unsigned rank = 0; rank < 8; ++rank) {
    EXPECT_EQ(experts_of(30, 8, rank).count(), counts[rank]);
    EXPECT_EQ(experts_of(30, 8, rank).first, starts[rank]);
  }
}

TEST(ExpertsOf, EveryExpertHasExactlyOneOwner) {
  for (std::uint64_t experts = 1; experts <= 70; ++experts) {
    for (unsigned ep = 1; ep <= experts; ++ep) {
      std::uint64_t next = 0;
      for (unsigned rank = 0; rank < ep; ++rank) {
        const ExpertRange range = experts_of(experts, ep, rank);
        ASSERT_EQ(range.first, next);
        ASSERT_TRUE(range.count() == experts / ep || range.count() == experts / ep + 1);
        next = range.end;
      }
      ASSERT_EQ(next, experts);
    }
  }
}

TEST(ExpertsOf, TheLastOfEightRanksOfDeepseekV4ProOwns336To383) {  // pit53, C8
  EXPECT_EQ(experts_of(384, 8, 7), (ExpertRange{336, 384}));
}

}  // namespace
}  // namespace moxie

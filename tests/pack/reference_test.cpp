// SPDX-License-Identifier: Apache-2.0
// pack_expert against a packer that moves one element at a time, and the published figures against
// both.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "moxie/pack.hpp"
#include "reference_packer.hpp"
#include "support/forced_kernels.hpp"
#include "support/packed_model.hpp"
#include "support/refusal.hpp"

namespace moxie {
namespace {

using test::all_zero;
using test::Bytes;
using test::bytes_of;
using test::describe;
using test::packed_blob;
using test::plan_of;
using test::ReferencePacker;
using test::same_bytes;
using test::TinyModel;

void expect_equal_to_reference(const TinyModel& model, unsigned tp, std::uint64_t align) {
  const ShardPlan plan = plan_of(*model, tp, 1, align);
  SCOPED_TRACE(describe(plan));
  ReferencePacker reference(model->checkpoint, plan.format, plan.hidden,
                            plan.inter().original.value);
  for (unsigned rank = 0; rank < tp; ++rank) {
    for (std::uint64_t expert = 0; expert < plan.experts; ++expert) {
      ASSERT_TRUE(same_bytes(reference.pack(expert, tp, rank, align),
                             packed_blob(*model, plan, rank, expert)))
          << "rank " << rank << " expert " << expert;
    }
  }
}

// virtual_tp.md §3 on shapes that nobody chose.
TEST(PackReference, AgreesByteForByteOnRandomShapes) {
  const test::PortableKernel forced;
  constexpr std::uint32_t kSeed = 20240607;
  std::mt19937 random(kSeed);
  const auto pick = [&](std::uint64_t least, std::uint64_t most) {
    return std::uniform_int_distribution<std::uint64_t>(least, most)(random);
  };
  for (int trial = 0; trial < 25; ++trial) {
    SCOPED_TRACE("seed " + std::to_string(kSeed) + " trial " + std::to_string(trial));
    const BlockFormat format = test::kFormats[pick(0, 1)];
    const std::uint64_t group = format == BlockFormat::mxfp4 ? 32 : 16;
    auto options = test::tiny_options(format, group * pick(1, 12), 32 * pick(1, 3));
    options.experts = 2;
    const TinyModel model(options);
    for (int grid = 0; grid < 4; ++grid) {
      ASSERT_NO_FATAL_FAILURE(expect_equal_to_reference(model, static_cast<unsigned>(pick(1, 16)),
                                                        std::uint64_t{32} << pick(0, 2)));
    }
  }
}

struct Figures {
  const char* what;
  BlockFormat format;
  std::uint64_t inter;
  unsigned tp;
  std::uint64_t align;
  std::vector<std::uint64_t> rows, row_tails;      // src per rank; the last has what is left
  std::vector<std::uint64_t> bytes, byte_tails;    // columns of down
  std::vector<std::uint64_t> groups, group_tails;  // columns of down's scales
};

// Holds one rank's columns of a down tensor against the source, by the figures alone.
void expect_columns(const TinyModel& model, const Bytes& blob, const PackedSegment& segment,
                    std::uint64_t src, std::uint64_t tail) {
  const TensorInfo& tensor = *test::source_of_segment(model.layer().experts[0], segment.segment);
  const auto source = model->checkpoint.bytes(tensor);
  const std::uint64_t width = tensor.bytes / segment.rows;
  const std::uint64_t real = segment.row_bytes - tail;
  for (std::uint64_t row = 0; row < segment.rows; ++row) {
    const auto packed = bytes_of(blob, segment).subspan(row * segment.row_bytes, segment.row_bytes);
    ASSERT_TRUE(same_bytes(source.subspan(row * width + src, real), packed.first(real)))
        << name_of(segment.segment) << " row " << row;
    ASSERT_TRUE(all_zero(packed.subspan(real)));
  }
}

void expect_rows(const TinyModel& model, const Bytes& blob, const PackedSegment& segment,
                 std::uint64_t src, std::uint64_t tail) {
  const TensorInfo& tensor = *test::source_of_segment(model.layer().experts[0], segment.segment);
  const std::uint64_t real = (segment.rows - tail) * segment.row_bytes;
  const auto packed = bytes_of(blob, segment);
  ASSERT_TRUE(same_bytes(model->checkpoint.bytes(tensor).subspan(src * segment.row_bytes, real),
                         packed.first(real)))
      << name_of(segment.segment);
  ASSERT_TRUE(all_zero(packed.subspan(real)));
}

class PackFigures : public testing::TestWithParam<Figures> {};

TEST_P(PackFigures, PublishedStartsAndTailsAreInTheBytes) {
  const test::PortableKernel forced;
  const Figures& figures = GetParam();
  const TinyModel model(figures.format, figures.inter, 32);
  const ShardPlan plan = plan_of(*model, figures.tp, 1, figures.align);
  for (unsigned rank = 0; rank < figures.tp; ++rank) {
    SCOPED_TRACE("rank " + std::to_string(rank));
    const Bytes blob = packed_blob(*model, plan, rank, 0);
    for (const PackedSegment& segment : plan.layout.segments) {
      if (segment.segment == Segment::down) {
        expect_columns(model, blob, segment, figures.bytes[rank], figures.byte_tails[rank]);
      } else if (segment.segment == Segment::down_scale) {
        expect_columns(model, blob, segment, figures.groups[rank], figures.group_tails[rank]);
      } else if (segment.segment < Segment::gate_dequant_mul) {
        expect_rows(model, blob, segment, figures.rows[rank], figures.row_tails[rank]);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Published, PackFigures,
                         testing::Values(
                             // pit68, pit69: DeepSeek-V4-Flash on three ranks.
                             Figures{.what = "V4FlashMxfp4Kernel768",
                                     .format = BlockFormat::mxfp4,
                                     .inter = 2048,
                                     .tp = 3,
                                     .align = 128,
                                     .rows = {0, 704, 1408},
                                     .row_tails = {64, 64, 128},
                                     .bytes = {0, 352, 704},
                                     .byte_tails = {32, 32, 64},
                                     .groups = {0, 22, 44},
                                     .group_tails = {2, 2, 4}},
                             Figures{.what = "V4FlashNvfp4Kernel768",
                                     .format = BlockFormat::nvfp4,
                                     .inter = 2048,
                                     .tp = 3,
                                     .align = 128,
                                     .rows = {0, 688, 1376},
                                     .row_tails = {80, 80, 96},
                                     .bytes = {0, 344, 688},
                                     .byte_tails = {40, 40, 48},
                                     .groups = {0, 43, 86},
                                     .group_tails = {5, 5, 6}},
                             Figures{.what = "V4FlashNvfp4Kernel704",
                                     .format = BlockFormat::nvfp4,
                                     .inter = 2048,
                                     .tp = 3,
                                     .align = 64,
                                     .rows = {0, 688, 1376},
                                     .row_tails = {16, 16, 32},
                                     .bytes = {0, 344, 688},
                                     .byte_tails = {8, 8, 16},
                                     .groups = {0, 43, 86},
                                     .group_tails = {1, 1, 2}},
                             // P-01: a width of 1856 on eight ranks is cut between groups, never
                             // inside one. The kernel rounds 240 up to 256.
                             Figures{.what = "NonDivisibleShardOfScaleGroups",
                                     .format = BlockFormat::nvfp4,
                                     .inter = 1856,
                                     .tp = 8,
                                     .align = 32,
                                     .rows = {0, 240, 480, 720, 960, 1200, 1440, 1680},
                                     .row_tails = {16, 16, 16, 16, 16, 16, 16, 80},
                                     .bytes = {0, 120, 240, 360, 480, 600, 720, 840},
                                     .byte_tails = {8, 8, 8, 8, 8, 8, 8, 40},
                                     .groups = {0, 15, 30, 45, 60, 75, 90, 105},
                                     .group_tails = {1, 1, 1, 1, 1, 1, 1, 5}},
                             // P-02: 90 groups on four ranks are rounded up; no tail is dropped.
                             Figures{.what = "GroupsPerRankRoundUp",
                                     .format = BlockFormat::mxfp4,
                                     .inter = 2880,
                                     .tp = 4,
                                     .align = 32,
                                     .rows = {0, 736, 1472, 2208},
                                     .row_tails = {0, 0, 0, 64},
                                     .bytes = {0, 368, 736, 1104},
                                     .byte_tails = {0, 0, 0, 32},
                                     .groups = {0, 23, 46, 69},
                                     .group_tails = {0, 0, 0, 2}},
                             // P-04: the kernel's width is never the step through the checkpoint.
                             Figures{.what = "KernelWidthIsNoStride",
                                     .format = BlockFormat::nvfp4,
                                     .inter = 704,
                                     .tp = 4,
                                     .align = 64,
                                     .rows = {0, 176, 352, 528},
                                     .row_tails = {16, 16, 16, 16},
                                     .bytes = {0, 88, 176, 264},
                                     .byte_tails = {8, 8, 8, 8},
                                     .groups = {0, 11, 22, 33},
                                     .group_tails = {1, 1, 1, 1}}),
                         [](const auto& param) { return std::string(param.param.what); });

// What a helper without units makes of the axis: min(local width, length of the parameter's axis).
ShardPlan unit_blind(ShardPlan plan) {
  const AxisPlan axis = plan.inter();
  for (RankPlan& rank : plan.ranks) {
    const auto blind = [&](auto range, std::uint64_t source_units) {
      using Unit = decltype(range.src);
      const std::uint64_t step = std::min(axis.local.value, range.dst.value);
      range.src = Unit{std::min(step * rank.tp_rank, source_units)};
      range.count = Unit{std::min(step, source_units - range.src.value)};
      return range;
    };
    rank.slice.bytes = blind(rank.slice.bytes, axis.original.value / 2);
    rank.slice.groups = blind(rank.slice.groups, axis.original.value / axis.unit.value);
  }
  return plan;
}

// virtual_tp.md §3.1, pit70: the bug can not be written with the types, but were it there, every
// rank would notice.
TEST(PackReference, UnitBlindSlicesDifferAndAreCaught) {
  const TinyModel model(BlockFormat::mxfp4, 2048, 32);
  const ShardPlan plan = plan_of(*model, 3, 1, 128);
  const ShardPlan blind = unit_blind(plan);
  for (unsigned rank = 0; rank < 3; ++rank) {
    SCOPED_TRACE(rank);
    const RankPlan& bad = blind.ranks[rank];
    EXPECT_EQ(bad.slice.bytes.src.value, 384 * rank);  // the field's starts
    EXPECT_EQ(bad.slice.groups.src.value, 24 * rank);
    EXPECT_EQ(bad.slice.rows, plan.ranks[rank].slice.rows) << "rows escape by luck";
    const Bytes blob = packed_blob(*model, blind, rank, 0);  // nothing is thrown: shapes match
    EXPECT_NE(blob, packed_blob(*model, plan, rank, 0));
    if (rank == 2) continue;  // its neighbour's data ends before the tail: only the source shows it
    UnpackedExpert out = make_unpacked(plan, std::byte{0});
    const Error error = test::refusal_of([&] { unpack_expert(plan, plan.ranks[rank], blob, out); });
    EXPECT_EQ(test::code_of(error), "MOXIE-V003");
    EXPECT_EQ(error.findings().front().where.tensor, "down");
  }
  // Rank 2 alone: 256 bytes of its own 320.
  UnpackedExpert out = make_unpacked(plan, std::byte{0xFF});
  unpack_expert(plan, plan.ranks[2], packed_blob(*model, blind, 2, 0), out);
  EXPECT_FALSE(test::equals_source(*model, plan, 0, out));
}

}  // namespace
}  // namespace moxie

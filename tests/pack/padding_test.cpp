// SPDX-License-Identifier: Apache-2.0
// Tails: zero in every unit, behind each projection by itself, and never taken from memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>

#include "formats/block_format.hpp"
#include "moxie/pack.hpp"
#include "support/forced_kernels.hpp"
#include "support/packed_model.hpp"

namespace moxie {
namespace {

using test::all_zero;
using test::Bytes;
using test::bytes_of;
using test::packed_blob;
using test::plan_of;
using test::same_bytes;
using test::TinyModel;

// Bytes [first, first + count) of a segment's rows.
std::span<const std::byte> rows_of(const Bytes& blob, const PackedSegment& segment,
                                   std::uint64_t first, std::uint64_t count) {
  return bytes_of(blob, segment).subspan(first * segment.row_bytes, count * segment.row_bytes);
}

// Checks both halves of one kind: real rows first, then zeros, each half by itself.
void expect_halves(const TinyModel& model, const ShardPlan& plan, unsigned rank, Segment gate,
                   Segment up) {
  const Bytes blob = packed_blob(*model, plan, rank, 0);
  const std::uint64_t real = plan.ranks[rank].slice.rows.count.value;
  const std::uint64_t src = plan.ranks[rank].slice.rows.src.value;
  for (const Segment half : {gate, up}) {
    SCOPED_TRACE(name_of(half));
    const PackedSegment& segment = *plan.layout.find(half);
    const auto source =
        model->checkpoint.bytes(*test::source_of_segment(model.layer().experts[0], half));
    EXPECT_TRUE(same_bytes(source.subspan(src * segment.row_bytes, real * segment.row_bytes),
                           rows_of(blob, segment, 0, real)));
    EXPECT_TRUE(all_zero(rows_of(blob, segment, real, segment.rows - real)));
  }
  // Fused rows are g 0 u 0, not g u 0 0: the boundary is at the kernel width, where up begins.
  const PackedSegment& first = *plan.layout.find(gate);
  const PackedSegment& second = *plan.layout.find(up);
  EXPECT_EQ(second.offset, first.offset + plan.inter().kernel.value * first.row_bytes);
}

// P-03: padding a fused gate and up tensor at its end moves the boundary between them, and the
// field computed garbage without an error.
TEST(Pack, P03GateAndUpPadIndependently) {
  const test::PortableKernel forced;
  for (const BlockFormat format : test::kFormats) {
    const TinyModel model(format, 96);
    const ShardPlan plan = plan_of(*model, 2, 1, 128);  // 48 or 64 real rows of 128
    for (const unsigned rank : {0U, 1U}) {
      expect_halves(model, plan, rank, Segment::gate, Segment::up);
      expect_halves(model, plan, rank, Segment::gate_scale, Segment::up_scale);
    }
  }
}

// The wrong result of P-03 is another blob, and splitting it gives gate rows where up should be.
TEST(Pack, P03PaddingAtTheEndOfTheFusedTensorIsAnotherBlob) {
  const TinyModel model(BlockFormat::mxfp4, 32);
  const ShardPlan plan = plan_of(*model, 1, 1, 64);
  const Bytes right = packed_blob(*model, plan, 0, 0);
  const PackedSegment& gate = *plan.layout.find(Segment::gate);
  const PackedSegment& up = *plan.layout.find(Segment::up);
  Bytes wrong = right;  // g u 0 0 in the place of g 0 u 0
  const auto fused = std::span(wrong).subspan(gate.offset, gate.bytes() + up.bytes());
  std::ranges::copy(rows_of(right, up, 0, 32), fused.begin() + 32 * 32);
  std::ranges::fill(fused.subspan(64 * 32), std::byte{0});
  UnpackedExpert out = make_unpacked(plan, std::byte{0});
  EXPECT_THROW(unpack_expert(plan, plan.ranks[0], wrong, out), Error);
}

struct Tail {
  const char* what;
  BlockFormat format;
  std::uint64_t inter;
  std::uint64_t groups;  // real and padded groups along the row
  std::uint64_t padded_groups;
};

class PackTails : public testing::TestWithParam<Tail> {};

// L-05, pit30: 0xFF is NaN both as E8M0 and as UE4M3, and 0 * NaN is NaN. No pad byte may keep it.
TEST_P(PackTails, L05PadCodesAreZeroAndPadScalesAreFinite) {
  const test::PortableKernel forced;
  const Tail& tail = GetParam();
  const TinyModel model(tail.format, tail.inter);
  const ShardPlan plan = plan_of(*model, 1, 1, tail.inter == 48 ? 64 : 128);
  const Bytes blob = packed_blob(*model, plan, 0, 0, std::byte{0xFF});
  const PackedSegment& codes = *plan.layout.find(Segment::down);
  const PackedSegment& scales = *plan.layout.find(Segment::down_scale);
  ASSERT_EQ(scales.row_bytes, tail.padded_groups);
  for (std::uint64_t row = 0; row < 64; ++row) {
    EXPECT_TRUE(all_zero(rows_of(blob, codes, row, 1).subspan(tail.inter / 2)));
    for (const std::byte scale : rows_of(blob, scales, row, 1).subspan(tail.groups)) {
      EXPECT_EQ(scale, std::byte{0});
      EXPECT_TRUE(scale_is_valid(tail.format, std::to_integer<std::uint8_t>(scale)));
    }
  }
  for (const Segment half : {Segment::gate, Segment::up, Segment::gate_scale, Segment::up_scale}) {
    const PackedSegment& segment = *plan.layout.find(half);
    EXPECT_TRUE(all_zero(rows_of(blob, segment, tail.inter, segment.rows - tail.inter)));
  }
}

INSTANTIATE_TEST_SUITE_P(L05, PackTails,
                         testing::Values(Tail{"Nvfp4From48To64", BlockFormat::nvfp4, 48, 3, 4},
                                         Tail{"Mxfp4From96To128", BlockFormat::mxfp4, 96, 3, 4}),
                         [](const auto& param) { return std::string(param.param.what); });

// L-02: 11 real groups of 12; what is behind the last real group is zero code and zero scale.
TEST(Pack, L02TwelfthGroupOfElevenIsPadding) {
  const test::PortableKernel forced;
  const TinyModel model(BlockFormat::mxfp4, 352);
  const ShardPlan plan = plan_of(*model, 1, 1, 128);
  const Bytes blob = packed_blob(*model, plan, 0, 0);
  const PackedSegment& scales = *plan.layout.find(Segment::down_scale);
  const PackedSegment& codes = *plan.layout.find(Segment::down);
  ASSERT_EQ(scales.row_bytes, 12U);
  for (std::uint64_t row = 0; row < scales.rows; ++row) {
    EXPECT_NE(rows_of(blob, scales, row, 1)[10], std::byte{0});
    EXPECT_EQ(rows_of(blob, scales, row, 1)[11], std::byte{0});
    EXPECT_TRUE(all_zero(rows_of(blob, codes, row, 1).subspan(176)));
  }
}

// pit71: a rank past the end holds zeros and reads nothing. Every scale of this source is NaN, so a
// rank that read one would refuse it.
TEST(Pack, EmptyRanksReadNothingAndHoldZeros) {
  for (const BlockFormat format : test::kFormats) {
    test::TinyOptions options = test::tiny_options(format, 32);
    options.edits = {[](test::TinyTensor& tensor) {
      if (tensor.name.ends_with("scale") && !tensor.shape.empty())
        std::ranges::fill(tensor.bytes, '\xFF');
      return true;
    }};
    const TinyModel model(options);
    const ShardPlan plan = plan_of(*model, 4);
    EXPECT_THROW(packed_blob(*model, plan, 0, 0), Error);
    for (unsigned rank = format == BlockFormat::mxfp4 ? 1 : 2; rank < 4; ++rank) {
      EXPECT_EQ(plan.ranks[rank].slice.rows.count, Elems{0});
      EXPECT_EQ(plan.ranks[rank].slice.rows.src, Elems{32});
      const Bytes blob = packed_blob(*model, plan, rank, 0);
      for (const PackedSegment& segment : plan.layout.segments) {
        if (segment.segment >= Segment::gate_dequant_mul) continue;
        EXPECT_TRUE(all_zero(bytes_of(blob, segment))) << name_of(segment.segment);
      }
    }
  }
}

// Scalars belong to the whole projection: every rank has them, an empty one too.
TEST(Pack, EveryRankHoldsTheScalarsOfItsExperts) {
  const TinyModel model(BlockFormat::nvfp4, 32);
  const ShardPlan plan = plan_of(*model, 4);
  for (unsigned rank = 0; rank < 4; ++rank) {
    const Bytes blob = packed_blob(*model, plan, rank, 1);
    unsigned scalars = 0;
    for (const PackedSegment& segment : plan.layout.segments) {
      if (segment.segment < Segment::gate_dequant_mul) continue;
      const TensorInfo* source = test::source_of_segment(model.layer().experts[1], segment.segment);
      EXPECT_TRUE(same_bytes(model->checkpoint.bytes(*source), bytes_of(blob, segment)));
      ++scalars;
    }
    EXPECT_EQ(scalars, 6U);
  }
}

// pit11: gate and up keep their own global scales.
TEST(Pack, GateAndUpKeepTheirOwnGlobalScales) {
  test::TinyOptions options = test::tiny_options(BlockFormat::nvfp4);
  options.edits = {test::set_scalar("layers.0.ffn.experts.0.w1.weight_scale_2", 0.25F),
                   test::set_scalar("layers.0.ffn.experts.0.w3.weight_scale_2", 4.0F)};
  const TinyModel model(options);
  const ShardPlan plan = plan_of(*model, 2);
  const Bytes blob = packed_blob(*model, plan, 1, 0);
  const auto value_of = [&](Segment segment) {
    float value = 0;
    std::memcpy(&value, bytes_of(blob, *plan.layout.find(segment)).data(), sizeof value);
    return value;
  };
  EXPECT_EQ(value_of(Segment::gate_dequant_mul), 0.25F);
  EXPECT_EQ(value_of(Segment::up_dequant_mul), 4.0F);
}

}  // namespace
}  // namespace moxie

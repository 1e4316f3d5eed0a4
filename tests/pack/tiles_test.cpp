// SPDX-License-Identifier: Apache-2.0
// Blobs in the layout of the CPU's tile kernels: the same bytes as rows, band by band, on every way
// into and out of a blob.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "formats/band_order.hpp"
#include "pack/bands.hpp"
#include "pack/expert_parts.hpp"
#include "pack/segment_source.hpp"
#include "support/packed_model.hpp"

namespace moxie {
namespace {

using test::TinyModel;

// The same plan with both layouts.
ShardPlan with_layout(ShardPlan plan, LayoutKind kind) {
  plan.layout.kind = kind;
  return plan;
}

std::vector<std::byte> pack_one(const TinyModel& model, const ShardPlan& plan, unsigned rank,
                                std::uint64_t expert) {
  std::vector<std::byte> blob(plan.layout.stride, std::byte{0xCC});
  pack_expert(*model, plan, plan.ranks[rank], model.layer(), expert, blob);
  return blob;
}

TEST(PackTiles, HoldEveryRowOfTheLinearBlobInItsBand) {
  for (const BlockFormat format : test::kFormats) {
    const TinyModel model(format, 160, 96);
    const ShardPlan rows = with_layout(test::plan_of(*model, 2), LayoutKind::linear);
    const ShardPlan tiles = with_layout(rows, LayoutKind::cpu_tiles);
    for (const RankPlan& rank : rows.ranks) {
      for (const std::uint64_t expert : rank.experts.ids()) {
        std::vector<std::byte> linear = pack_one(model, rows, rank.rank, expert);
        const std::vector<std::byte> arranged = pack_one(model, tiles, rank.rank, expert);
        EXPECT_NE(linear, arranged);
        for (const PackedSegment& segment : tiles.layout.segments) {
          arrange_rows(LayoutKind::cpu_tiles, segment,
                       std::span(linear).subspan(segment.offset, segment.bytes()));
        }
        EXPECT_EQ(linear, arranged);
      }
    }
  }
}

TEST(PackTiles, PackInPartsWhatTheyPackAtOnce) {
  const TinyModel model(BlockFormat::nvfp4, 96, 160);
  const ShardPlan plan = with_layout(test::plan_of(*model, 1), LayoutKind::cpu_tiles);
  const std::vector<std::byte> whole = pack_one(model, plan, 0, 1);
  for (const std::uint64_t part_bytes : {1U, 700U, 5000U, 1U << 20}) {
    std::vector<std::byte> blob(plan.layout.stride, std::byte{0xCC});
    std::vector<BlobPart> parts = parts_of(plan.layout, part_bytes);
    std::ranges::reverse(parts);
    for (const BlobPart part : parts)
      pack_expert_part(*model, plan, plan.ranks[0], model.layer(), 1, part,
                       SourceBytes(model->checkpoint), blob);
    EXPECT_EQ(blob, whole) << part_bytes;
  }
}

TEST(PackTiles, UnpackToTheSourceAndFindATailThatIsNotZero) {
  for (const BlockFormat format : test::kFormats) {
    const TinyModel model(format, 96, 64);
    const ShardPlan rows = with_layout(test::plan_of(*model, 2, 1, 128), LayoutKind::linear);
    const ShardPlan tiles = with_layout(rows, LayoutKind::cpu_tiles);
    UnpackedExpert expected = make_unpacked(rows, std::byte{0});
    UnpackedExpert got = make_unpacked(tiles, std::byte{0});
    for (const RankPlan& rank : rows.ranks) {
      unpack_expert(rows, rank, pack_one(model, rows, rank.rank, 0), expected);
      std::vector<std::byte> blob = pack_one(model, tiles, rank.rank, 0);
      unpack_expert(tiles, rank, blob, got);
      // Gate's last row is tail on every rank.
      const PackedSegment& gate = tiles.layout.segments.front();
      const std::uint64_t last_band = gate.offset + gate.bytes() - kBandRows * gate.row_bytes;
      blob[last_band + (kBandRows - 1) * 4] = std::byte{1};
      EXPECT_THROW(unpack_expert(tiles, rank, blob, got), Error);
    }
    EXPECT_EQ(got.tensors, expected.tensors);
  }
}

TEST(PackTiles, NameRowAndGroupOfAScaleByteWhereverItLies) {
  const PackedSegment scales{.segment = Segment::up_scale, .offset = 0, .rows = 48, .row_bytes = 6};
  std::vector<std::byte> linear(scales.bytes());
  std::mt19937 random(4);
  for (std::byte& byte : linear) byte = static_cast<std::byte>(random());
  std::vector<std::byte> tiles = linear;
  arrange_rows(LayoutKind::cpu_tiles, scales, tiles);
  for (std::uint64_t at = 0; at < tiles.size(); ++at) {
    const RowByte place = row_byte_of(LayoutKind::cpu_tiles, scales, at);
    ASSERT_EQ(tiles[at], linear[place.row * scales.row_bytes + place.byte]);
  }
  restore_rows(LayoutKind::cpu_tiles, scales, tiles);
  EXPECT_EQ(tiles, linear);
  const RowByte place = row_byte_of(LayoutKind::linear, scales, 13);
  EXPECT_EQ(place.row, 2U);
  EXPECT_EQ(place.byte, 1U);
}

TEST(PackTiles, DrawTheSameExpertsAsRows) {
  const TinyModel model(BlockFormat::mxfp4, 96, 64);
  const ShardPlan rows = with_layout(test::plan_of(*model, 1), LayoutKind::linear);
  const ShardPlan tiles = with_layout(rows, LayoutKind::cpu_tiles);
  PackedExperts linear = draw_experts(rows, 0, 7);
  const PackedExperts arranged = draw_experts(tiles, 0, 7);
  for (const PackedSegment& segment : tiles.layout.segments) {
    for (std::uint64_t i = 0; i < linear.experts.count(); ++i) {
      arrange_rows(LayoutKind::cpu_tiles, segment,
                   std::span(linear.blobs)
                       .subspan(i * rows.layout.stride + segment.offset, segment.bytes()));
    }
  }
  EXPECT_EQ(linear.blobs, arranged.blobs);
}

}  // namespace
}  // namespace moxie

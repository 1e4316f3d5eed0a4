// SPDX-License-Identifier: Apache-2.0
// Parts of an expert: together they are the expert, and each keeps to itself.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "pack/expert_parts.hpp"
#include "support/packed_model.hpp"
#include "support/refusal.hpp"
#include "support/stacked_checkpoint.hpp"

namespace moxie {
namespace {

using test::Bytes;
using test::TinyModel;

constexpr std::uint64_t kPartSizes[] = {1, 100, 777, 4096, kPartBytes};

// Every part writes its own bytes, all of them, and no others; they are the expert's.
void expect_parts(const MoeModel& model, const ShardPlan& plan, std::uint64_t part_bytes) {
  const std::vector<BlobPart> parts = parts_of(plan.layout, part_bytes);
  for (const RankPlan& rank : plan.ranks) {
    const BlobSource source = blob_source_in_parts(model, plan, rank.rank, 0, part_bytes);
    ASSERT_EQ(source.parts, parts.size());
    for (const std::uint64_t expert : source.experts.ids()) {
      const Bytes whole = test::packed_blob(model, plan, rank.rank, expert);
      for (const std::byte poison : {std::byte{0xFF}, std::byte{0x00}}) {
        for (unsigned part = 0; part < source.parts; ++part) {
          Bytes expected(plan.layout.stride, poison);
          std::copy(whole.begin() + parts[part].begin, whole.begin() + parts[part].end,
                    expected.begin() + parts[part].begin);
          Bytes blob(plan.layout.stride, poison);
          source.pack_part(expert, part, blob);
          ASSERT_TRUE(test::same_bytes(blob, expected))
              << "rank " << rank.rank << ", expert " << expert << ", part " << part;
        }
      }
    }
  }
}

void expect_parts_of_all_sizes(const MoeModel& model, std::uint64_t align = 32) {
  for (const unsigned tp : {1U, 3U}) {
    const ShardPlan plan = test::plan_of(model, tp, 1, align);
    SCOPED_TRACE(test::describe(plan));
    for (const std::uint64_t bytes : kPartSizes) {
      SCOPED_TRACE("parts of " + std::to_string(bytes) + " bytes");
      expect_parts(model, plan, bytes);
    }
  }
}

TEST(PackParts, AreTogetherTheExpertInBothFormats) {
  for (const BlockFormat format : test::kFormats) {
    expect_parts_of_all_sizes(*TinyModel(format));
    expect_parts_of_all_sizes(*TinyModel(format), 128);  // rows and columns of padding
  }
}

TEST(PackParts, AreTogetherTheExpertWithoutAGate) {
  expect_parts_of_all_sizes(
      *TinyModel({.dialect = test::TinyDialect::modelopt, .layers = 1, .gated = false}));
}

TEST(PackParts, AreTogetherTheExpertWithBiases) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  const test::TempFolder folder;
  const MoeModel model =
      read_model(test::oss_checkpoint(folder, test::OssWeights::random({}, seed)));
  ASSERT_NE(test::plan_of(model, 1).layout.find(Segment::down_bias), nullptr);
  expect_parts_of_all_sizes(model);
}

TEST(PackParts, LieOneBehindAnotherAndCutNoRow) {
  for (const BlockFormat format : test::kFormats) {
    const TinyModel model(format);
    const PackedLayout layout = test::plan_of(*model, 3).layout;
    for (const std::uint64_t bytes : kPartSizes) {
      std::uint64_t end = 0;
      for (const BlobPart& part : parts_of(layout, bytes)) {
        EXPECT_EQ(part.begin, end);
        EXPECT_GT(part.end, part.begin);
        end = part.end;
        for (const PackedSegment& segment : layout.segments) {
          if (end < segment.offset || end - segment.offset >= segment.bytes()) continue;
          EXPECT_EQ((end - segment.offset) % segment.row_bytes, 0U);
        }
      }
      EXPECT_EQ(end, layout.stride);
    }
  }
}

TEST(PackParts, OfALargeExpertAreOfAboutTheSizeThatWasAskedFor) {
  PackedLayout layout;
  constexpr std::uint64_t kRowBytes = 2048;
  layout.segments = {{.segment = Segment::gate, .offset = 0, .rows = 6000, .row_bytes = kRowBytes}};
  layout.stride = 6000 * kRowBytes;
  const std::vector<BlobPart> parts = parts_of(layout, kPartBytes);
  EXPECT_EQ(parts.size(), 12U);
  for (const BlobPart& part : parts) {
    EXPECT_LT(part.bytes(), kPartBytes + kRowBytes);
    EXPECT_GT(part.bytes(), kPartBytes * 9 / 10);
  }
}

// The row is the tensor's, not the part's.
TEST(PackParts, ABadScaleIsRefusedByThePartThatHoldsItAndByNoOther) {
  constexpr std::uint64_t kRow = 70;
  test::TinyOptions options = test::tiny_options(BlockFormat::mxfp4);
  options.edits = {[](test::TinyTensor& tensor) {
    const std::uint64_t groups = 64 / 32;
    if (tensor.name == "layers.0.ffn.experts.1.w3.scale")
      tensor.bytes[kRow * groups + 1] = static_cast<char>(0xFF);
    return true;
  }};
  const TinyModel model(options);
  const ShardPlan plan = test::plan_of(*model, 1);
  const BlobSource source = blob_source_in_parts(*model, plan, 0, 0, 100);
  const std::vector<BlobPart> parts = parts_of(plan.layout, 100);
  const PackedSegment& scales = *plan.layout.find(Segment::up_scale);
  const std::uint64_t at = scales.offset + kRow * scales.row_bytes + 1;
  Bytes blob(plan.layout.stride);
  int refused = 0;
  for (unsigned part = 0; part < source.parts; ++part) {
    if (at < parts[part].begin || at >= parts[part].end) {
      EXPECT_NO_THROW(source.pack_part(1, part, blob)) << "part " << part;
      continue;
    }
    ++refused;
    ASSERT_GT(parts[part].begin, scales.offset) << "not the first of its tensor";
    const Error error = test::refusal_of([&] { source.pack_part(1, part, blob); });
    EXPECT_EQ(test::code_of(error), "MOXIE-K003");
    EXPECT_NE(std::string(error.what()).find("at row 70, group 1"), std::string::npos)
        << error.what();
    EXPECT_EQ(error.findings()[0].where.expert, 1U);
  }
  EXPECT_EQ(refused, 1);
}

}  // namespace
}  // namespace moxie

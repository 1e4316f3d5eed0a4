// SPDX-License-Identifier: Apache-2.0
// Parts that are right in themselves and in the wrong place: found by comparing, not by checksums.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>

#include "packed_folder.hpp"
#include "support/plan_mutations.hpp"
#include "support/threads.hpp"

namespace moxie {
namespace {

namespace fs = std::filesystem;

using test::Checksum;
using test::count_of;
using test::finding_of;
using test::PackedFolder;
using test::PlantedFault;
using test::tiny_options;

const std::string kExpert0 = "layers.0.ffn.experts.0.";

// Exchanges two pieces of a file.
void swap_pieces(std::string& bytes, std::uint64_t a, std::uint64_t b, std::uint64_t size) {
  std::swap_ranges(bytes.begin() + static_cast<std::ptrdiff_t>(a),
                   bytes.begin() + static_cast<std::ptrdiff_t>(a + size),
                   bytes.begin() + static_cast<std::ptrdiff_t>(b));
}

// K-01 at load: gate and up have one shape, so that nothing but the bytes tells them apart.
TEST(VerifyParts, SwappedGateAndUpAreBothNamed) {
  for (const FileLayout layout : {FileLayout::logical, FileLayout::kernel}) {
    const PackedFolder set(tiny_options(BlockFormat::mxfp4), {.tp = 3}, layout);
    const std::uint64_t gate = set.place_of(1, 0, Segment::gate);
    const std::uint64_t up = set.place_of(1, 0, Segment::up);
    const std::uint64_t size = set.plan().layout.find(Segment::gate)->bytes();
    const PlantedFault fault(set, 1, Checksum::agrees,
                             [&](std::string& bytes) { swap_pieces(bytes, gate, up, size); });
    const VerifyReport report = set.verify();
    ASSERT_EQ(report.findings.size(), 2U);
    EXPECT_EQ(report.findings[0].where.tensor, kExpert0 + "w1.weight");
    EXPECT_EQ(report.findings[1].where.tensor, kExpert0 + "w3.weight");
    for (const Finding& finding : report.findings) {
      EXPECT_EQ(finding.code, "MOXIE-V002");
      EXPECT_EQ(finding.where.rank, 1U);
    }
  }
}

TEST(VerifyParts, SwappedNamesInTheHeaderAreFoundToo) {
  const PackedFolder set(tiny_options(BlockFormat::mxfp4), {.tp = 3});
  const PlantedFault fault(set, 0, Checksum::agrees, [&](std::string& bytes) {
    const auto first = bytes.find(kExpert0 + "w1.scale");
    const auto second = bytes.find(kExpert0 + "w3.scale");
    swap_pieces(bytes, first, second, kExpert0.size() + 2);
  });
  const VerifyReport report = set.verify();
  EXPECT_EQ(report.findings.size(), 2U);
  EXPECT_EQ(finding_of(report, "MOXIE-V002").where.tensor, kExpert0 + "w1.scale");
}

TEST(VerifyParts, SwappedExpertsAreFound) {
  const PackedFolder set(tiny_options(BlockFormat::mxfp4), {.tp = 2}, FileLayout::kernel);
  const std::uint64_t first = set.place_of(0, 0, Segment::gate);
  const std::uint64_t stride = set.plan().layout.stride;
  const PlantedFault fault(set, 0, Checksum::agrees, [&](std::string& bytes) {
    swap_pieces(bytes, first, first + stride, stride);
  });
  const VerifyReport report = set.verify();
  EXPECT_FALSE(report.passed);
  EXPECT_EQ(report.findings.front().where.expert, 0U);
  EXPECT_EQ(report.findings.back().where.expert, 1U);
  EXPECT_EQ(report.findings.size(), 2U * 6);
}

// Every file is whole and every checksum holds; only the order is wrong.
TEST(VerifyParts, SwappedRanksAreFound) {
  for (const FileLayout layout : {FileLayout::logical, FileLayout::kernel}) {
    test::TinyOptions options = tiny_options(BlockFormat::nvfp4);
    options.experts = 1;
    const PackedFolder set(options, {.tp = 3}, layout);
    fs::rename(set.path() / "rank-000", set.path() / "aside");
    fs::rename(set.path() / "rank-002", set.path() / "rank-000");
    fs::rename(set.path() / "aside", set.path() / "rank-002");
    const VerifyReport report = set.verify();
    EXPECT_FALSE(report.passed);
    EXPECT_EQ(count_of(report, "MOXIE-V001"), 0U);
    bool rank_1 = false;
    for (const Finding& finding : report.findings) rank_1 = rank_1 || finding.where.rank == 1U;
    EXPECT_FALSE(rank_1) << "rank 1 is where it belongs";
    EXPECT_EQ(report.findings.size(), 2U * 6);  // 6 cut tensors; scalars are alike
  }
}

// What packing under another plan would have written, in a set whose plan is right.
class RepackedRank {
 public:
  RepackedRank(const PackedFolder& set, unsigned rank, const ShardPlan& wrong)
      : fault_(set, rank, Checksum::agrees, [&](std::string& bytes) {
          const PackedExperts packed = pack(*set.model(), wrong, rank, 0);
          const auto* from = reinterpret_cast<const char*>(packed.blobs.data());
          std::copy_n(from, packed.blobs.size(),
                      bytes.end() - static_cast<std::ptrdiff_t>(packed.blobs.size()));
        }) {}

 private:
  PlantedFault fault_;
};

// virtual_tp.md §3.1: bytes start at 384 * rank and groups at 24 * rank; each rank reads its
// neighbour's columns.
TEST(VerifyParts, UnitBlindColumnsAreFound) {
  const PackedFolder set(tiny_options(BlockFormat::mxfp4, 2048, 32), {.tp = 3, .kernel_align = 128},
                         FileLayout::kernel);
  for (const unsigned rank : {0U, 1U, 2U}) {
    ShardPlan blind = set.plan();
    InterSlice& slice = blind.ranks[rank].slice;
    slice.bytes.src = PackedBytes{384 * rank};
    slice.bytes.count = PackedBytes{std::min<std::uint64_t>(384, 1024 - 384 * rank)};
    slice.groups.src = ScaleGroups{24 * rank};
    slice.groups.count = ScaleGroups{std::min<std::uint64_t>(24, 64 - 24 * rank)};
    const RepackedRank repacked(set, rank, blind);
    const VerifyReport report = set.verify();
    ASSERT_EQ(report.findings.size(), 2U * 3) << "codes and scales of down, three experts";
    // Rank 0 starts right and fills its tail with checkpoint data; the others start wrong.
    const Finding& codes = report.findings[0];
    const Finding& scales = report.findings[1];
    EXPECT_EQ(codes.code, rank == 0 ? "MOXIE-V003" : "MOXIE-V002");
    EXPECT_EQ(codes.where.tensor, kExpert0 + "w2.weight");
    EXPECT_EQ(scales.where.tensor, kExpert0 + "w2.scale");
    EXPECT_EQ(codes.where.rank, rank);
    EXPECT_NE(codes.message.find(rank == 0 ? "offset 352 (unit byte)" : "offset 0 (unit byte)"),
              std::string::npos)
        << codes.message;
    EXPECT_NE(scales.message.find("(unit group)"), std::string::npos) << scales.message;
  }
}

// Every number of every slice, one more and one less: packing refuses it, or verify finds it.
TEST(VerifyParts, NoSliceSurvivesAChangeByOne) {
  const test::Threads one(1);
  for (const BlockFormat format : test::kFormats) {
    const PackedFolder set(tiny_options(format, format == BlockFormat::mxfp4 ? 160 : 112),
                           {.tp = 3, .kernel_align = 64}, FileLayout::kernel);
    unsigned refused = 0;
    unsigned found = 0;
    for (unsigned rank = 0; rank < 3; ++rank) {
      for (const test::PlanMutation& mutation : test::slice_mutations(set.plan())) {
        if (!mutation.what.starts_with("rank " + std::to_string(rank))) continue;
        try {
          const RepackedRank repacked(set, rank, mutation.plan);
          EXPECT_FALSE(set.verify().passed) << mutation.what;
          ++found;
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::internal) << error.what();
          ++refused;
        }
      }
    }
    EXPECT_EQ(found + refused, 3U * 9 * 2);
    EXPECT_GT(found, 3U * 3 * 2) << "the comparison is put to the test";
  }
}

// The source may change after packing; then the set is not what the source says.
TEST(VerifyParts, ChangedSourceIsFound) {
  const PackedFolder set(tiny_options(BlockFormat::nvfp4), {.tp = 3});
  const TensorInfo tensor = *set.model().layer().experts[2].down.codes.tensor;
  set.edit(set.model() / "model/model.safetensors",
           [&](std::string& bytes) { test::flip(bytes, tensor.offset + 48 * 5 + 20); });
  const VerifyReport report =
      verify_packed(set.path(), read_model(open_checkpoint(set.model() / "model")));
  ASSERT_EQ(report.findings.size(), 1U);
  const Finding finding = finding_of(report, "MOXIE-V002");
  EXPECT_EQ(finding.where.tensor, tensor.name);
  EXPECT_EQ(finding.where.expert, 2U);
  EXPECT_EQ(finding.where.rank, 1U);  // 16 bytes for each: byte 20 is rank 1's fifth
  EXPECT_NE(finding.message.find("row 5, offset 4 (unit byte)"), std::string::npos)
      << finding.message;
}

// pit8: a scale that is NaN on both sides is equal, and still no scale.
TEST(VerifyParts, NaNScaleInTheSourceIsRefused) {
  for (const BlockFormat format : test::kFormats) {
    const PackedFolder set(tiny_options(format), {.tp = 3});
    set.verify();
    EXPECT_TRUE(fs::exists(set.proof()));
    const TensorInfo tensor = *set.model().layer().experts[1].up.block_scales.tensor;
    const auto nan = [&](std::uint64_t at) {
      return [=](std::string& bytes) { bytes.at(at) = '\xFF'; };
    };
    set.edit(set.model() / "model/model.safetensors", nan(tensor.offset));
    const PlantedFault fault(set, 0, Checksum::agrees, nan(set.place_of(0, 1, Segment::up_scale)));
    const MoeModel source = read_model(open_checkpoint(set.model() / "model"));
    try {
      verify_packed(set.path(), source);
      ADD_FAILURE() << "nothing was refused";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::input);
      EXPECT_EQ(error.findings().front().code, "MOXIE-K003");
      EXPECT_EQ(error.findings().front().where.tensor, tensor.name);
    }
    EXPECT_FALSE(fs::exists(set.proof())) << "an old proof does not stand for these bytes";
  }
}

}  // namespace
}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// One wrong byte anywhere is found and named, with a stale checksum and with one that agrees.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "packed_folder.hpp"
#include "support/forced_kernels.hpp"
#include "support/threads.hpp"

namespace moxie {
namespace {

using test::Checksum;
using test::count_of;
using test::finding_of;
using test::flip;
using test::PackedFolder;
using test::PlantedFault;
using test::tiny_options;

// Where one byte of a segment is, and what verify should say about it.
struct WrongByte {
  std::uint64_t row;
  std::uint64_t byte;
  bool tail;
};

class VerifyWrongByte : public testing::TestWithParam<std::tuple<BlockFormat, FileLayout>> {
 protected:
  static test::TinyOptions two_experts() {
    test::TinyOptions options = tiny_options(std::get<0>(GetParam()));
    options.experts = 2;
    return options;
  }
  // 96 on three ranks is 32 for each, 64 with the tail.
  VerifyWrongByte() : set_(two_experts(), {.tp = 3, .kernel_align = 64}, std::get<1>(GetParam())) {}

  // First, last and a middle byte of the real part; first and last of the tail.
  static std::vector<WrongByte> places_in(const PackedSegment& segment) {
    const std::uint64_t rows = segment.rows;
    const std::uint64_t bytes = segment.row_bytes;
    if (segment.segment >= Segment::gate_dequant_mul) return {{0, 0, false}, {0, 3, false}};
    if (segment.segment == Segment::down || segment.segment == Segment::down_scale) {
      return {{0, 0, false},
              {rows - 1, bytes / 2 - 1, false},
              {0, bytes / 2, true},
              {rows - 1, bytes - 1, true}};
    }
    return {{0, 0, false},
            {rows / 2 - 1, bytes - 1, false},
            {rows / 2, 0, true},
            {rows - 1, bytes - 1, true}};
  }

  void expect_found(unsigned rank, std::uint64_t expert, const PackedSegment& segment,
                    const WrongByte& wrong, Checksum checksum) {
    const std::uint64_t place =
        set_.place_of(rank, expert, segment.segment) + wrong.row * segment.row_bytes + wrong.byte;
    const PlantedFault fault(set_, rank, checksum, [&](std::string& bytes) { flip(bytes, place); });
    const VerifyReport report = set_.verify();
    EXPECT_FALSE(report.passed);
    EXPECT_EQ(report.findings.size(), checksum == Checksum::stale ? 2U : 1U);
    EXPECT_EQ(count_of(report, "MOXIE-V001"), checksum == Checksum::stale ? 1U : 0U);
    const Finding finding = finding_of(report, wrong.tail ? "MOXIE-V003" : "MOXIE-V002");
    const auto& experts = set_.model().layer().experts;
    EXPECT_EQ(finding.where.tensor,
              test::source_of_segment(experts[expert], segment.segment)->name);
    EXPECT_EQ(finding.where.rank, rank);
    EXPECT_EQ(finding.where.layer, 0);
    EXPECT_EQ(finding.where.expert, expert);
    EXPECT_EQ(finding.where.file, set_.file(rank).string());
    EXPECT_NE(finding.expected, finding.got);
    const bool scalar = segment.segment >= Segment::gate_dequant_mul;
    const std::string at = scalar ? "at byte " + std::to_string(wrong.byte)
                                  : "at row " + std::to_string(wrong.row) + ", offset " +
                                        std::to_string(wrong.byte) + " (unit " +
                                        unit_of(segment.segment) + ")";
    EXPECT_NE(finding.message.find(at), std::string::npos) << finding.message << " / " << at;
  }

  static std::string unit_of(Segment segment) {
    return segment == Segment::down ? "byte" : segment == Segment::down_scale ? "group" : "row";
  }

  const test::PortableKernel forced_;  // whose files have rows one after another
  PackedFolder set_;
};

TEST_P(VerifyWrongByte, OfEveryTensorKindIsFoundOnEveryRankAndNamed) {
  const test::Threads one(1);  // some hundred small verifications: threads cost more than they give
  for (const unsigned rank : {0U, 1U, 2U}) {
    for (const PackedSegment& segment : set_.plan().layout.segments) {
      for (const WrongByte& wrong : places_in(segment)) {
        SCOPED_TRACE(std::string(name_of(segment.segment)) + " rank " + std::to_string(rank));
        expect_found(rank, rank % 2, segment, wrong, Checksum::agrees);
      }
      expect_found(rank, 1, segment, places_in(segment).front(), Checksum::stale);
    }
  }
  EXPECT_TRUE(set_.verify().passed) << "the set itself is clean";
}

// In blobs, the bytes between one expert and the next belong to no tensor.
TEST_P(VerifyWrongByte, InThePaddingBetweenExpertsIsFound) {
  if (set_.layout() != FileLayout::kernel) return;
  const PackedLayout& layout = set_.plan().layout;
  const std::uint64_t begin = set_.place_of(1, 0, layout.segments.front().segment);
  const std::uint64_t padding = layout.stride - layout.expert_bytes;
  ASSERT_EQ(padding > 0, std::get<0>(GetParam()) == BlockFormat::nvfp4);
  for (std::uint64_t i = 0; i < padding; ++i) {
    const std::uint64_t at = layout.expert_bytes + i;
    const PlantedFault fault(set_, 1, Checksum::agrees,
                             [&](std::string& bytes) { flip(bytes, begin + at); });
    const VerifyReport report = set_.verify();
    ASSERT_EQ(report.findings.size(), 1U);
    const Finding finding = finding_of(report, "MOXIE-V003");
    EXPECT_EQ(finding.where.tensor, "layers.0.experts");
    EXPECT_EQ(finding.where.expert, 0U);
    EXPECT_EQ(finding.where.rank, 1U);
    EXPECT_NE(finding.message.find("at byte " + std::to_string(at)), std::string::npos);
  }
}

INSTANTIATE_TEST_SUITE_P(Sets, VerifyWrongByte,
                         testing::Combine(testing::ValuesIn(test::kFormats),
                                          testing::Values(FileLayout::logical, FileLayout::kernel)),
                         [](const auto& param) {
                           return std::string(name_of(std::get<0>(param.param))) + "_" +
                                  std::string(name_of(std::get<1>(param.param)));
                         });

// The slot of an absent scalar is NaN with known bits; anything else is a number nobody stored.
TEST(VerifyScalar, ValueInTheSlotOfAnAbsentScalarIsFound) {
  test::TinyOptions options = tiny_options(BlockFormat::nvfp4);
  options.edits = {test::leave_out("experts.1.w2.input_scale")};
  const PackedFolder set(options, {.tp = 2}, FileLayout::kernel);
  const std::uint64_t place = set.place_of(1, 1, Segment::down_act_dequant_mul);
  const PlantedFault fault(set, 1, Checksum::agrees, [&](std::string& bytes) {
    bytes.replace(place, 4, std::string("\0\0\0\0", 4));  // absent is not zero
  });
  const VerifyReport report = set.verify();
  const Finding finding = finding_of(report, "MOXIE-V002");
  EXPECT_EQ(finding.where.expert, 1U);
  EXPECT_EQ(finding.where.tensor, "down_act_dequant_mul");
}

// R-09, pit10: a blob with the stored value, or a logical file with the multiplier, is off by the
// square of the global.
TEST(VerifyScalar, R09_AScalarOfTheOtherConventionIsFoundInBothLayouts) {
  for (const FileLayout layout : {FileLayout::logical, FileLayout::kernel}) {
    const PackedFolder set({.dialect = test::TinyDialect::compressed_nvfp4, .layers = 1}, {.tp = 2},
                           layout);
    ASSERT_TRUE(set.verify().passed);
    for (const Segment segment : {Segment::gate_dequant_mul, Segment::down_act_dequant_mul}) {
      const std::uint64_t place = set.place_of(1, 1, segment);
      const PlantedFault fault(set, 1, Checksum::agrees, [&](std::string& bytes) {
        float value = 0;
        std::memcpy(&value, bytes.data() + place, sizeof value);
        value = 1.0F / value;
        std::memcpy(bytes.data() + place, &value, sizeof value);
      });
      const VerifyReport report = set.verify();
      EXPECT_FALSE(report.passed);
      const Finding finding = finding_of(report, "MOXIE-V002");
      EXPECT_EQ(finding.where.expert, 1U);
      EXPECT_EQ(finding.where.tensor,
                test::source_of_segment(set.model().layer().experts[1], segment)->name);
    }
  }
}

// The data section of a small file, byte by byte, without the help of checksums.
TEST(VerifyBytes, NoByteOfTheDataCanChangeUnnoticed) {
  const test::Threads one(1);
  for (const FileLayout layout : {FileLayout::logical, FileLayout::kernel}) {
    test::TinyOptions options = tiny_options(BlockFormat::nvfp4, 16, 32);
    options.experts = 2;
    const PackedFolder set(options, {.tp = 1}, layout);
    const std::uint64_t begin = open_checkpoint(set.path() / "rank-000").files()[0].header_bytes;
    const std::uint64_t end = std::filesystem::file_size(set.file(0));
    for (std::uint64_t at = begin; at < end; at += 13) {
      const PlantedFault fault(set, 0, Checksum::agrees,
                               [&](std::string& bytes) { flip(bytes, at); });
      EXPECT_FALSE(set.verify().passed) << "byte " << at;
    }
  }
}

// A set that is wrong everywhere gives a list that can be read.
TEST(VerifyBytes, ManyDifferencesAreCountedNotListed) {
  test::TinyOptions options = tiny_options(BlockFormat::nvfp4);
  const PackedFolder set(options, {.tp = 2});
  const std::uint64_t begin = open_checkpoint(set.path() / "rank-000").files()[0].header_bytes;
  const PlantedFault fault(set, 0, Checksum::agrees, [&](std::string& bytes) {
    for (std::uint64_t at = begin; at < bytes.size(); ++at) flip(bytes, at);
  });
  const VerifyReport report = set.verify();
  EXPECT_FALSE(report.passed);
  EXPECT_EQ(report.findings.size(), 21U);
  EXPECT_EQ(report.findings.back().message, "16 more differences");  // 36 tensors
}

}  // namespace
}  // namespace moxie

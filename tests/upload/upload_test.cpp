// SPDX-License-Identifier: Apache-2.0
// Experts on their way to a device that is made of threads: order, bounds and failures of a load.
#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "layer/device_experts.hpp"
#include "support/refusal.hpp"
#include "support/threads.hpp"
#include "upload/fake_device.hpp"

namespace moxie {
namespace {

using test::FakeDevice;

constexpr std::uint64_t kBlobBytes = 1000;
constexpr std::uint64_t kStride = 1024;
constexpr std::byte kMask{0x5A};
constexpr std::byte kProblem{0xEE};  // at kMark: what the fake kernel can not hold
constexpr std::size_t kMark = 7;
constexpr std::uint64_t kFirst = 10;
constexpr unsigned kRank = 2;

std::uint64_t stride(const ExpertsShape& /*shape*/, const BlobOffsets& /*offsets*/) {
  return kStride;
}
int arrange(const ArrangeArgs& args) {
  FakeDevice::put(args.stream, [args] {
    for (std::uint64_t i = 0; i < kBlobBytes; ++i) args.arranged[i] = args.packed[i] ^ kMask;
    if (args.packed[kMark] == kProblem) *args.problems |= 1U;
  });
  return 0;
}
int restore(const ArrangeArgs& args) {
  for (std::uint64_t i = 0; i < kBlobBytes; ++i) args.packed[i] = args.arranged[i] ^ kMask;
  return 0;
}
constexpr ExpertArrangement kArrangement{.stride = stride, .arrange = arrange, .restore = restore};

void pack_bytes(std::uint64_t expert, std::span<std::byte> blob) {
  for (std::size_t i = 0; i < blob.size(); ++i)
    blob[i] = static_cast<std::byte>((expert * 31 + i) & 255U);
  blob[kMark] = std::byte{1};
}

struct Setting {
  const ExpertArrangement* arrangement;
  std::uint64_t experts;
  std::uint64_t staging_bytes;
};

class Upload : public testing::TestWithParam<Setting> {
 protected:
  Upload() {
    packed_.rank = kRank;
    packed_.layout.stride = kBlobBytes;
    packed_.experts = ExpertRange{.first = kFirst, .end = kFirst + count()};
    kernel_.arrangement = GetParam().arrangement;
    const std::vector<std::int32_t> local(kFirst + count(), 0);
    experts_ = DeviceExperts(packed_, local, kernel_, {}, {});
  }
  ~Upload() override { FakeDevice::never_fail(); }

  [[nodiscard]] static std::uint64_t count() { return GetParam().experts; }
  void expect_whole() const {
    std::vector<std::byte> expected(kBlobBytes);
    for (std::uint64_t expert = 0; expert < count(); ++expert) {
      pack_bytes(expert, expected);
      EXPECT_TRUE(std::ranges::equal(experts_.read(expert), expected)) << "expert " << expert;
    }
  }

  const test::Threads threads_{8};  // more than this machine may have
  PackedExperts packed_;
  ExpertsKernel kernel_;
  StagingMemory staging_{GetParam().staging_bytes};
  DeviceExperts experts_;
};

// What is refused is refused on the way from packed to arranged.
class ArrangedUpload : public Upload {};

TEST_P(Upload, EveryExpertComesToItsPlace) {
  experts_.load(pack_bytes, staging_);
  expect_whole();
  EXPECT_LE(staging_.bytes(), std::max<std::uint64_t>(GetParam().staging_bytes, 4096));
}

TEST_P(Upload, WhatTheKernelDoesNotWriteIsZero) {
  experts_.load(pack_bytes, staging_);
  const std::uint64_t written = kBlobBytes;
  for (std::uint64_t expert = 0; expert < count(); ++expert) {
    const std::span all(experts_.blobs() + expert * experts_.stride(), experts_.stride());
    EXPECT_TRUE(
        std::ranges::all_of(all.subspan(written), [](std::byte b) { return b == std::byte{0}; }));
  }
}

TEST_P(ArrangedUpload, AnExpertThatTheKernelCanNotHoldIsNamed) {
  const Error error = test::refusal_of([&] {
    experts_.load(
        [](std::uint64_t expert, std::span<std::byte> blob) {
          pack_bytes(expert, blob);
          if (expert == count() / 2) blob[kMark] = kProblem;
        },
        staging_);
  });
  EXPECT_EQ(test::code_of(error), "MOXIE-R022");
  EXPECT_EQ(error.findings()[0].where.expert, kFirst + count() / 2);
  EXPECT_EQ(error.findings()[0].where.rank, kRank);
}

TEST_P(ArrangedUpload, AReplacementThatIsRefusedChangesNothing) {
  experts_.load(pack_bytes, staging_);
  std::vector<std::byte> blob(kBlobBytes);
  pack_bytes(count() + 3, blob);
  blob[kMark] = kProblem;
  test::expect_refusal([&] { experts_.write(count() - 1, blob); }, ErrorCode::unsupported,
                       "MOXIE-R022");
  expect_whole();
}

TEST_P(Upload, WhatPackingThrowsEndsTheLoadAndTheNextOneIsWhole) {
  EXPECT_THROW(experts_.load(
                   [](std::uint64_t expert, std::span<std::byte> blob) {
                     if (expert == count() / 2) throw std::runtime_error("not packed");
                     pack_bytes(expert, blob);
                   },
                   staging_),
               std::runtime_error);
  experts_.load(pack_bytes, staging_);
  expect_whole();
}

TEST_P(Upload, ADeviceThatFailsEndsTheLoadAndTheNextOneIsWhole) {
  for (const std::uint64_t copies : {std::uint64_t{0}, count() / 2, count() - 1}) {
    FakeDevice::fail_after(static_cast<int>(copies));
    test::expect_refusal([&] { experts_.load(pack_bytes, staging_); }, ErrorCode::environment,
                         "MOXIE-E005");
    FakeDevice::never_fail();
    experts_.load(pack_bytes, staging_);
    expect_whole();
  }
}

TEST_P(Upload, ALoadLeavesNothingBehindButTheExpertsAndTheStaging) {
  experts_.load(pack_bytes, staging_);
  const int before = FakeDevice::alive();
  experts_.load(pack_bytes, staging_);
  (void)experts_.read(0);
  EXPECT_EQ(FakeDevice::alive(), before);
  experts_ = DeviceExperts();
  EXPECT_EQ(FakeDevice::alive(), 1);  // the page-locked memory
}

// With the arrangement, or for experts that are held as they are packed.
std::vector<Setting> settings(const ExpertArrangement* arrangement) {
  std::vector<Setting> settings;
  for (const std::uint64_t experts : {1U, 5U, 48U, 130U}) {
    for (const std::uint64_t bytes : {1U, 9000U, 1U << 29})
      settings.push_back({.arrangement = arrangement, .experts = experts, .staging_bytes = bytes});
  }
  return settings;
}
std::string name_of_setting(const testing::TestParamInfo<Setting>& info) {
  return std::to_string(info.param.experts) + "experts_" +
         std::to_string(info.param.staging_bytes) + "bytes";
}
INSTANTIATE_TEST_SUITE_P(Packed, Upload, testing::ValuesIn(settings(nullptr)), name_of_setting);
INSTANTIATE_TEST_SUITE_P(Arranged, Upload, testing::ValuesIn(settings(&kArrangement)),
                         name_of_setting);
INSTANTIATE_TEST_SUITE_P(Arranged, ArrangedUpload, testing::ValuesIn(settings(&kArrangement)),
                         name_of_setting);

}  // namespace
}  // namespace moxie

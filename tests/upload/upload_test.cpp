// SPDX-License-Identifier: Apache-2.0
// Experts on their way to a device that is made of threads: order, bounds and failures of a load.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "layer/device_experts.hpp"
#include "layer/expert_upload.hpp"
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
  unsigned parts;
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
    experts_ = DeviceExperts(packed_, local, local, kernel_, {}, {});
  }
  ~Upload() override {
    FakeDevice::never_fail();
    EXPECT_EQ(FakeDevice::ended_at_work(), ended_at_work_);
  }

  [[nodiscard]] static std::uint64_t count() { return GetParam().experts; }
  // Writes one part and nothing else; then `change` may do something to it.
  template <class Change>
  static PackLocal packing(Change change) {
    const unsigned parts = GetParam().parts;
    return {
        .parts = parts,
        .part = [change, parts](std::uint64_t expert, unsigned part, std::span<std::byte> blob) {
          std::vector<std::byte> whole(blob.size());
          pack_bytes(expert, whole);
          const std::size_t begin = blob.size() * part / parts;
          const std::size_t end = blob.size() * (part + 1) / parts;
          std::ranges::copy(std::span(whole).subspan(begin, end - begin), blob.begin() + begin);
          change(expert, part, blob);
        }};
  }
  static PackLocal packing() {
    return packing([](std::uint64_t, unsigned, std::span<std::byte>) {});
  }
  void expect_whole() const {
    std::vector<std::byte> expected(kBlobBytes);
    for (std::uint64_t expert = 0; expert < count(); ++expert) {
      pack_bytes(expert, expected);
      EXPECT_TRUE(std::ranges::equal(experts_.read(expert), expected)) << "expert " << expert;
    }
  }

  const test::Threads threads_{8};  // more than this machine may have
  const int ended_at_work_ = FakeDevice::ended_at_work();
  PackedExperts packed_;
  ExpertsKernel kernel_;
  StagingMemory staging_{GetParam().staging_bytes};
  DeviceExperts experts_;
};

TEST(PackingThreads, LeaveOneInEightToOthers) {
  for (const unsigned all : {1U, 2U, 7U}) EXPECT_EQ(packing_threads(all), all);
  EXPECT_EQ(packing_threads(8), 7U);
  EXPECT_EQ(packing_threads(16), 14U);
  EXPECT_EQ(packing_threads(128), 112U);
}

// What is refused is refused on the way from packed to arranged.
class ArrangedUpload : public Upload {};

TEST_P(Upload, EveryExpertComesToItsPlace) {
  experts_.load(packing(), staging_);
  expect_whole();
  EXPECT_LE(staging_.bytes(), std::max<std::uint64_t>(GetParam().staging_bytes, 4096));
}

// The last one's place may have served others until then.
TEST_P(Upload, TheLastExpertMayComeBeforeThoseInFrontOfIt) {
  for (const std::uint64_t late : {count() / 2, count() - 2}) {
    if (late >= count()) continue;
    experts_.load(packing([late](std::uint64_t expert, unsigned, std::span<std::byte>) {
                    if (expert == late) std::this_thread::sleep_for(std::chrono::milliseconds(2));
                  }),
                  staging_);
    expect_whole();
  }
}

// Of eight threads seven pack; their parts in a row are of seven experts, of three, or of two.
TEST_P(Upload, TheFewerExpertsAreBegunAtOnceTheLessMemoryIsLocked) {
  experts_.load(packing(), staging_);
  const std::uint64_t begun = GetParam().parts == 1 ? 7 : GetParam().parts == 3 ? 3 : 2;
  constexpr std::uint64_t kOnTheirWay = 4;
  constexpr std::uint64_t kSlot = 4096;
  EXPECT_LE(staging_.bytes(), (begun + kOnTheirWay) * kSlot);
}

TEST_P(Upload, WhatTheKernelDoesNotWriteIsZero) {
  experts_.load(packing(), staging_);
  const std::uint64_t written = kBlobBytes;
  for (std::uint64_t expert = 0; expert < count(); ++expert) {
    const std::span all(experts_.blobs() + expert * experts_.stride(), experts_.stride());
    EXPECT_TRUE(
        std::ranges::all_of(all.subspan(written), [](std::byte b) { return b == std::byte{0}; }));
  }
}

TEST_P(ArrangedUpload, AnExpertThatTheKernelCanNotHoldIsNamed) {
  const Error error = test::refusal_of([&] {
    experts_.load(packing([](std::uint64_t expert, unsigned part, std::span<std::byte> blob) {
                    if (expert == count() / 2 && part == 0) blob[kMark] = kProblem;
                  }),
                  staging_);
  });
  EXPECT_EQ(test::code_of(error), "MOXIE-R022");
  EXPECT_EQ(error.findings()[0].where.expert, kFirst + count() / 2);
  EXPECT_EQ(error.findings()[0].where.rank, kRank);
}

TEST_P(ArrangedUpload, AReplacementThatIsRefusedChangesNothing) {
  experts_.load(packing(), staging_);
  std::vector<std::byte> blob(kBlobBytes);
  pack_bytes(count() + 3, blob);
  blob[kMark] = kProblem;
  test::expect_refusal([&] { experts_.write(count() - 1, blob); }, ErrorCode::unsupported,
                       "MOXIE-R022");
  expect_whole();
}

TEST_P(Upload, WhatPackingThrowsEndsTheLoadAndTheNextOneIsWhole) {
  const unsigned parts = GetParam().parts;
  for (const unsigned bad : {0U, parts / 2, parts - 1}) {
    const PackLocal failing =
        packing([bad](std::uint64_t expert, unsigned part, std::span<std::byte> /*blob*/) {
          if (expert == count() / 2 && part == bad) throw std::runtime_error("not packed");
        });
    EXPECT_THROW(experts_.load(failing, staging_), std::runtime_error);
    experts_.load(packing(), staging_);
    expect_whole();
  }
}

TEST_P(Upload, OfSeveralPartsThatThrowTheFirstOfTheFirstExpertIsHeard) {
  const std::uint64_t first = (count() - 1) / 2;
  const PackLocal failing =
      packing([first](std::uint64_t expert, unsigned part, std::span<std::byte> /*blob*/) {
        if (expert < first) return;
        // The later, the sooner: who is heard is not who comes first.
        if (expert == first && part == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
        throw std::runtime_error(std::to_string(expert) + "." + std::to_string(part));
      });
  std::string heard;
  try {
    experts_.load(failing, staging_);
  } catch (const std::runtime_error& error) {
    heard = error.what();
  }
  EXPECT_EQ(heard, std::to_string(first) + ".0");
}

TEST_P(Upload, EveryExpertIsCheckedOnceWhenItIsWhole) {
  std::vector<std::atomic<int>> checked(count());
  std::atomic<int> torn = 0;
  PackLocal pack = packing();
  pack.check = [&](std::uint64_t expert, std::span<const std::byte> blob) {
    std::vector<std::byte> expected(kBlobBytes);
    pack_bytes(expert, expected);
    if (!std::ranges::equal(blob, expected)) ++torn;
    ++checked[expert];
  };
  experts_.load(pack, staging_);
  EXPECT_EQ(torn, 0);
  for (const std::atomic<int>& times : checked) EXPECT_EQ(times, 1);
}

TEST_P(Upload, WhatTheCheckThrowsEndsTheLoad) {
  PackLocal pack = packing();
  pack.check = [](std::uint64_t expert, std::span<const std::byte> /*blob*/) {
    if (expert >= count() / 2) throw std::runtime_error("refused " + std::to_string(expert));
  };
  std::string heard;
  try {
    experts_.load(pack, staging_);
  } catch (const std::runtime_error& error) {
    heard = error.what();
  }
  EXPECT_EQ(heard, "refused " + std::to_string(count() / 2));
}

TEST_P(Upload, ADeviceThatFailsEndsTheLoadAndTheNextOneIsWhole) {
  for (const std::uint64_t copies : {std::uint64_t{0}, count() / 2, count() - 1}) {
    FakeDevice::fail_after(static_cast<int>(copies));
    test::expect_refusal([&] { experts_.load(packing(), staging_); }, ErrorCode::environment,
                         "MOXIE-E005");
    FakeDevice::never_fail();
    experts_.load(packing(), staging_);
    expect_whole();
  }
}

TEST_P(Upload, ALoadLeavesNothingBehindButTheExpertsAndTheStaging) {
  experts_.load(packing(), staging_);
  const int before = FakeDevice::alive();
  experts_.load(packing(), staging_);
  (void)experts_.read(0);
  EXPECT_EQ(FakeDevice::alive(), before);
  experts_ = DeviceExperts();
  EXPECT_EQ(FakeDevice::alive(), 1);  // the page-locked memory
}

// With the arrangement, or for experts that are held as they are packed.
std::vector<Setting> settings(const ExpertArrangement* arrangement) {
  std::vector<Setting> settings;
  for (const std::uint64_t experts : {1U, 2U, 5U, 130U}) {
    for (const unsigned parts : {1U, 3U, 20U}) {  // 20: more than there are threads
      for (const std::uint64_t bytes : {1U, 9000U, 1U << 29})
        settings.push_back({.arrangement = arrangement,
                            .experts = experts,
                            .parts = parts,
                            .staging_bytes = bytes});
    }
  }
  return settings;
}
std::string name_of_setting(const testing::TestParamInfo<Setting>& info) {
  return std::to_string(info.param.experts) + "experts_" + std::to_string(info.param.parts) +
         "parts_" + std::to_string(info.param.staging_bytes) + "bytes";
}
INSTANTIATE_TEST_SUITE_P(Packed, Upload, testing::ValuesIn(settings(nullptr)), name_of_setting);
INSTANTIATE_TEST_SUITE_P(Arranged, Upload, testing::ValuesIn(settings(&kArrangement)),
                         name_of_setting);
INSTANTIATE_TEST_SUITE_P(Arranged, ArrangedUpload, testing::ValuesIn(settings(&kArrangement)),
                         name_of_setting);

}  // namespace
}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// Which compute capability runs which target, on capabilities that no machine here has.
#include <gtest/gtest.h>

#include <optional>

#include "moxie/device.hpp"
#include "moxie/status.hpp"
#include "support/refusal.hpp"

namespace moxie {
namespace {

GpuReport with(unsigned major, unsigned minor) {
  return {.built = true, .gpus = {{.name = "Fake", .major = major, .minor = minor}}};
}

TEST(Targets, FollowTheFamilyOfACapabilityAndNotItsOrderK15) {  // K-15
  struct Row {
    unsigned major, minor;
    std::optional<Target> target;
  };
  for (const Row& row : {Row{8, 0, {}}, Row{8, 9, {}}, Row{9, 0, Target::sm90},
                         Row{10, 0, Target::sm100}, Row{10, 3, Target::sm100},
                         Row{12, 0, Target::sm120}, Row{12, 1, Target::sm120}, Row{13, 0, {}}}) {
    EXPECT_EQ(target_of_capability(row.major, row.minor), row.target)
        << row.major << "." << row.minor;
    for (const Target target : {Target::sm90, Target::sm100, Target::sm120}) {
      const std::string reason = device_refusal(target, with(row.major, row.minor));
      EXPECT_EQ(reason.empty(), row.target == target) << reason;
      if (reason.empty()) continue;
      const std::string capability = std::to_string(row.major) + "." + std::to_string(row.minor);
      EXPECT_NE(reason.find(capability), std::string::npos) << reason;
      EXPECT_NE(reason.find(name_of(target)), std::string::npos) << reason;
    }
    EXPECT_EQ(device_refusal(Target::cpu, with(row.major, row.minor)), "");
  }
}

TEST(Targets, SayWhyThereIsNoDevice) {
  EXPECT_EQ(device_refusal(Target::sm90, {}), "built without CUDA");
  EXPECT_EQ(device_refusal(Target::sm90, {.built = true, .problem = "no CUDA driver"}),
            "no CUDA driver");
  EXPECT_EQ(device_refusal(Target::sm90, {.built = true}), "no GPU");
}

TEST(Targets, AreRefusedWhereTheirDeviceIsNotHere) {
  const GpuReport report = list_gpus();
  EXPECT_EQ(report.gpus.empty(), !report.problem.empty());
  EXPECT_NO_THROW(require_device(Target::cpu));
  for (const Target target : {Target::sm90, Target::sm100, Target::sm120}) {
    if (device_refusal(target, report).empty()) continue;
    test::expect_refusal([&] { require_device(target); }, ErrorCode::environment, "MOXIE-E004");
  }
}

}  // namespace
}  // namespace moxie

// SPDX-License-Identifier: Apache-2.0
// moxie bench --load on the CPU, as a user sees it.
#include <gtest/gtest.h>

#include <filesystem>

#include "cli/command.hpp"
#include "cli/run_command.hpp"
#include "moxie/device.hpp"

namespace moxie {
namespace {

using namespace test;

class BenchLoad : public RunCommand {
 protected:
  [[nodiscard]] std::vector<Json> records(const Words& options) const {
    const Outcome outcome = expect_success(
        Words{"bench", "--load", "--samples", "2", "--json", "-q"} + options, Launch{});
    EXPECT_EQ(outcome.err, "");
    return parse_records(outcome.out);
  }
};

TEST_F(BenchLoad, SaysRateAndMemoryOfEveryPlan) {
  const auto lines = records({"--problem", "tiny", "--tp", "1,3"});
  ASSERT_EQ(lines.size(), 2U);
  for (const Json& record : lines) {
    EXPECT_EQ(text(record, "schema"), "moxie.bench/1");
    EXPECT_EQ(text(record, "load"), "layer");
    EXPECT_GT(number(record, "bytes"), 0U);
    EXPECT_EQ(text(*record.find("problem"), "weights"), "synth");
    const Json& timing = *record.find("timing");
    EXPECT_EQ(number(timing, "samples"), 2U);
    for (const char* key : {"median_us", "own_staging_us", "first_us"})
      EXPECT_GT(timing.find(key)->as_double(), 0.0) << key;
    const Json& rate = *record.find("rate");
    EXPECT_NEAR(rate.find("gbps")->as_double() * timing.find("median_us")->as_double() * 1e3,
                static_cast<double>(number(record, "bytes")), 1.0);
    EXPECT_TRUE(rate.find("host_to_device_gbps")->is_null());
    EXPECT_GT(rate.find("fresh_memory_gbps")->as_double(), 0.0);
    EXPECT_NEAR(rate.find("ratio")->as_double() * rate.find("read_gbps")->as_double(),
                rate.find("gbps")->as_double(), 1e-9);
    const Json& memory = *record.find("memory");
    EXPECT_EQ(number(memory, "staging_bytes"), 0U);
    EXPECT_TRUE(memory.find("device_peak_bytes")->is_null());
  }
  EXPECT_EQ(number(*lines[1].find("problem"), "tp"), 3U);
}

TEST_F(BenchLoad, ReadsACheckpointAPackedSetAndRandomWeights) {
  const std::string model = synth("model");
  const std::string set = pack(model, "set", {"--tp", "3"});
  const std::uint64_t whole = number(records({"--problem", model})[0], "bytes");
  EXPECT_GT(whole, 0U);
  EXPECT_GE(number(records({"--problem", set})[0], "bytes"), whole);
  const auto drawn = records({"--problem", "tiny", "--weights", "random"});
  EXPECT_EQ(text(*drawn[0].find("problem"), "weights"), "random");
}

// Before weights are written, which are gigabytes for the models of the field.
TEST_F(BenchLoad, ForADeviceThatIsNotHereWritesNothing) {
  const GpuReport gpus = list_gpus();
  // A GPU is of one target: two of the three are never here.
  for (const Target target : {Target::sm90, Target::sm100, Target::sm120}) {
    if (device_refusal(target, gpus).empty()) continue;
    expect_refusal(
        gpus.built ? 5 : 4, gpus.built ? "MOXIE-E004" : "MOXIE-R001",
        {"bench", "--load", "--target", std::string(name_of(target)), "--experts", "1000000000"});
  }
}

TEST_F(BenchLoad, RefusesOptionsOfCalls) {
  for (const Words& options : {Words{"--mode", "eager"}, Words{"--sets", "2"},
                               Words{"--vs", "torch"}, Words{"--sweep", "act-margin", "8"}}) {
    expect_refusal(2, "MOXIE-B005", Words{"bench", "--load", "--problem", "tiny"} + options);
  }
}

}  // namespace
}  // namespace moxie
